"""The configuration of ``isthmus apiserver-proxy`` as one value, from flags or from a file.

Flags are read in settings.py, the file in settings_file.py, haproxy's in settings_haproxy_cfg.py.
Defaults are those of the haproxy.cfg that HyperShift writes, where it has any.
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

#: HyperShift's address of the ``kubernetes`` Service's endpoint, the same on every node.
ADVERTISED = "172.20.0.1"
PORT = 6443
MAX_UPSTREAMS = 64
MAX_TLVS = 32
MOST_CONNECTIONS = 1_000_000
MAX_RETRIES = 16
# With the addresses, below the header size that other programs read.
_MAX_TLV_BYTES = MAX_HEADER_BYTES // 8
_TLV_TYPE = re.compile(r"0[xX][0-9A-Fa-f]{1,2}|0|[1-9][0-9]{0,2}", re.ASCII)
_PATH = re.compile(r"/[!-~]*", re.ASCII)

#: An address to listen on, empty for all addresses, and a port.
ListenAt = tuple[str, int]


class Checks(Enum):
    """How the health of an upstream is checked."""

    HTTPS = "https"
    TCP = "tcp"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """How upstreams are checked; files are paths, empty if not given."""

    kind: Checks = Checks.HTTPS
    path: str = "/version"
    ca: str = ""
    cert: str = ""
    key: str = ""
    #: The name that the certificate must have; empty is the upstream's own host.
    server_name: str = ""
    interval_s: float = 10.0
    #: 0 is the interval, as in haproxy.
    timeout_s: float = 0.0
    bounds: Bounds = field(default_factory=Bounds)
    #: Statuses that are healthy besides 2xx and 3xx.
    accepted: tuple[int, ...] = (401, 403)

    def is_alive(self, status: int) -> bool:
        """Whether this status of an answer means a healthy server."""
        return 200 <= status < 400 or status in self.accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughPlan:
    """An HTTP proxy on the way to the upstreams, and the hosts reached without it."""

    proxy: ProxyAddress
    ca: str = ""
    no_proxy: tuple[str, ...] = ()
    #: The Service and pod networks of the cluster.
    networks: tuple[str, ...] = ()

    def proxy_for(self, upstream: HostPort, *, own: Sequence[ListenAt]) -> ProxyAddress | None:
        """The proxy on the way to an upstream; None if it is reached directly.

        NO_PROXY has its usual meaning, and as in HyperShift three kinds of entry exempt the
        apiserver whatever its name is: one that contains "kubernetes", one that is the cluster's
        Service or pod network, and one that exempts an address on which this node listens for the
        apiserver (``own``).
        """
        networks = {_network(text) for text in self.networks}
        for entry in self.no_proxy:
            if "kubernetes" in entry or (_network(entry) or entry) in networks:
                return None
        rules = ProxyRules.from_environment({"NO_PROXY": ",".join(self.no_proxy)})
        rules = replace(rules, proxy=self.proxy)
        # Loopback is exempt without an entry, which says nothing about the apiserver.
        told = [at for at in own if at[0] and not is_loopback(at[0])]
        if any(rules.proxy_for(host, port) is None for host, port in told):
            return None
        return rules.proxy_for(upstream.host, upstream.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPlan:
    """The configuration of a proxy."""

    listen: tuple[ListenAt, ...] = ((ADVERTISED, PORT),)
    manage_address: bool = True
    uplinks: tuple[str, ...] = ()
    upstreams: tuple[HostPort, ...] = ()
    check: CheckPlan = field(default_factory=CheckPlan)
    connect_timeout_s: float = 10.0
    #: Idle connections are reset after this long; 0 is never.
    idle_timeout_s: float = 600.0
    retries: int = 3
    max_connections: int = 7000
    #: The share of one source on another machine; 0 is three quarters.
    max_connections_per_source: int = 0
    resolve_every_s: float = 30.0
    #: TLVs of the PROXY header; None sends no header.
    proxy_protocol: tuple[Tlv, ...] | None = None
    through: ThroughPlan | None = None

    def proxy_for(self, upstream: HostPort) -> ProxyAddress | None:
        """The HTTP proxy on the way to an upstream; None if it is reached directly."""
        return None if self.through is None else self.through.proxy_for(upstream, own=self.listen)

    @property
    def managed(self) -> tuple[IPv4Address | IPv6Address, ...]:
        """The addresses to put on ``lo``: neither loopback, which exists, nor the wildcard."""
        if not self.manage_address:
            return ()
        found = [ip_address(host) for host, _ in self.listen if is_address(host)]
        wanted = [one for one in found if not (one.is_loopback or one.is_unspecified)]
        return tuple(dict.fromkeys(wanted))

    def leads_to_itself(self, upstream: HostPort) -> bool:
        """Whether an upstream given by its address is where this proxy listens."""
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
    """Check a plan; ``listen`` and ``upstream`` are the names of these settings in errors.

    Raises:
        ConfigError: names the setting and says what is wrong.
    """
    for index, at in enumerate(plan.listen):
        if at[1] and at in plan.listen[:index]:
            raise ConfigError(f"{listen}: {at[0]} port {at[1]} is given twice")
    for address in plan.managed:
        try:
            parse_bind_address(str(address))
        except ConfigError as error:
            # The error names the agent's flag for such an address.
            raise ConfigError(str(error).replace("--bind-address", listen)) from None
    for name in plan.uplinks:
        check_interface("uplink-interface", name)
    if NO_UPLINK in plan.uplinks and len(plan.uplinks) > 1:
        raise ConfigError(f"--uplink-interface={NO_UPLINK} cannot be combined with an interface")
    if "lo" in plan.uplinks:
        raise ConfigError("--uplink-interface lo would drop the connections of this node")
    if len(plan.upstreams) > MAX_UPSTREAMS:
        raise ConfigError(
            f"{upstream}: {len(plan.upstreams)} given, at most {MAX_UPSTREAMS} allowed"
        )
    for index, one in enumerate(plan.upstreams):
        if one in plan.upstreams[:index]:
            raise ConfigError(f"{upstream} {one} is given twice")
        if plan.leads_to_itself(one):
            raise ConfigError(f"{upstream} {one} is an address that this proxy itself listens on")


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
        raise ValueError("is the TLV of a checksum or of padding, which is not sent")
    return number


def check_tlvs(tlvs: tuple[Tlv, ...]) -> str:
    """Why these TLVs do not fit into one header; empty if they do."""
    if len(tlvs) > MAX_TLVS:
        return f"are {len(tlvs)} TLVs; the maximum is {MAX_TLVS}"
    if any(len(tlv.value) > _MAX_TLV_BYTES for tlv in tlvs):
        return f"have a value of more than {_MAX_TLV_BYTES} bytes"
    if sum(3 + len(tlv.value) for tlv in tlvs) > MAX_HEADER_BYTES // 2:
        return f"are more than {MAX_HEADER_BYTES // 2} bytes together"
    return ""


def read_path(text: str) -> str:
    """Read the path of a check, with its query.

    Raises:
        ValueError: it cannot be used in a request.
    """
    if not _PATH.fullmatch(text) or len(text) > 1024 or "#" in text:
        raise ValueError("is not a path such as /version, percent-encoded")
    return text


def read_status(text: str) -> int:
    """Read an HTTP status.

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
