"""What ``isthmus apiserver-proxy`` is to do, as one value, whether flags or a file say it.

Flags are apiserver_proxy.py, the file apiserver_proxy_file.py, haproxy's own haproxy_cfg.py. The
defaults are those of the haproxy.cfg that HyperShift writes, where that says anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from isthmus.errors import ConfigError
from isthmus.net.rules_proxies import ProxyAddress, ProxyRules
from isthmus.net.settings_bind import NO_UPLINK, check_interface, parse_bind_address
from isthmus.programs.apiserver_proxy.rules import Bounds
from isthmus.text.addresses import is_loopback, plain_address, reached_address
from isthmus.values import HostPort, is_address
from isthmus.wire.proxy_protocol import CRC32C, MAX_HEADER_BYTES, NOOP, Tlv

#: The address that HyperShift gives the ``kubernetes`` service's endpoint on every node.
ADVERTISED = "172.20.0.1"
PORT = 6443
MAX_UPSTREAMS = 64
MAX_TLVS = 32
MOST_CONNECTIONS = 1_000_000
MAX_RETRIES = 16
# Below what other programs read as a header, together with the addresses.
_MAX_TLV_BYTES = MAX_HEADER_BYTES // 8
_TLV_TYPE = re.compile(r"0[xX][0-9A-Fa-f]{1,2}|0|[1-9][0-9]{0,2}", re.ASCII)
_PATH = re.compile(r"/[!-~]*", re.ASCII)

#: An address to listen on, empty for all of them, and a port.
ListenAt = tuple[str, int]


class Checks(Enum):
    """How it is found out whether an upstream is well."""

    HTTPS = "https"
    TCP = "tcp"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """How upstreams are checked; files are paths, an empty one is not given."""

    kind: Checks = Checks.HTTPS
    path: str = "/version"
    ca: str = ""
    cert: str = ""
    key: str = ""
    #: What the certificate must be for; empty is the upstream's own host.
    server_name: str = ""
    interval_s: float = 10.0
    #: 0 is as long as the interval, as in haproxy.
    timeout_s: float = 0.0
    bounds: Bounds = field(default_factory=Bounds)
    #: Statuses that speak for life besides 2xx and 3xx.
    accepted: tuple[int, ...] = (401, 403)

    def is_alive(self, status: int) -> bool:
        """Whether an answer with this status is one of a server that is well."""
        return 200 <= status < 400 or status in self.accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughPlan:
    """An HTTP proxy on the way to the upstreams, and who is reached without it."""

    proxy: ProxyAddress
    ca: str = ""
    no_proxy: tuple[str, ...] = ()
    #: The cluster's service and pod networks.
    networks: tuple[str, ...] = ()

    def proxy_for(self, upstream: HostPort, *, own: Sequence[ListenAt]) -> ProxyAddress | None:
        """The proxy on the way to an upstream; None reaches it directly.

        NO_PROXY as HyperShift reads it for the apiserver: as everybody does, and besides, an entry
        with "kubernetes" in it, one that is the cluster's service or pod network, or one that
        exempts an address where this node listens for the apiserver (``own``) exempts the
        apiserver, whatever it is called.
        """
        networks = {_network(text) for text in self.networks}
        for entry in self.no_proxy:
            if "kubernetes" in entry or (_network(entry) or entry) in networks:
                return None
        rules = ProxyRules.from_environment({"NO_PROXY": ",".join(self.no_proxy)})
        rules = replace(rules, proxy=self.proxy)
        # Loopback is exempt without an entry: that says nothing about the apiserver.
        told = [at for at in own if at[0] and not is_loopback(at[0])]
        if any(rules.proxy_for(host, port) is None for host, port in told):
            return None
        return rules.proxy_for(upstream.host, upstream.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlan:
    """Everything that decides what becomes of a connection."""

    listen: tuple[ListenAt, ...] = ((ADVERTISED, PORT),)
    manage_address: bool = True
    uplinks: tuple[str, ...] = ()
    upstreams: tuple[HostPort, ...] = ()
    check: CheckPlan = field(default_factory=CheckPlan)
    connect_timeout_s: float = 10.0
    #: Reset a connection without a byte for so long; 0 never does.
    idle_timeout_s: float = 600.0
    retries: int = 3
    max_connections: int = 7000
    #: Of these, for one source on another machine; 0 is three quarters.
    max_connections_per_source: int = 0
    resolve_every_s: float = 30.0
    #: What a PROXY header says besides the addresses; None sends none.
    proxy_protocol: tuple[Tlv, ...] | None = None
    through: ThroughPlan | None = None

    def proxy_for(self, upstream: HostPort) -> ProxyAddress | None:
        """The HTTP proxy on the way to an upstream; None reaches it directly."""
        return None if self.through is None else self.through.proxy_for(upstream, own=self.listen)

    @property
    def managed(self) -> tuple[IPv4Address | IPv6Address, ...]:
        """The addresses to put on ``lo``: neither loopback, which is there, nor all addresses."""
        if not self.manage_address:
            return ()
        found = [ip_address(host) for host, _ in self.listen if is_address(host)]
        wanted = [one for one in found if not (one.is_loopback or one.is_unspecified)]
        return tuple(dict.fromkeys(wanted))

    def leads_to_itself(self, upstream: HostPort) -> bool:
        """Whether an upstream, given by its address, is where we listen."""
        if not is_address(upstream.host):
            return False
        there = reached_address(upstream.host)
        for host, port in self.listen:
            if port != upstream.port or (host and not is_address(host)):
                continue
            here = plain_address(host) if host else None
            everywhere = here is None or here.is_unspecified
            if here == there or (everywhere and there.is_loopback):
                return True
        return False


def check_plan(plan: ProxyPlan, *, listen: str = "--listen", upstream: str = "--upstream") -> None:
    """Hold a plan against itself; ``listen`` and ``upstream`` are what sentences call them.

    Raises:
        ConfigError: one sentence.
    """
    for index, at in enumerate(plan.listen):
        if at[1] and at in plan.listen[:index]:
            raise ConfigError(f"{listen}: {at[0]} port {at[1]} is there twice")
    for address in plan.managed:
        try:
            parse_bind_address(str(address))
        except ConfigError as error:
            # It names the flag of an agent that is for the same kind of address.
            raise ConfigError(str(error).replace("--bind-address", listen)) from None
    for name in plan.uplinks:
        check_interface("uplink-interface", name)
    if NO_UPLINK in plan.uplinks and len(plan.uplinks) > 1:
        raise ConfigError(f"--uplink-interface={NO_UPLINK} cannot stand beside an interface")
    if "lo" in plan.uplinks:
        raise ConfigError("--uplink-interface lo would drop the connections of this node")
    if len(plan.upstreams) > MAX_UPSTREAMS:
        raise ConfigError(f"{upstream}: {len(plan.upstreams)} are more than {MAX_UPSTREAMS}")
    for index, one in enumerate(plan.upstreams):
        if one in plan.upstreams[:index]:
            raise ConfigError(f"{upstream} {one} is there twice")
        if plan.leads_to_itself(one):
            raise ConfigError(f"{upstream} {one} is where this proxy listens itself")


def read_listen(text: str) -> ListenAt:
    """Read ``HOST:PORT``, ``[V6]:PORT`` or ``:PORT``.

    Raises:
        ValueError: it is none; says what is wrong, behind the text.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and int(port[:6]) < 65536):
        raise ValueError("is not [HOST]:PORT such as 172.20.0.1:6443 or [fd00::1]:6443")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("has an IPv6 address, which needs brackets")
    host = host[1:-1] if host.startswith("[") else host
    if host:
        try:
            HostPort(host, 1)
        except ValueError as error:
            raise ValueError(f"is not [HOST]:PORT: {error}") from None
    return host, int(port)


