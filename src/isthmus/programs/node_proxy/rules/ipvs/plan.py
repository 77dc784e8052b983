"""What a view means in ipvs mode: entries of sets, virtual servers, addresses to have, and sysctls.

The text of the iptables part is rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from isthmus.programs.node_proxy.rules.ipvs.servers import (
    IpvsDestination,
    IpvsFlags,
    ServerKey,
    VirtualServer,
)
from isthmus.programs.node_proxy.rules.ipvs.sets import NODE_PORTS, IpSet, ip_port, net
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    Endpoint,
    PortKey,
    PortProtocol,
    ServiceView,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings

DEFAULT_SCHEDULER = "rr"
#: The scheduler that hashes, and needs to be told to hash the source's port, too.
MAGLEV = "mh"


@dataclass(frozen=True, slots=True, kw_only=True)
class IpvsOptions:
    """The settings of kube-proxy's ``ipvs`` section; a timeout of 0 leaves the kernel's."""

    scheduler: str = DEFAULT_SCHEDULER
    exclude_cidrs: tuple[str, ...] = ()
    strict_arp: bool = False
    tcp_timeout_s: int = 0
    tcp_fin_timeout_s: int = 0
    udp_timeout_s: int = 0


@dataclass(frozen=True, slots=True, order=True)
class BlockedAddress:
    """A load balancer's address that this node itself may not reach: no source range has it."""

    ip: str
    protocol: str
    port: int


@dataclass(slots=True, kw_only=True)
class IpvsPlan:
    """All that has to be in the kernel for one family.

    ``addresses`` are those to be had on the interface of ours. ``no_local`` counts Services, by
    traffic policy.
    """

    sets: dict[IpSet, set[str]] = field(default_factory=lambda: {each: set() for each in IpSet})
    servers: dict[VirtualServer, frozenset[IpvsDestination]] = field(default_factory=dict)
    addresses: set[str] = field(default_factory=set)
    blocked: set[BlockedAddress] = field(default_factory=set)
    no_local: dict[str, int] = field(default_factory=dict)

    def entries(self) -> Mapping[IpSet, frozenset[str]]:
        return {each: frozenset(found) for each, found in self.sets.items()}


def plan(
    view: ServiceView,
    settings: RuleSettings,
    options: IpvsOptions,
    node_addresses: Iterable[str],
) -> IpvsPlan:
    """Say what a view means on a node that has these addresses.

    They are those besides loopback ones and the ones that it has for Services.
    """
    made = IpvsPlan()
    node = frozenset(node_addresses)
    chosen = settings.node_port_addresses
    # Addresses of Services are this host's, too, but nobody's to take node ports.
    node_ips = sorted(node if chosen is None else node.intersection(chosen))
    for backed in view.ports.values():
        _Port(made, backed, settings, options).put(node, node_ips)
    made.sets[IpSet.IPVS_IPS] = set(made.addresses)
    made.no_local = _no_local(view.ports)
    return made


