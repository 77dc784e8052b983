"""The rules of one Service port: in the shared chains, and in chains of its own.

The port's own chains are all in nat. ``PortPlan`` decides which of them exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from isthmus.programs.node_proxy.rules.iptables import base
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    ChosenEndpoints,
    Endpoint,
    ServicePort,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """What the rules of all ports have in common.

    ``masquerade`` is the end of the rule that marks packets to a cluster IP, None if none are
    marked; ``local`` are the matches for packets of this node's pods.
    """

    masquerade: str | None
    local: tuple[str, ...]
    node_ip: IPv4Address | IPv6Address | None
    counted_localhost: bool
    comments: bool


@dataclass(frozen=True, slots=True)
class PortPlan:
    """A port, the names of its chains, and the destinations of its traffic.

    ``exist``: there are endpoints on some node. ``internal``: traffic to the cluster IP has an
    endpoint. ``external``: traffic from outside to the other addresses has an endpoint.
    """

    port: ServicePort
    backends: ChosenEndpoints
    name: str
    protocol: str
    suffix: str
    match: str
    exist: bool
    internal: bool
    external: bool

    @classmethod
    def of(cls, backed: BackedPort) -> PortPlan:
        port, backends = backed.port, backed.backends
        text, protocol = str(port.key), port.key.protocol.value
        exist, local = backends.exist, bool(backends.local)
        return cls(
            port=port,
            backends=backends,
            name=base.comment_text(text),
            protocol=protocol,
            suffix=base.suffix(text + protocol),
            match=f"-m {protocol} -p {protocol}",
            exist=exist,
            internal=exist and (local if port.internal_local else bool(backends.cluster)),
            external=exist and (local or not port.external_local),
        )

    @property
    def cluster_chain(self) -> str:
        """Balances over all endpoints."""
        return base.CLUSTER_PREFIX + self.suffix

    @property
    def local_chain(self) -> str:
        """Balances over the endpoints of this node."""
        return base.LOCAL_PREFIX + self.suffix

    @property
    def external_chain(self) -> str:
        """The first chain for traffic to all addresses but the cluster IP."""
        return base.EXTERNAL_PREFIX + self.suffix

    @property
    def firewall_chain(self) -> str:
        """Accepts the source ranges of a load balancer."""
        return base.FIREWALL_PREFIX + self.suffix

    @property
    def internal_chain(self) -> str:
        return self.local_chain if self.port.internal_local else self.cluster_chain

    @property
    def uses_cluster(self) -> bool:
        return bool(self.backends.cluster) and self.port.uses_cluster_endpoints

    @property
    def uses_local(self) -> bool:
        return bool(self.backends.local) and self.port.uses_local_endpoints

    @property
    def uses_firewall(self) -> bool:
        return bool(self.exist and self.port.load_balancer_ips and self.port.source_ranges)

    def to(self, ip: str) -> str:
        """Match packets to the port at an address."""
        return f"{self.match} -d {ip} --dport {self.port.port}"


def chains_of(plan: PortPlan, context: RuleContext) -> dict[str, str]:
    """The port's own chains with their rules, each line with its newline."""
    chains: dict[str, str] = {}
    key = str(plan.port.key)
    reachable = [(endpoint.ip, str(endpoint)) for endpoint in plan.backends.reachable]
    endpoints = {text: base.endpoint_chain(key, plan.protocol, text) for _, text in reachable}
    if plan.exist and plan.port.external:
        chains[plan.external_chain] = _external(plan, context)
    if plan.uses_firewall:
        chains[plan.firewall_chain] = _firewall(plan, context)
    if plan.uses_cluster:
        chosen = plan.backends.cluster
        chains[plan.cluster_chain] = _balance(plan, context, plan.cluster_chain, chosen, endpoints)
    if plan.uses_local:
        chosen = plan.backends.local
        chains[plan.local_chain] = _balance(plan, context, plan.local_chain, chosen, endpoints)
    for ip, text in reachable:
        chains[endpoints[text]] = _endpoint(plan, context, endpoints[text], ip, text)
    return chains


