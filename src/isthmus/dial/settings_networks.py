"""The settings of networks and policy, and reading --cluster-network.

    NAME=CIDR[,CIDR…][;via=WAY]
    WAY  agents                     through the agents of the network; what is meant without via
         direct                     from the server itself
         server:PROTOCOL://HOST:PORT[?OPTION=VALUE&…]     through another server, by mutual TLS
         server:PROTOCOL:///PATH[?half-close=false]       the same at a UNIX socket
         dialer:NAME[?OPTION=VALUE&…]                     by a dialer that somebody else wrote

PROTOCOL is http-connect, konnectivity (its gRPC) or kep (that of KEP-1281). The OPTIONs of a server
are ca, cert, key, name (in its certificate) and half-close; those of a dialer are its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar
from urllib.parse import parse_qsl, unquote, urlsplit

from isthmus.dial.rules_connectivity import ClientTls, Connection, Protocol
from isthmus.dial.rules_networks import ClusterNetwork, Networks
from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.settings.parsing import parse_bool
from isthmus.text.addresses import IpNetwork, cidr
from isthmus.text.suggestions import nearest
from isthmus.values import HostPort

FLAG = "--cluster-network"
METAVAR = "NAME=CIDR[,CIDR...][;via=WAY]"
MAX_NETWORKS = 1000
_GROUP = "Networks and policy"
_EXAMPLE = "east=10.1.0.0/16,fd00:1::/48"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?", re.ASCII)
# A list's texts come joined by commas or one by one: each network begins with its name.
_BEGINS = re.compile(r",(?=[A-Za-z0-9._-]+=)", re.ASCII)
_DIALER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_MAX_UDS_BYTES = 107  # struct sockaddr_un, see programs/server/settings.py
PROTOCOLS = {
    "http-connect": Protocol.HTTP_CONNECT,
    "konnectivity": Protocol.PACKET,
    "kep": Protocol.PAYLOAD,
}
_WAYS = ("agents", "direct", "server", "dialer")
_TLS_OPTIONS = {
    "ca": "ca_bundle",
    "cert": "client_cert",
    "key": "client_key",
    "name": "server_name",
}
_HALF_CLOSE = "half-close"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings(SettingsBlock):
    """Where clients may go and how; ``check()`` says whether it makes sense."""

    GO: ClassVar = OURS

    cluster_network: tuple[str, ...] = option(
        (),
        help="Serve the network NAME with these addresses, and nothing outside of such networks; "
        "via is agents (its own, without via), direct, server:URL or dialer:NAME",
        repeat=True,
        group=_GROUP,
        metavar=METAVAR,
        filled=True,
    )
    policy_file: str = option(
        "",
        once=True,
        help="Allow only what the rules of this file allow; it is read again when it changes",
        group=_GROUP,
        metavar="FILE",
        filled=True,
    )

    @property
    def networks(self) -> Networks | None:
        """The networks, or None when there is no restriction.

        Raises:
            ConfigError: one cannot be read, or two overlap.
        """
        return parse_networks(self.cluster_network)

    def check(self) -> None:
        """Read the networks.

        Raises:
            ConfigError: one sentence that says what is wrong with which.
        """
        _ = self.networks


def parse_networks(texts: Sequence[str]) -> Networks | None:
    """Read the values of --cluster-network; None without any.

    Raises:
        ConfigError: one cannot be read, or two overlap.
    """
    if not texts:
        return None
    if not all(texts):
        raise ConfigError(f"{FLAG} is empty: say {METAVAR}, or leave it out")
    whole = ",".join(texts)
    parts = _BEGINS.split(whole)
    if len(parts) > MAX_NETWORKS:
        raise ConfigError(f"{FLAG}: more than {MAX_NETWORKS} networks")
    found = [parse_network(text) for text in parts]
    try:
        return Networks(found)
    except ValueError as error:
        raise ConfigError(f"{FLAG}: {error}") from error


def parse_network(text: str) -> ClusterNetwork:
    """Read one network.

    Raises:
        ConfigError: it is none; one sentence.
    """
    try:
        return _network(text)
    except ValueError as error:
        shown = text if len(text) <= 200 else f"{text[:199]}…"
        raise ConfigError(f"{FLAG} {shown}: {error}") from error


def _network(text: str) -> ClusterNetwork:
    named, *rest = text.split(";")
    name, equals, cidrs = named.partition("=")
    if not equals:
        raise ValueError(f"is not NAME=CIDR, such as {_EXAMPLE}")
    name = name.lower()
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not a name of at most 63 letters, digits, '.', '_' and '-'")
    make = partial(ClusterNetwork, name=name, cidrs=tuple(map(_cidr, cidrs.split(","))))
    if not rest:
        return make()
    key, equals, way = rest[0].partition("=")
    if key != "via" or not equals or len(rest) > 1:
        raise ValueError("only ;via=WAY may follow the addresses, once")
    return _via(make, way)


def _cidr(text: str) -> IpNetwork:
    text = text.strip()
    try:
        return cidr(text)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None


def _via(make: partial[ClusterNetwork], way: str) -> ClusterNetwork:
    kind, _, rest = way.partition(":")
    if kind not in _WAYS:
        hint = nearest(kind, list(_WAYS))
        raise ValueError(f"via is agents, direct, server:URL or dialer:NAME, not {way!r}{hint}")
    if kind in ("agents", "direct"):
        if way != kind:
            raise ValueError(f"via={kind} takes nothing behind it")
        return make(via=Connection(protocol=Protocol.DIRECT) if kind == "direct" else None)
    if kind == "dialer":
        name, _, query = rest.partition("?")
        if not _DIALER.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a dialer")
        return make(
            via=Connection(protocol=Protocol.CUSTOM, dialer=name, options=_options(query, None))
        )
    return _via_server(make, rest)


def _via_server(make: partial[ClusterNetwork], url: str) -> ClusterNetwork:
    parts = urlsplit(url)
    protocol = PROTOCOLS.get(parts.scheme)
    if protocol is None or "://" not in url:
        hint = nearest(parts.scheme, list(PROTOCOLS))
        raise ValueError(
            f"a server is http-connect://, konnectivity:// or kep:// with HOST:PORT or /PATH"
            f" behind it, not {url!r}{hint}"
        )
    if parts.fragment:
        raise ValueError("a # has to be written %23 in a URL")
    if not parts.netloc:
        options = _options(parts.query, (_HALF_CLOSE,))
        connection = Connection(protocol=protocol, uds=_path(parts.path))
    else:
        if parts.path not in ("", "/"):
            raise ValueError(
                f"a URL has HOST:PORT or /PATH, not both: {parts.netloc}{parts.path};"
                f" a UNIX socket has three slashes, {parts.scheme}:///PATH"
            )
        options = _options(parts.query, (*_TLS_OPTIONS, _HALF_CLOSE))
        connection = Connection(
            protocol=protocol, tcp=HostPort.parse(parts.netloc), tls=_tls(options)
        )
    keeps = parse_bool(options[_HALF_CLOSE]) if _HALF_CLOSE in options else None
    return make(via=connection, keeps_half_close=keeps)


def _path(quoted: str) -> str:
    path = unquote(quoted)
    if len(path) < 2 or "\0" in path or len(path.encode()) > _MAX_UDS_BYTES:
        raise ValueError(f"{path!r} is not the path of a UNIX socket, in {_MAX_UDS_BYTES} bytes")
    return path


def _tls(options: dict[str, str]) -> ClientTls:
    if ("cert" in options) != ("key" in options):
        there, missing = ("cert", "key") if "cert" in options else ("key", "cert")
        raise ValueError(f"{there}= needs {missing}= as well")
    if "name" in options:
        HostPort(options["name"], 1)  # no certificate has anything else
    named = {field: options[key] for key, field in _TLS_OPTIONS.items() if key in options}
    return ClientTls(**named)


def _options(query: str, known: Sequence[str] | None) -> dict[str, str]:
    """Read ``key=value&…``; any key where ``known`` is None."""
    found: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True, max_num_fields=100):
        if known is not None and key not in known:
            raise ValueError(f"unknown option {key!r}{nearest(key, list(known))}")
        if key in found:
            raise ValueError(f"option {key} is there twice")
        if not value:
            raise ValueError(f"option {key} is empty")
        found[key] = value
    return found
