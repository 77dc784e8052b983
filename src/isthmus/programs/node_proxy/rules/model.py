"""What the rules are made of: ports of Services and the endpoints behind them, per IP family.

Only what a packet can meet is here. How objects of the API become these values is said in
objects.py, and how they are kept up to date in tracker.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from isthmus.dial.rules_service_names import ServiceName


class IpFamily(Enum):
    """An IP family; the value is Kubernetes' word for it."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"

    @property
    def version(self) -> int:
        return 4 if self is IpFamily.IPV4 else 6


class PortProtocol(Enum):
    """A protocol of a port; the value is what iptables and nft call it."""

    TCP = "tcp"
    UDP = "udp"
    SCTP = "sctp"


@dataclass(frozen=True, slots=True)
class PortKey:
    """One port of one Service; ``str()`` is ``namespace/name:port``, as kube-proxy writes it."""

    service: ServiceName
    port: str
    protocol: PortProtocol

    def __str__(self) -> str:
        return f"{self.service}:{self.port}" if self.port else str(self.service)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePort:
    """One port of one Service in one IP family: where it is reached, and by which policies.

    Addresses are all of that family. ``node_port``, ``health_check_node_port`` and
    ``affinity_s`` are 0 where there is none.
    """

    key: PortKey
    cluster_ip: str
    port: int
    node_port: int = 0
    external_ips: tuple[str, ...] = ()
    load_balancer_ips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    affinity_s: int = 0
    internal_local: bool = False
    external_local: bool = False
    health_check_node_port: int = 0

    @property
    def external(self) -> bool:
        """Reached by something else than its cluster IP."""
        return bool(self.node_port or self.external_ips or self.load_balancer_ips)

    @property
    def uses_cluster_endpoints(self) -> bool:
        """Some of its traffic may go to any node."""
        # Pods and the node itself reach "Local" external addresses as if they were cluster IPs.
        return not self.internal_local or self.external

    @property
    def uses_local_endpoints(self) -> bool:
        """Some of its traffic stays on this node."""
        return self.internal_local or (self.external_local and self.external)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One address and port behind a Service; ``local`` ones are on this node."""

    ip: str
    port: int
    local: bool = False
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    zone_hints: frozenset[str] = frozenset()
    node_hints: frozenset[str] = frozenset()

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenEndpoints:
    """The endpoints of a port that this node uses (service_ports.py), each list sorted by its text.

    ``cluster`` are for policy Cluster, ``local`` for policy Local, ``reachable`` all of either.
    ``exist`` is true if there are usable ones anywhere, even where none of these lists has any.
    ``serving`` are all that serve, chosen or not: flows to them that the kernel remembers are good.
    """

    cluster: tuple[Endpoint, ...] = ()
    local: tuple[Endpoint, ...] = ()
    reachable: tuple[Endpoint, ...] = ()
    exist: bool = False
    serving: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedPort:
    """A port with what is behind it. An unchanged one is the same object in the next view."""

    port: ServicePort
    backends: ChosenEndpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceView:
    """All that is to be programmed for one family; ports are sorted by their keys' text."""

    family: IpFamily
    ports: Mapping[PortKey, BackedPort]
    endpoints: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A view, and how it differs from the one taken before.

    ``changed`` are the Services of which anything changed in this family, removed ones included.
    ``udp`` says that endpoints of UDP ports changed, so that the kernel may remember gone ones.
    ``triggers`` are the times, in seconds since 1970, at which what changed had changed.
    ``services`` and ``endpoint_slices`` are how many changes of either it is made of.
    """

    view: ServiceView
    changed: frozenset[ServiceName] = frozenset()
    udp: bool = False
    services: int = 0
    endpoint_slices: int = 0
    triggers: tuple[float, ...] = ()
