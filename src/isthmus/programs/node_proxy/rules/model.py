"""The input of the rules: Service ports and the endpoints behind them, per IP family.

Only what can affect a packet is here. reading.py turns API objects into these values, and
tracker.py keeps them up to date.
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
    """An IP family; the value is its name in Kubernetes."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"

    @property
    def version(self) -> int:
        return 4 if self is IpFamily.IPV4 else 6


class PortProtocol(Enum):
    """The protocol of a port; the value is iptables' and nft's name for it."""

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
    """One port of one Service in one IP family: its addresses and its policies.

    All addresses are of that family. ``node_port``, ``health_check_node_port`` and ``affinity_s``
    are 0 if the Service has none.
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
        """Whether the port has addresses besides its cluster IP."""
        return bool(self.node_port or self.external_ips or self.load_balancer_ips)

    @property
    def uses_cluster_endpoints(self) -> bool:
        """Whether some of its traffic may go to any node."""
        # Pods and the node itself reach "Local" external addresses as if they were cluster IPs.
        # Pods and the node itself reach "Local" external addresses as if they were cluster IPs.
        return not self.internal_local or self.external

    @property
    def uses_local_endpoints(self) -> bool:
        """Whether some of its traffic has to stay on this node."""
        return self.internal_local or (self.external_local and self.external)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One address and port behind a Service; ``local`` if the endpoint is on this node."""

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
    """The endpoints of a port that this node uses (see tracker.py), sorted by their text.

    ``cluster`` are for policy Cluster, ``local`` for policy Local, ``reachable`` is their union.
    ``exist`` is true if there are usable endpoints anywhere, even if all these lists are empty.
    ``serving`` are all serving endpoints, chosen or not: conntrack entries to them are kept.
    """

    cluster: tuple[Endpoint, ...] = ()
    local: tuple[Endpoint, ...] = ()
    reachable: tuple[Endpoint, ...] = ()
    exist: bool = False
    serving: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackedPort:
    """A port and its endpoints. An unchanged port is the same object in the next view."""

    port: ServicePort
    backends: ChosenEndpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceView:
    """Everything to be programmed for one family; ports are sorted by the text of their keys."""

    family: IpFamily
    ports: Mapping[PortKey, BackedPort]
    endpoints: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A view, and its differences from the previous one.

    ``changed`` are the Services that changed in this family, removed ones included. ``udp`` is true
    if endpoints of UDP ports changed, so that conntrack may have entries to removed endpoints.
    ``triggers`` are the times of the underlying changes, in seconds since 1970. ``services`` and
    ``endpoint_slices`` count the object changes in this update.
    """

    view: ServiceView
    changed: frozenset[ServiceName] = frozenset()
    udp: bool = False
    services: int = 0
    endpoint_slices: int = 0
    triggers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class SlicePort:
    """A port of an EndpointSlice; its name is that of the Service's port."""

    name: str
    protocol: PortProtocol
    port: int


class SliceEndpoint(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One address of an EndpointSlice in canonical form; ``node`` is empty if unknown.

    This is a msgspec struct and not a dataclass because there are tens of thousands of them: one
    takes 0.2 µs and 88 bytes instead of 1.3 µs and 120.
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

    ``changed_at`` is the time of the pod change that triggered the slice's last change, in seconds
    since 1970, or 0; it does not count for equality.
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
    """A port of a Service; ``node_port`` is 0 if there is none."""

    name: str = ""
    protocol: PortProtocol = PortProtocol.TCP
    port: int
    node_port: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceObject:
    """A Service, with addresses in canonical form.

    A Service that the node proxy does not handle (headless, ExternalName, another proxy's) has no
    ``cluster_ips``. ``load_balancer_ips`` are those whose packets arrive at nodes unchanged (ipMode
    VIP). ``affinity_s`` and ``health_check_node_port`` are 0 if the Service has none.
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
    """The Node object of this node.

    ``addresses`` has internal addresses before external ones; ``taints`` are their keys.
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
    """Changes received together: objects in their present state, and keys of removed ones.

    If ``complete``, ``put`` is the whole list of existing objects.
    """

    put: Sequence[V] = ()
    drop: Sequence[K] = ()
    complete: bool = False


ServiceBatch = ObjectBatch[ServiceName, ServiceObject]
SliceBatch = ObjectBatch[tuple[str, str], SliceObject]


def family_of(address: str) -> IpFamily:
    """The family of a canonical address or network."""
    return IpFamily.IPV6 if ":" in address else IpFamily.IPV4
