"""Plans ipvs mode from a view: ipsets, virtual servers, addresses, sysctls, iptables rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network

from isthmus.programs.node_proxy.rules.iptables.base import (
    FORWARD,
    MARK_MASQ,
    MASQ_IF_NOT_LOCAL,
    POSTROUTING,
    PROXY_FIREWALL,
    SERVICES,
    Jump,
    forward,
    mark_masq,
    masq_if_not_local,
    postrouting,
    quoted_words,
)
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
    IpFamily,
    PortKey,
    PortProtocol,
    ServiceView,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings

DEFAULT_SCHEDULER = "rr"
#: A hashing scheduler, which needs a flag to hash the source port as well.
MAGLEV = "mh"


@dataclass(frozen=True, slots=True, kw_only=True)
class IpvsOptions:
    """The settings of kube-proxy's ``ipvs`` section; a timeout of 0 keeps the kernel's."""

    scheduler: str = DEFAULT_SCHEDULER
    exclude_cidrs: tuple[str, ...] = ()
    strict_arp: bool = False
    tcp_timeout_s: int = 0
    tcp_fin_timeout_s: int = 0
    udp_timeout_s: int = 0


@dataclass(frozen=True, slots=True, order=True)
class BlockedAddress:
    """A load balancer address that this node itself may not use: no source range contains it."""

    ip: str
    protocol: str
    port: int


@dataclass(slots=True, kw_only=True)
class IpvsPlan:
    """Everything that the kernel needs for one family.

    ``addresses`` are for the interface that holds Service addresses. ``no_local`` counts Services
    without an endpoint on this node, by traffic policy.
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
    """Plan a view for a node with these addresses.

    They exclude loopback addresses and those that the node has for Services.
    """
    made = IpvsPlan()
    node = frozenset(node_addresses)
    chosen = settings.node_port_addresses
    # Service addresses are addresses of this host too, but do not accept node ports.
    node_ips = sorted(node if chosen is None else node.intersection(chosen))
    for backed in view.ports.values():
        _Port(made, backed, settings, options).put(node, node_ips)
    made.sets[IpSet.IPVS_IPS] = set(made.addresses)
    made.no_local = _no_local(view.ports)
    return made


class _Port:
    """Adds one Service port to a plan."""

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
        """Add the port under all of its addresses."""
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
        # The node uses the load balancer's address as the source for traffic to it.
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
        # Without local endpoints all are used: pods of this node must reach the Service, and ipvs
        # cannot tell them from other clients. Replies to outside clients are then lost.
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


#: Kernels between these versions lost packets on port reuse, unless conn_reuse_mode is 0.
_REUSE_KNOWN = (4, 1)
_REUSE_FIXED = (5, 9)


def sysctls(options: IpvsOptions, kernel: tuple[int, int]) -> list[tuple[str, int]]:
    """The sysctls to set, in order, on a kernel of this version."""
    wanted = [("net/ipv4/vs/conntrack", 1)]
    if _REUSE_KNOWN <= kernel < _REUSE_FIXED:
        wanted.append(("net/ipv4/vs/conn_reuse_mode", 0))
    wanted += [
        ("net/ipv4/vs/expire_nodest_conn", 1),
        ("net/ipv4/vs/expire_quiescent_template", 1),
        ("net/ipv4/ip_forward", 1),
    ]
    if options.strict_arp:
        # Answer ARP only on the interface that has the address; no Service address is on one.
        wanted += [("net/ipv4/conf/all/arp_ignore", 1), ("net/ipv4/conf/all/arp_announce", 2)]
    return wanted


def kernel_version(release: str) -> tuple[int, int]:
    """Read the first two numbers of a kernel release, as in uname."""
    numbers = [part for part in release.replace("-", ".").split(".")[:2] if part.isdigit()]
    major, minor = (int(part) for part in (*numbers, "0", "0")[:2])
    return major, minor


NODE_PORT = "KUBE-NODE-PORT"
LOAD_BALANCER = "KUBE-LOAD-BALANCER"
SOURCE_RANGES = "KUBE-SOURCE-RANGES-FIREWALL"
FILTER = "KUBE-IPVS-FILTER"
OUT_FILTER = "KUBE-IPVS-OUT-FILTER"

CHAINS: Mapping[str, tuple[str, ...]] = {
    "nat": (SERVICES, POSTROUTING, NODE_PORT, LOAD_BALANCER, MARK_MASQ),
    "filter": (FORWARD, NODE_PORT, PROXY_FIREWALL, SOURCE_RANGES, FILTER, OUT_FILTER),
}
#: Exists only with several matches; removed with the rest.
MORE_CHAINS: Mapping[str, tuple[str, ...]] = {"nat": (MASQ_IF_NOT_LOCAL,), "filter": ()}