class _Port:
    """Puts one port of a Service into a plan."""

    def __init__(
        self, made: IpvsPlan, backed: BackedPort, settings: RuleSettings, options: IpvsOptions
    ) -> None:
        self.made = made
        self.port = backed.port
        self.backends = backed.backends
        self.settings = settings
        self.options = options
        self.protocol = backed.port.key.protocol

    def put(self, node: frozenset[str], node_ips: list[str]) -> None:
        """Put all of it: every way in which the port is reached."""
        sets, port = self.made.sets, self.port
        for each in {*self.backends.reachable, *self.backends.serving}:
            if each.local:
                entry = ip_port(each.ip, self.protocol, each.port, each.ip)
                sets[IpSet.LOOP_BACK].add(entry)
        sets[IpSet.CLUSTER_IP].add(self._entry(port.cluster_ip))
        self._serve(port.cluster_ip, local=port.internal_local, bind=True)
        for ip in port.external_ips:
            into = IpSet.EXTERNAL_IP_LOCAL if port.external_local else IpSet.EXTERNAL_IP
            sets[into].add(self._entry(ip))
            self._serve(ip, local=port.external_local, bind=ip not in node)
        for ip in port.load_balancer_ips:
            self._load_balancer(ip)
            self._serve(ip, local=port.external_local, bind=ip not in node)
        if port.node_port and node_ips:
            self._node_port(node_ips)
        if port.health_check_node_port:
            sets[IpSet.HEALTH_CHECK_NODE_PORT].add(str(port.health_check_node_port))

    def _load_balancer(self, ip: str) -> None:
        sets, port, entry = self.made.sets, self.port, self._entry(ip)
        sets[IpSet.LOAD_BALANCER].add(entry)
        if port.external_local:
            sets[IpSet.LOAD_BALANCER_LOCAL].add(entry)
        if not port.source_ranges:
            return
        sets[IpSet.LOAD_BALANCER_FW].add(entry)
        for cidr in port.source_ranges:
            sets[IpSet.LOAD_BALANCER_SOURCE_CIDR].add(
                ip_port(ip, self.protocol, port.port, net(cidr))
            )
        # What the node itself sends to the address has that address as its source, too.
        if _contains(port.source_ranges, self.settings.node_ip):
            sets[IpSet.LOAD_BALANCER_SOURCE_IP].add(ip_port(ip, self.protocol, port.port, ip))
        else:
            self.made.blocked.add(BlockedAddress(ip, self.protocol.value, port.port))

    def _node_port(self, node_ips: list[str]) -> None:
        number = self.port.node_port
        entries = {str(number)}
        if self.protocol is PortProtocol.SCTP:
            entries = {ip_port(ip, self.protocol, number) for ip in node_ips}
        every, local = NODE_PORTS[self.protocol]
        self.made.sets[every] |= entries
        if self.port.external_local:
            self.made.sets[local] |= entries
        for ip in node_ips:
            self._serve(ip, local=self.port.external_local, bind=False, number=number)

    def _entry(self, ip: str) -> str:
        return ip_port(ip, self.protocol, self.port.port)

    def _serve(self, ip: str, *, local: bool, bind: bool, number: int = 0) -> None:
        flags = IpvsFlags.NONE
        if self.port.affinity_s:
            flags |= IpvsFlags.PERSISTENT
        if self.options.scheduler == MAGLEV:
            flags |= IpvsFlags.SOURCE_PORT
        server = VirtualServer(
            key=ServerKey(ip, number or self.port.port, self.protocol),
            scheduler=self.options.scheduler,
            flags=flags,
            timeout_s=self.port.affinity_s,
        )
        self.made.servers[server] = frozenset(
            IpvsDestination(each.ip, each.port) for each in self._endpoints(local)
        )
        if bind:
            self.made.addresses.add(ip)

    def _endpoints(self, local: bool) -> tuple[Endpoint, ...]:
        # Without local ones all are taken: pods of this node must reach them, and ipvs cannot
        # tell them from others. An outsider's packets get no answer it would take.
        return (local and self.backends.local) or self.backends.cluster


def _contains(cidrs: Iterable[str], ip: str) -> bool:
    if not ip:
        return False
    address = ip_address(ip)
    nets = (ip_network(cidr, strict=False) for cidr in cidrs)
    return any(net.version == address.version and address in net for net in nets)


def _no_local(ports: Mapping[PortKey, BackedPort]) -> dict[str, int]:
    internal, external = set(), set()
    for key, backed in ports.items():
        if backed.backends.local or not backed.backends.exist:
            continue
        if not backed.port.uses_local_endpoints:
            continue
        if backed.port.internal_local:
            internal.add(key.service)
        if backed.port.external_local:
            external.add(key.service)
    return {"internal": len(internal), "external": len(external)}


#: Reusing a connection's port lost packets between these, unless conn_reuse_mode is 0.
_REUSE_KNOWN = (4, 1)
_REUSE_FIXED = (5, 9)


def sysctls(options: IpvsOptions, kernel: tuple[int, int]) -> list[tuple[str, int]]:
    """Give what has to be set, in order, on a kernel of this version."""
    wanted = [("net/ipv4/vs/conntrack", 1)]
    if _REUSE_KNOWN <= kernel < _REUSE_FIXED:
        wanted.append(("net/ipv4/vs/conn_reuse_mode", 0))
    wanted += [
        ("net/ipv4/vs/expire_nodest_conn", 1),
        ("net/ipv4/vs/expire_quiescent_template", 1),
        ("net/ipv4/ip_forward", 1),
    ]
    if options.strict_arp:
        # Answer for an address only on the interface that has it: none of Services' has.
        wanted += [("net/ipv4/conf/all/arp_ignore", 1), ("net/ipv4/conf/all/arp_announce", 2)]
    return wanted


def kernel_version(release: str) -> tuple[int, int]:
    """Read the first two numbers of a kernel's release, as uname gives it."""
    numbers = [part for part in release.replace("-", ".").split(".")[:2] if part.isdigit()]
    major, minor = (int(part) for part in (*numbers, "0", "0")[:2])
    return major, minor