def read_upstream(text: str) -> HostPort:
    """Read ``HOST:PORT``.

    Raises:
        ValueError: it is none; says what is wrong, behind the text.
    """
    try:
        return HostPort.parse(text)
    except ValueError as error:
        raise ValueError(f"is not HOST:PORT: {error}") from None


def read_tlv_type(text: str) -> int:
    """Read the type of a TLV, written as in the specification: 0x20, or in decimal.

    Raises:
        ValueError: it is none, or one that says something else.
    """
    number = int(text, 0) if _TLV_TYPE.fullmatch(text) else 256
    if number > 255:
        raise ValueError("is not a TLV type from 0x00 to 0xFF")
    if number in (CRC32C, NOOP):
        raise ValueError("is a checksum or padding, which is not sent")
    return number


def check_tlvs(tlvs: tuple[Tlv, ...]) -> str:
    """Say why these cannot be in one header; empty when they can."""
    if len(tlvs) > MAX_TLVS:
        return f"are {len(tlvs)} TLVs, at most {MAX_TLVS} are possible"
    if any(len(tlv.value) > _MAX_TLV_BYTES for tlv in tlvs):
        return f"have a value of more than {_MAX_TLV_BYTES} bytes"
    if sum(3 + len(tlv.value) for tlv in tlvs) > MAX_HEADER_BYTES // 2:
        return f"are more than {MAX_HEADER_BYTES // 2} bytes together"
    return ""


def read_path(text: str) -> str:
    """Read the path, with its query, that a check asks for.

    Raises:
        ValueError: it cannot stand in a request.
    """
    if not _PATH.fullmatch(text) or len(text) > 1024 or "#" in text:
        raise ValueError("is not a path such as /version, percent-encoded")
    return text


def read_status(text: str) -> int:
    """Read a status of HTTP.

    Raises:
        ValueError: it is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) == 3 and 400 <= int(text) <= 599):
        raise ValueError("is not an HTTP status from 400 to 599")
    return int(text)


def _network(text: str) -> object:
    try:
        return ip_network(text) if "/" in text else None
    except ValueError:
        return None
