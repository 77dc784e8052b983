"""Chooses the HTTP proxy for a host from HTTPS_PROXY and NO_PROXY.

The results are those of Go's ``golang.org/x/net/http/httpproxy``, which its HTTP and gRPC clients
use, with two exceptions: an invalid proxy address is an error here, where Go silently connects
without a proxy; and 0.0.0.0 and :: count as loopback, as they do for connections.
through_proxy.py talks to the proxy.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_network,
)
from typing import Literal, cast
from urllib.parse import unquote_to_bytes

from isthmus.errors import ConfigError, DialFailure
from isthmus.text.addresses import as_ipv4, reached_address
from isthmus.values import HostPort

DEFAULT_PORTS = {"http": 80, "https": 443}
#: The meaning of a proxy's status for the target (RFC 9110 §15); other statuses do not concern
#: the target. Squid answers 503 when the target cannot be reached, others 502.
FAILURE_OF_STATUS = {
    403: DialFailure.DENIED,
    407: DialFailure.DENIED,
    502: DialFailure.UNREACHABLE,
    503: DialFailure.UNREACHABLE,
    504: DialFailure.TIMED_OUT,
}

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# RFC 3986 §3.2.1, and "@" as in Go: the last one is the separator.
_USER = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*")
_FORM = "write it as [http[s]://][user:password@]host[:port]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyAddress:
    """The address of an HTTP proxy, with credentials; ``str()`` and ``repr()`` show no secret."""

    scheme: Literal["http", "https"]
    at: HostPort
    user: str | None = field(default=None, repr=False)
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.at}"

    @property
    def authorization(self) -> str | None:
        """The value of Proxy-Authorization (RFC 7617), None without a user in the address."""
        if self.user is None:
            return None
        pair = f"{self.user}:{self.password}".encode("utf-8", "surrogateescape")
        return f"Basic {b64encode(pair).decode('ascii')}"

    @classmethod
    def parse(cls, text: str, *, variable: str = "HTTPS_PROXY") -> ProxyAddress:
        """Read a proxy's URL; without a scheme it is http; anything after the port is ignored.

        Raises:
            ConfigError: not such a URL. The message names the variable and quotes nothing:
                with an unescaped "/" in the password, any part of it may belong to the password.
        """
        text = text.strip()
        match = _SCHEME.match(text)
        scheme = match[1].lower() if match else "http"
        if scheme not in DEFAULT_PORTS:
            raise ConfigError(f"{variable}: the scheme of a proxy must be http or https")
        authority = re.split(r"[/?#]", text[match.end() if match else 0 :], maxsplit=1)[0]
        userinfo, separator, place = authority.rpartition("@")
        if not _USER.fullmatch(userinfo):
            raise ConfigError(
                f"{variable}: the user or password has characters that must be percent-encoded"
            )
        user, _, password = userinfo.partition(":")
        return cls(
            scheme=cast(Literal["http", "https"], scheme),
            at=_read_place(place, DEFAULT_PORTS[scheme], variable),
            user=_decoded(user) if separator else None,
            password=_decoded(password),
        )


@dataclass(frozen=True, slots=True)
class _Addresses:
    """Exempts the addresses of a network; an empty port is any."""

    network: IPv4Network | IPv6Network
    port: str = ""

    def exempts(self, address: IPv4Address | IPv6Address, port: str) -> bool:
        return address in self.network and self.port in ("", port)


@dataclass(frozen=True, slots=True)
class _Names:
    """Exempts names that end in ``suffix``, and optionally the suffix without its dot."""

    suffix: str
    itself: bool
    port: str = ""

    def exempts(self, name: str, port: str) -> bool:
        below = name.endswith(self.suffix) or (self.itself and name == self.suffix[1:])
        return below and self.port in ("", port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRules:
    """A proxy, if any, and the hosts that are reached without it."""

    proxy: ProxyAddress | None = None
    exempt_all: bool = False
    exempt_addresses: tuple[_Addresses, ...] = ()
    exempt_names: tuple[_Names, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ProxyRules:
        """Read HTTPS_PROXY and NO_PROXY, or their lower-case names if those are unset or empty.

        Invalid entries of NO_PROXY exempt nothing, as in Go.

        Raises:
            ConfigError: the proxy's address is invalid.
        """
        variable, url = _first(environment, "HTTPS_PROXY", "https_proxy")
        proxy = ProxyAddress.parse(url, variable=variable) if url else None
        return _exempting(proxy, _first(environment, "NO_PROXY", "no_proxy")[1])

    def proxy_for(self, host: str, port: int) -> ProxyAddress | None:
        """The proxy for a host, given as a name or as an address without brackets.

        localhost and loopback addresses never use a proxy. Names are compared literally,
        without resolving them to check whether an address is exempt.
        """
        if self.proxy is None or self.exempt_all or host == "localhost":
            return None
        address = _address(host.partition("%")[0] if ":" in host else host)
        if address is None:
            name = _ascii(host).strip().lower()
            exempt = any(rule.exempts(name, str(port)) for rule in self.exempt_names)
        else:
            exempt = address.is_loopback or any(
                rule.exempts(address, str(port)) for rule in self.exempt_addresses
            )
        return None if exempt else self.proxy


def _exempting(proxy: ProxyAddress | None, no_proxy: str) -> ProxyRules:
    """Read NO_PROXY's list: ``*``, networks, and addresses or names that may have a port."""
    addresses: list[_Addresses] = []
    names: list[_Names] = []
    for raw in no_proxy.split(","):
        entry = raw.strip().lower()
        if entry == "*":
            return ProxyRules(proxy=proxy, exempt_all=True)
        network = _network(entry)
        if network is not None:
            addresses.append(_Addresses(network))
            continue
        host, port = _split(entry)
        address = _address(host) if "%" not in host else None
        if address is not None:
            addresses.append(_Addresses(ip_network(address), port))
        elif host:
            names.append(_read_names(host, port))
    return ProxyRules(proxy=proxy, exempt_addresses=tuple(addresses), exempt_names=tuple(names))


