"""What the rules are made of: ports of Services and the endpoints behind them, per IP family.

Only what a packet can meet is here. How objects of the API become these values is said in
reading.py, and how they are kept up to date in tracker.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

import msgspec

from isthmus.dial.rules_service_names import ServiceName

K = TypeVar("K")
V = TypeVar("V")


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


@dataclass(frozen=True, slots=True)
class SlicePort:
    """A port of an EndpointSlice; the name is that of the Service's port."""

    name: str
    protocol: PortProtocol
    port: int


class SliceEndpoint(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One address of an EndpointSlice, written canonically; ``node`` is empty where unknown.

    A struct of msgspec, not a dataclass: there are tens of thousands, and one takes 0.2 µs and
    88 bytes instead of 1.3 µs and 120.
    """

    address: str
    node: str = ""
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    zone_hints: frozenset[str] = frozenset()
    node_hints: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceObject:
    """An EndpointSlice of one IP family that belongs to a Service.

    ``changed_at`` is when the pods changed that made it change, in seconds since 1970, or 0; two
    objects that differ in nothing else are equal.
    """

    namespace: str
    name: str
    service: ServiceName
    family: IpFamily
    ports: tuple[SlicePort, ...] = ()
    endpoints: tuple[SliceEndpoint, ...] = ()
    changed_at: float = field(default=0.0, compare=False)

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPort:
    """A port of a Service; ``node_port`` is 0 where there is none."""

    name: str = ""
    protocol: PortProtocol = PortProtocol.TCP
    port: int
    node_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceObject:
    """A Service, its addresses written canonically.

    One that is not for us (headless, ExternalName, proxied by something else) has no
    ``cluster_ips``. ``load_balancer_ips`` are those whose packets reach nodes as they are
    (ipMode VIP). ``affinity_s`` and ``health_check_node_port`` are 0 where there is none.
    """

    name: ServiceName
    cluster_ips: tuple[str, ...] = ()
    ports: tuple[ObjectPort, ...] = ()
    external_ips: tuple[str, ...] = ()
    load_balancer_ips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    affinity_s: int = 0
    internal_local: bool = False
    external_local: bool = False
    health_check_node_port: int = 0

    @property
    def key(self) -> ServiceName:
        return self.name

    def cluster_ip(self, family: IpFamily) -> str:
        return next((ip for ip in self.cluster_ips if family_of(ip) is family), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeObject:
    """The node that we are on.

    ``addresses`` are the internal ones first, then the external ones; ``taints`` are their keys.
    """

    name: str
    addresses: tuple[str, ...] = ()
    pod_cidrs: tuple[str, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    deleting: bool = False

    def addresses_of(self, family: IpFamily) -> tuple[str, ...]:
        return tuple(ip for ip in self.addresses if family_of(ip) is family)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectBatch(Generic[K, V]):
    """What was heard of at once: objects as they are now, and the keys of those that are gone.

    If ``complete``, ``put`` is all that there is.
    """

    put: Sequence[V] = ()
    drop: Sequence[K] = ()
    complete: bool = False


ServiceBatch = ObjectBatch[ServiceName, ServiceObject]
SliceBatch = ObjectBatch[tuple[str, str], SliceObject]


def family_of(address: str) -> IpFamily:
    """The family of an address or network that is one, written canonically."""
    return IpFamily.IPV6 if ":" in address else IpFamily.IPV4