def _external(plan: PortPlan, context: RuleContext) -> str:
    chain, what = plan.external_chain, f"{plan.name} external destinations"
    lines: list[str] = []

    def rule(comment: str, rest: str) -> None:
        lines.append(f'-A {chain} -m comment --comment "{comment} {what}" {rest}\n')

    if not plan.port.external_local:
        # The endpoint may be on another node: replies have to come back through this one.
        rule("masquerade traffic for", f"-j {base.MARK_MASQ}")
    elif plan.uses_cluster:
        # A pod's traffic counts as if the load balancer had sent it back to any node.
        for match in context.local:
            rule("pod traffic for", f"{match} -j {plan.cluster_chain}")
        from_node = "-m addrtype --src-type LOCAL"
        rule("masquerade LOCAL traffic for", f"{from_node} -j {base.MARK_MASQ}")
        rule("route LOCAL traffic for", f"{from_node} -j {plan.cluster_chain}")
    if plan.port.external_local and plan.uses_local:
        lines.append(f"-A {chain} -j {plan.local_chain}\n")
    elif not plan.port.external_local and plan.uses_cluster:
        lines.append(f"-A {chain} -j {plan.cluster_chain}\n")
    return "".join(lines)


def _firewall(plan: PortPlan, context: RuleContext) -> str:
    start = f'-A {plan.firewall_chain} -m comment --comment "{plan.name} loadbalancer IP"'
    sources = list(plan.port.source_ranges)
    node_ip = context.node_ip
    if node_ip and any(node_ip in ip_network(cidr, strict=False) for cidr in sources):
        # The node uses the load balancer's address as the source for traffic to it.
        sources += plan.port.load_balancer_ips
    lines = [f"{start} -s {source} -j {plan.external_chain}\n" for source in sources]
    lines.append(
        f"-A {plan.firewall_chain} -m comment"
        f' --comment "other traffic to {plan.name} will be dropped by {base.PROXY_FIREWALL}"\n'
    )
    return "".join(lines)


def _balance(
    plan: PortPlan,
    context: RuleContext,
    chain: str,
    chosen: Sequence[Endpoint],
    endpoints: dict[str, str],
) -> str:
    lines: list[str] = []
    if plan.internal and chain == plan.internal_chain and context.masquerade is not None:
        lines.append(
            f'-A {chain} -m comment --comment "{plan.name} cluster IP"'
            f" {plan.to(plan.port.cluster_ip)} {context.masquerade}\n"
        )
    starts: list[tuple[str, str]] = []
    for text in map(str, chosen):
        comment = f' -m comment --comment "{plan.name} -> {text}"' if context.comments else ""
        starts.append((f"-A {chain}{comment}", endpoints[text]))
    if seconds := plan.port.affinity_s:
        lines += [
            f"{start} -m recent --name {sep} --rcheck --seconds {seconds} --reap -j {sep}\n"
            for start, sep in starts
        ]
    left = len(starts)
    for start, sep in starts:
        chance = f" -m statistic --mode random --probability {probability(left)}"
        lines.append(f"{start}{chance if left > 1 else ''} -j {sep}\n")
        left -= 1
    return "".join(lines)


@lru_cache(maxsize=4096)
def probability(left: int) -> str:
    """The probability of one of the ``left`` endpoints."""
    return f"{1 / left:.10f}"


def _endpoint(plan: PortPlan, context: RuleContext, chain: str, ip: str, text: str) -> str:
    start = f"-A {chain} -m comment --comment {plan.name}" if context.comments else f"-A {chain}"
    seen = f" -m recent --name {chain} --set" if plan.port.affinity_s else ""
    return (
        # A pod balanced to itself would drop replies from its own address.
        f"{start} -s {ip} -j {base.MARK_MASQ}\n"
        f"{start}{seen} {plan.match} -j DNAT --to-destination {text}\n"
    )


