"""The elements, chains and rules of one port, in kube-proxy's form.

Ports do not depend on each other; ruleset.py joins them into one ruleset.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from isthmus.programs.node_proxy.rules.model import BackedPort, Endpoint
from isthmus.programs.node_proxy.rules.nftables.base import (
    AFFINITY,
    ENDPOINT,
    EXTERNAL,
    FIREWALL,
    LOCAL,
    NFT_FAMILY,
    REJECT_CHAIN,
    SERVICE,
    Element,
    NftContainer,
    comment,
    endpoint_base,
    local_matches,
    port_base,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NftablesPortRules:
    """The rules of one port. ``affinity`` has sets of clients with their timeouts in seconds.

    ``no_local`` are the traffic policies, "internal" and "external", whose traffic finds no
    endpoint on this node.
    """

    elements: tuple[Element, ...]
    chains: Mapping[str, tuple[str, ...]]
    affinity: Mapping[str, int] = field(default_factory=dict)
    no_local: tuple[str, ...] = ()


class _Port:
    """What the rules of a port need: its names, and which chains it has."""

    __slots__ = (
        "backends",
        "base",
        "cluster",
        "external",
        "external_there",
        "family",
        "internal_there",
        "local",
        "port",
        "protocol",
        "verdict",
    )  # fmt: skip

    def __init__(self, backed: BackedPort, family: str) -> None:
        port, backends = backed.port, backed.backends
        self.port, self.backends, self.family = port, backends, family
        self.protocol = port.key.protocol.value
        self.base = port_base(port.key)
        self.cluster = backends.cluster if port.uses_cluster_endpoints else ()
        self.local = backends.local if port.uses_local_endpoints else ()
        self.internal_there = bool(self.local if port.internal_local else self.cluster)
        self.external_there = bool(self.local if port.external_local else self.cluster)
        self.external = backends.exist and port.external
        # Other nodes may have endpoints: drop packets, so that clients retry.
        self.verdict = "drop" if backends.exist else f"goto {REJECT_CHAIN}"


def port_rules(backed: BackedPort, settings: RuleSettings) -> NftablesPortRules:
    it = _Port(backed, NFT_FAMILY[settings.family])
    chains: dict[str, tuple[str, ...]] = {}
    affinity: dict[str, int] = {}
    if backed.port.affinity_s:
        _sticky_chains(it, chains, affinity)
    else:
        for prefix, endpoints in ((SERVICE, it.cluster), (LOCAL, it.local)):
            if endpoints:
                chains[prefix + it.base] = (_balancing(it, endpoints), _certain(it, endpoints[0]))
    if it.external:
        chains[EXTERNAL + it.base] = tuple(_external(it, settings))
    if backed.port.load_balancer_ips and backed.port.source_ranges:
        chains[FIREWALL + it.base] = (_firewall(it, settings),)
    return NftablesPortRules(
        elements=tuple(_elements(it)),
        chains=chains,
        affinity=affinity,
        no_local=_no_local(it) if backed.backends.exist else (),
    )


def _no_local(it: _Port) -> tuple[str, ...]:
    internal = () if it.internal_there else ("internal",)
    # Counted for every port with the policy, whether or not it is external, as in kube-proxy.
    lacking = it.port.external_local and not it.backends.local
    return (*internal, "external") if lacking else internal


def _balancing(it: _Port, endpoints: tuple[Endpoint, ...]) -> str:
    targets = " , ".join(f"{i} : {end.ip} . {end.port}" for i, end in enumerate(endpoints))
    return (
        f"meta l4proto {it.protocol} dnat {it.family} addr . port to"
        f" numgen random mod {len(endpoints)} map {{ {targets} }}"
    )


def _certain(it: _Port, end: Endpoint) -> str:
    """A fallback after a balancing rule, for a packet that the balancing rule does not match.

    When a rule is replaced, the elements of its anonymous map vanish at once, even for a packet
    that is traversing the old rules: the lookup fails, and the packet would keep a destination that
    no host has. At any other time the map has an element for every number.
    """
    return f"meta l4proto {it.protocol} dnat to {end}"


def _sticky_chains(it: _Port, chains: dict[str, tuple[str, ...]], affinity: dict[str, int]) -> None:
    bases = {end: endpoint_base(it.port.key, end) for end in it.backends.reachable}
    for prefix, endpoints in ((SERVICE, it.cluster), (LOCAL, it.local)):
        if endpoints:
            names = [bases.get(end) or endpoint_base(it.port.key, end) for end in endpoints]
            bases.update(zip(endpoints, names, strict=True))
            known = (f"{it.family} saddr @{AFFINITY}{base} goto {ENDPOINT}{base}" for base in names)
            jumps = " , ".join(f"{i} : goto {ENDPOINT}{base}" for i, base in enumerate(names))
            others = f"numgen random mod {len(names)} vmap {{ {jumps} }}"
            chains[prefix + it.base] = (*known, others, _certain(it, endpoints[0]))
    for end, base in bases.items():
        affinity[AFFINITY + base] = it.port.affinity_s
        chains[ENDPOINT + base] = (
            f"update @{AFFINITY}{base} {{ {it.family} saddr }}",
            _certain(it, end),
        )


def _external(it: _Port, settings: RuleSettings) -> Iterator[str]:
    mark = f"mark set mark or {settings.mark}"
    if not it.port.external_local:
        yield f'{mark} comment "masquerade"'
    elif it.cluster:
        # Pods and the node reach the Service as if the load balancer had sent the traffic back.
        target = SERVICE + it.base
        for match in local_matches(settings):
            yield f'{match.nft} goto {target} comment "short-circuit pod traffic"'
        # The node has the balancer's address: endpoints would see that as the source.
        yield f'fib saddr type local {mark} comment "masquerade local traffic"'
        yield f'fib saddr type local goto {target} comment "short-circuit local traffic"'
    if it.external_there:
        yield f"goto {LOCAL if it.port.external_local else SERVICE}{it.base}"


def _firewall(it: _Port, settings: RuleSettings) -> str:
    sources = list(it.port.source_ranges)
    if settings.node_ip and _within(settings.node_ip, sources):
        # A node that has the balancer's address uses it as the source for traffic to it.
        sources += it.port.load_balancer_ips
    return f"{it.family} saddr != {{ {' , '.join(sources)} }} drop"


def _within(address: str, ranges: Iterable[str]) -> bool:
    looked_for = ip_address(address)
    return any(looked_for in ip_network(each, strict=False) for each in ranges)


def _elements(it: _Port) -> Iterator[Element]:
    port, note = it.port, comment(it.port.key)
    yield Element(NftContainer.CLUSTER_IPS, port.cluster_ip)
    key = f"{port.cluster_ip} . {it.protocol} . {port.port}"
    if it.internal_there:
        prefix = LOCAL if port.internal_local else SERVICE
        yield Element(NftContainer.SERVICE_IPS, key, f"goto {prefix}{it.base}")
    else:
        yield Element(NftContainer.NO_ENDPOINT_SERVICES, key, it.verdict, note)
    for address in (*port.external_ips, *port.load_balancer_ips):
        key = f"{address} . {it.protocol} . {port.port}"
        yield from _external_elements(
            it, key, note, NftContainer.SERVICE_IPS, NftContainer.NO_ENDPOINT_SERVICES
        )
    if port.source_ranges:
        for address in port.load_balancer_ips:
            key = f"{address} . {it.protocol} . {port.port}"
            yield Element(NftContainer.FIREWALL_IPS, key, f"goto {FIREWALL}{it.base}")
    if port.node_port:
        key = f"{it.protocol} . {port.node_port}"
        yield from _external_elements(
            it, key, note, NftContainer.SERVICE_NODE_PORTS, NftContainer.NO_ENDPOINT_NODE_PORTS
        )
    for end in it.backends.reachable:
        if end.local:
            yield Element(NftContainer.HAIRPIN, f"{end.ip} . {end.ip} . {it.protocol} . {end.port}")


def _external_elements(
    it: _Port, key: str, note: str, there: NftContainer, lacking: NftContainer
) -> Iterator[Element]:
    # Both elements if only pods and the node find an endpoint: other traffic is dropped.
    if it.external:
        yield Element(there, key, f"goto {EXTERNAL}{it.base}")
    if not it.external_there:
        yield Element(lacking, key, it.verdict, note)