def _read_names(host: str, port: str) -> _Names:
    """Read ``name`` (itself and all subdomains), or ``.name`` or ``*.name`` (subdomains only)."""
    host = host[1:] if host.startswith("*.") else host
    itself = not host.startswith(".")
    return _Names(f".{_ascii(host.removeprefix('.'))}", itself, port)


def _split(entry: str) -> tuple[str, str]:
    """Split off a port as Go's net.SplitHostPort does; what Go rejects is a host without port."""
    if entry.startswith("["):
        host, _, rest = entry[1:].partition("]")
        if rest.startswith(":") and "[" not in host and not re.search(r"[\[\]:]", rest[1:]):
            return host, rest[1:]
        return entry, ""
    host, colon, port = entry.rpartition(":")
    if not colon or ":" in host or re.search(r"[\[\]]", entry):
        return entry, ""
    return host, port


def _network(text: str) -> IPv4Network | IPv6Network | None:
    """Read address/bits; host bits are cut off, a mapped IPv4 network is an IPv4 network."""
    host, slash, bits = text.partition("/")
    if not (slash and bits.isascii() and bits.isdigit()) or "%" in host:
        return None
    try:
        network = ip_network((host, int(bits)), strict=False)
    except ValueError:
        return None
    return as_ipv4(network) if isinstance(network, IPv6Network) else network


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Read an address as the kernel connects to it; see addresses.py."""
    try:
        return reached_address(text)
    except ValueError:
        return None


def _ascii(name: str) -> str:
    """A name in DNS form; a name without one stays unchanged, and matches nothing."""
    if name.isascii():
        return name
    try:
        return name.encode("idna").decode("ascii")
    except UnicodeError:
        return name


def _first(environment: Mapping[str, str], *names: str) -> tuple[str, str]:
    return next(((name, environment[name]) for name in names if environment.get(name)), ("", ""))


def _decoded(text: str) -> str:
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape")


def _read_place(place: str, default_port: int, variable: str) -> HostPort:
    """Read ``host``, ``host:port``, ``[v6]`` or ``[v6]:port``."""
    if place.endswith(":"):  # RFC 3986 §3.2.3: a port may be empty
        place = place[:-1]
    has_port = place.rpartition("]")[2].count(":") > 0
    try:
        return HostPort.parse(_ascii(place) if has_port else f"{_ascii(place)}:{default_port}")
    except ValueError:
        # Without the cause, which quotes the text.
        raise ConfigError(f"{variable}: invalid proxy address: {_FORM}") from None