JUMPS = (
    Jump("nat", "OUTPUT", SERVICES, "kubernetes service portals"),
    Jump("nat", "PREROUTING", SERVICES, "kubernetes service portals"),
    Jump("nat", "POSTROUTING", POSTROUTING, "kubernetes postrouting rules"),
    Jump("filter", "FORWARD", FORWARD, "kubernetes forwarding rules"),
    Jump("filter", "INPUT", NODE_PORT, "kubernetes health check rules"),
    Jump("filter", "INPUT", PROXY_FIREWALL, "kube-proxy firewall rules"),
    Jump("filter", "FORWARD", PROXY_FIREWALL, "kube-proxy firewall rules"),
    Jump("filter", "INPUT", FILTER, "kubernetes ipvs access filter"),
    Jump("filter", "OUTPUT", OUT_FILTER, "kubernetes ipvs access filter"),
)

#: The jumps by set: set, chain, target, direction, protocol. The set for policy Local precedes
#: the one that has all.
_NAT_SETS = (
    (IpSet.LOOP_BACK, POSTROUTING, "MASQUERADE", "dst,dst,src", ""),
    (IpSet.LOAD_BALANCER, SERVICES, LOAD_BALANCER, "dst,dst", ""),
    (IpSet.LOAD_BALANCER_LOCAL, LOAD_BALANCER, "RETURN", "dst,dst", ""),
    (IpSet.NODE_PORT_LOCAL_TCP, NODE_PORT, "RETURN", "dst", "tcp"),
    (IpSet.NODE_PORT_TCP, NODE_PORT, MARK_MASQ, "dst", "tcp"),
    (IpSet.NODE_PORT_LOCAL_UDP, NODE_PORT, "RETURN", "dst", "udp"),
    (IpSet.NODE_PORT_UDP, NODE_PORT, MARK_MASQ, "dst", "udp"),
    (IpSet.NODE_PORT_LOCAL_SCTP, NODE_PORT, "RETURN", "dst,dst", "sctp"),
    (IpSet.NODE_PORT_SCTP, NODE_PORT, MARK_MASQ, "dst,dst", "sctp"),
)
_FILTER_SETS = (
    (IpSet.LOAD_BALANCER_FW, PROXY_FIREWALL, SOURCE_RANGES, "dst,dst", ""),
    (IpSet.LOAD_BALANCER_SOURCE_CIDR, SOURCE_RANGES, "RETURN", "dst,dst,src", ""),
    (IpSet.LOAD_BALANCER_SOURCE_IP, SOURCE_RANGES, "RETURN", "dst,dst,src", ""),
)
#: Sets excepted from the rejection of unknown ports at Service addresses.
_REACHABLE = (
    (IpSet.LOAD_BALANCER, "dst,dst"),
    (IpSet.CLUSTER_IP, "dst,dst"),
    (IpSet.EXTERNAL_IP, "dst,dst"),
    (IpSet.EXTERNAL_IP_LOCAL, "dst,dst"),
    (IpSet.HEALTH_CHECK_NODE_PORT, "dst"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IpvsRuleset:
    """The rules of each table, in order; ``several`` if the chain for several matches is used."""

    nat: tuple[str, ...]
    filter: tuple[str, ...]
    several: bool

    def text(self) -> str:
        """Input for ``iptables-restore --noflush`` that rewrites all of the node proxy's chains."""
        lines: list[str] = []
        for table, rules in (("nat", self.nat), ("filter", self.filter)):
            more = MORE_CHAINS[table] if self.several else ()
            lines.append(f"*{table}")
            lines += [f":{chain} - [0:0]" for chain in (*CHAINS[table], *more)]
            lines += [*rules, "COMMIT"]
        return "\n".join([*lines, ""])


def rules(made: IpvsPlan, settings: RuleSettings) -> IpvsRuleset:
    """The rules for a plan; sets without entries are not matched."""
    used = {each for each, entries in made.sets.items() if entries}
    several = _several(settings)
    nat = [
        f"-A {SERVICES} -s {_loopback(settings.family)} -j RETURN",
        *_through(_NAT_SETS, used, settings.family),
        *_cluster_ips(used, settings),
        *_external_ips(used, settings.family),
        f"-A {SERVICES} -m addrtype --dst-type LOCAL -j {NODE_PORT}",
        f"-A {LOAD_BALANCER} -j {MARK_MASQ}",
        *_accepted(used, settings.family),
        *postrouting(settings).splitlines(),
        *mark_masq(settings).splitlines(),
        *(masq_if_not_local(_local(settings)).splitlines() if several else ()),
    ]
    family = settings.family
    kept = [f"-A {FILTER} {_in(each, way, family)} -j RETURN" for each, way in _REACHABLE]
    filtering = [
        *_through(_FILTER_SETS, used, family),
        f"-A {SOURCE_RANGES} -j DROP",
        *map(_not_from_here, sorted(made.blocked)),
        *forward(replace(settings, drop_invalid=False)).splitlines(),
        f"-A {NODE_PORT} {_matched(IpSet.HEALTH_CHECK_NODE_PORT, 'dst', family)} -j ACCEPT",
        *kept,
        f"-A {FILTER} -m conntrack --ctstate NEW {_in(IpSet.IPVS_IPS, 'dst', family)} -j REJECT",
    ]
    return IpvsRuleset(nat=tuple(nat), filter=tuple(filtering), several=several)


def _several(settings: RuleSettings) -> bool:
    return not settings.masquerade_all and len(settings.detector.matches(settings.family)) > 1


def _loopback(family: IpFamily) -> str:
    return "127.0.0.0/8" if family is IpFamily.IPV4 else "::1/128"


def _comment(comment: str) -> str:
    return f'-m comment --comment "{comment}"'


def _in(each: IpSet, way: str, family: IpFamily) -> str:
    return f"-m set --match-set {each.of(family)} {way}"


def _matched(each: IpSet, way: str, family: IpFamily) -> str:
    return f"{_comment(each.comment)} {_in(each, way, family)}"


def _through(
    table: Iterable[tuple[IpSet, str, str, str, str]], used: set[IpSet], family: IpFamily
) -> list[str]:
    return [
        f"-A {chain} {f'-p {protocol} ' if protocol else ''}{_matched(each, way, family)}"
        f" -j {target}"
        for each, chain, target, way, protocol in table
        if each in used
    ]


def _cluster_ips(used: set[IpSet], settings: RuleSettings) -> list[str]:
    if IpSet.CLUSTER_IP not in used:
        return []
    start = f"-A {SERVICES} {_matched(IpSet.CLUSTER_IP, 'dst,dst', settings.family)}"
    matches = settings.detector.matches(settings.family)
    if settings.masquerade_all:
        return [f"{start} -j {MARK_MASQ}"]
    if len(matches) > 1:
        return [f"{start} -j {MASQ_IF_NOT_LOCAL}"]
    if matches:
        return [f"{start} {quoted_words(matches[0].iptables_not)} -j {MARK_MASQ}"]
    # Without a detector nothing is masqueraded, except the node's own traffic: the node has all
    # Service addresses and uses them as sources, and replies to those would not come back.
    start = f"-A {SERVICES} {_matched(IpSet.CLUSTER_IP, 'src,dst', settings.family)}"
    return [f"{start} -j {MARK_MASQ}"]


def _external_ips(used: set[IpSet], family: IpFamily) -> list[str]:
    lines: list[str] = []
    for each in (IpSet.EXTERNAL_IP, IpSet.EXTERNAL_IP_LOCAL):
        if each not in used:
            continue
        start = f"-A {SERVICES} {_matched(each, 'dst,dst', family)}"
        if each is IpSet.EXTERNAL_IP:
            lines.append(f"{start} -j {MARK_MASQ}")
        lines += [
            f"{start} -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT",
            f"{start} -m addrtype --dst-type LOCAL -j ACCEPT",
        ]
    return lines


def _accepted(used: set[IpSet], family: IpFamily) -> list[str]:
    # Last in the chain: accept traffic to virtual servers whatever foreign rules follow.
    return [
        f"-A {SERVICES} {_in(each, 'dst,dst', family)} -j ACCEPT"
        for each in (IpSet.CLUSTER_IP, IpSet.LOAD_BALANCER)
        if each in used
    ]


def _local(settings: RuleSettings) -> list[str]:
    return [quoted_words(each.iptables) for each in settings.detector.matches(settings.family)]


def _not_from_here(blocked: BlockedAddress) -> str:
    return (
        f"-A {OUT_FILTER} -s {blocked.ip} -m ipvs --vaddr {blocked.ip}"
        f" --vproto {blocked.protocol} --vport {blocked.port} -j DROP"
    )