#: The shared chains, by table; ``IptablesPortRules.shared`` has the same order.
SHARED = (
    ("filter", base.SERVICES),
    ("filter", base.EXTERNAL_SERVICES),
    ("filter", base.NODE_PORTS),
    ("filter", base.PROXY_FIREWALL),
    ("nat", base.SERVICES),
    ("nat", base.NODE_PORTS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IptablesPortRules:
    """The rules of one port in iptables-restore syntax, each line with its newline.

    ``shared`` are its lines in the chains of ``SHARED``; ``chains`` are its own, all in nat, and
    ``text`` their rules. ``no_local`` tells whether internal and external traffic that has to stay
    on this node finds no endpoint.
    """

    backed: BackedPort
    shared: tuple[str, ...]
    chains: tuple[str, ...]
    text: str
    own_rules: int
    no_local: tuple[bool, bool]


def rule_context(settings: RuleSettings, *, large: bool) -> RuleContext:
    """Compute once what the rules of all ports have in common."""
    matches = settings.detector.matches(settings.family)
    masquerade = None
    if settings.masquerade_all:
        masquerade = f"-j {base.MARK_MASQ}"
    elif len(matches) == 1:
        masquerade = f"{base.quoted_words(matches[0].iptables_not)} -j {base.MARK_MASQ}"
    elif matches:
        masquerade = f"-j {base.MASQ_IF_NOT_LOCAL}"
    counted = settings.accounting and base.localhost_node_ports(settings)
    return RuleContext(
        masquerade=masquerade,
        local=tuple(base.quoted_words(match.iptables) for match in matches),
        node_ip=ip_address(settings.node_ip) if settings.node_ip else None,
        counted_localhost=counted,
        comments=not large,
    )


def port_rules(backed: BackedPort, context: RuleContext) -> IptablesPortRules:
    plan = PortPlan.of(backed)
    own = chains_of(plan, context)
    text = "".join(own.values())
    shared = (
        _filter_services(plan),
        _filter_external(plan),
        _filter_node_ports(plan),
        _filter_firewall(plan),
        _nat_services(plan),
        _nat_node_ports(plan, context),
    )
    return IptablesPortRules(
        backed=backed,
        shared=shared,
        chains=tuple(own),
        text=text,
        own_rules=text.count("\n"),
        no_local=(plan.exist and not plan.internal, plan.exist and not plan.external),
    )


def _filter_services(plan: PortPlan) -> str:
    if plan.internal:
        return ""
    return f"-A {base.SERVICES} {_why(plan)} {plan.to(plan.port.cluster_ip)} -j {_verdict(plan)}\n"


def _filter_external(plan: PortPlan) -> str:
    port = plan.port
    if plan.external or not port.external:
        return ""
    start = f"-A {base.EXTERNAL_SERVICES} {_why(plan)}"
    verdict = _verdict(plan)
    lines = [
        f"{start} {plan.to(ip)} -j {verdict}\n"
        for ip in (*port.external_ips, *port.load_balancer_ips)
    ]
    if port.node_port:
        lines.append(
            f"{start} -m addrtype --dst-type LOCAL {plan.match} --dport {port.node_port}"
            f" -j {verdict}\n"
        )
    return "".join(lines)


def _why(plan: PortPlan) -> str:
    what = "no local endpoints" if plan.exist else "no endpoints"
    return f'-m comment --comment "{plan.name} has {what}"'


def _verdict(plan: PortPlan) -> str:
    # Reject if no node has endpoints. If others have, a reject would mislead a load balancer that
    # has not noticed yet: drop.
    return "DROP" if plan.exist else "REJECT"


def _filter_node_ports(plan: PortPlan) -> str:
    number = plan.port.health_check_node_port
    if not number:
        return ""
    return (
        f'-A {base.NODE_PORTS} -m comment --comment "{plan.name} health check node port"'
        f" -m tcp -p tcp --dport {number} -j ACCEPT\n"
    )


def _filter_firewall(plan: PortPlan) -> str:
    if not plan.uses_firewall:
        return ""
    start = (
        f"-A {base.PROXY_FIREWALL} -m comment"
        f' --comment "{plan.name} traffic not accepted by {plan.firewall_chain}"'
    )
    return "".join(f"{start} {plan.to(ip)} -j DROP\n" for ip in plan.port.load_balancer_ips)


def _nat_services(plan: PortPlan) -> str:
    port = plan.port
    start = f'-A {base.SERVICES} -m comment --comment "{plan.name}'
    text = ""
    if plan.internal:
        text = f'{start} cluster IP" {plan.to(port.cluster_ip)} -j {plan.internal_chain}\n'
    if plan.exist and port.external:
        for ip in port.external_ips:
            text += f'{start} external IP" {plan.to(ip)} -j {plan.external_chain}\n'
        chain = plan.firewall_chain if plan.uses_firewall else plan.external_chain
        for ip in port.load_balancer_ips:
            text += f'{start} loadbalancer IP" {plan.to(ip)} -j {chain}\n'
    return text


def _nat_node_ports(plan: PortPlan, context: RuleContext) -> str:
    number = plan.port.node_port
    if not (number and plan.exist):
        return ""
    start = f"-A {base.NODE_PORTS} -m comment --comment {plan.name} {plan.match}"
    line = f"{start} --dport {number} -j {plan.external_chain}\n"
    if context.counted_localhost:
        return (
            f"{start} -d {base.LOCALHOST} --dport {number}"
            f" -m nfacct --nfacct-name {base.LOCALHOST_COUNTER} -j {plan.external_chain}\n{line}"
        )
    return line
