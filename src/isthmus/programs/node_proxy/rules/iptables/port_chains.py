"""The chains that one port has for itself, all of them in nat, and what decides which it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_network

from isthmus.programs.node_proxy.rules.iptables import names
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    ChosenEndpoints,
    Endpoint,
    ServicePort,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleContext:
    """What the rules of all ports have in common.

    ``masquerade`` is the end of the rule by which packets to a cluster IP are marked, None where
    none are; ``local`` are the matches that tell packets of this node's pods.
    """

    masquerade: str | None
    local: tuple[str, ...]
    node_ip: IPv4Address | IPv6Address | None
    counted_localhost: bool
    comments: bool


@dataclass(frozen=True, slots=True)
class PortPlan:
    """A port, the names of its chains, and where its traffic can go.

    ``exist``: there are endpoints somewhere. ``internal``: traffic to its cluster IP has some.
    ``external``: traffic from outside to its other addresses has some.
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
        """Decide for a port."""
        port, backends = backed.port, backed.backends
        text, protocol = str(port.key), port.key.protocol.value
        exist, local = backends.exist, bool(backends.local)
        return cls(
            port=port,
            backends=backends,
            name=names.comment_text(text),
            protocol=protocol,
            suffix=names.suffix(text + protocol),
            match=f"-m {protocol} -p {protocol}",
            exist=exist,
            internal=exist and (local if port.internal_local else bool(backends.cluster)),
            external=exist and (local or not port.external_local),
        )

    @property
    def cluster_chain(self) -> str:
        """Balances over all endpoints."""
        return names.CLUSTER_PREFIX + self.suffix

    @property
    def local_chain(self) -> str:
        """Balances over the endpoints of this node."""
        return names.LOCAL_PREFIX + self.suffix

    @property
    def external_chain(self) -> str:
        """Where traffic to everything but the cluster IP goes first."""
        return names.EXTERNAL_PREFIX + self.suffix

    @property
    def firewall_chain(self) -> str:
        """Lets the source ranges of a load balancer through."""
        return names.FIREWALL_PREFIX + self.suffix

    @property
    def internal_chain(self) -> str:
        """Where traffic to the cluster IP goes."""
        return self.local_chain if self.port.internal_local else self.cluster_chain

    @property
    def uses_cluster(self) -> bool:
        """There is a chain for all endpoints."""
        return bool(self.backends.cluster) and self.port.uses_cluster_endpoints

    @property
    def uses_local(self) -> bool:
        """There is a chain for the endpoints of this node."""
        return bool(self.backends.local) and self.port.uses_local_endpoints

    @property
    def uses_firewall(self) -> bool:
        """There is a chain for source ranges."""
        return bool(self.exist and self.port.load_balancer_ips and self.port.source_ranges)

    def to(self, ip: str) -> str:
        """Match packets to the port at an address."""
        return f"{self.match} -d {ip} --dport {self.port.port}"


def chains_of(plan: PortPlan, context: RuleContext) -> dict[str, str]:
    """The port's own chains and their rules, each line with its end."""
    chains: dict[str, str] = {}
    key = str(plan.port.key)
    reachable = [(endpoint.ip, str(endpoint)) for endpoint in plan.backends.reachable]
    endpoints = {text: names.endpoint_chain(key, plan.protocol, text) for _, text in reachable}
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
        # The endpoint may be on another node: the answer has to come back by this one.
        rule("masquerade traffic for", f"-j {names.MARK_MASQ}")
    elif plan.uses_cluster:
        # A pod's traffic is as if it went out to the load balancer and came back by any node.
        for match in context.local:
            rule("pod traffic for", f"{match} -j {plan.cluster_chain}")
        from_node = "-m addrtype --src-type LOCAL"
        rule("masquerade LOCAL traffic for", f"{from_node} -j {names.MARK_MASQ}")
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
        # The node's own traffic to such an address may have that same address as its source.
        sources += plan.port.load_balancer_ips
    lines = [f"{start} -s {source} -j {plan.external_chain}\n" for source in sources]
    lines.append(
        f"-A {plan.firewall_chain} -m comment"
        f' --comment "other traffic to {plan.name} will be dropped by {names.PROXY_FIREWALL}"\n'
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
    """The chance of one of so many endpoints."""
    return f"{1 / left:.10f}"


def _endpoint(plan: PortPlan, context: RuleContext, chain: str, ip: str, text: str) -> str:
    start = f"-A {chain} -m comment --comment {plan.name}" if context.comments else f"-A {chain}"
    seen = f" -m recent --name {chain} --set" if plan.port.affinity_s else ""
    return (
        # A pod that was balanced to itself would not take an answer from its own address.
        f"{start} -s {ip} -j {names.MARK_MASQ}\n"
        f"{start}{seen} {plan.match} -j DNAT --to-destination {text}\n"
    )
