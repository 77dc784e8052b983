"""What the table has before any Service: containers, base chains, and the rules that look them up.

In the order and with the priorities of kube-proxy, whose comments are kept too, so that listings
of the two can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from isthmus.programs.node_proxy.rules.detectors import BRIDGE_MARK_BIT
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.rules.nftables.names import (
    NFT_FAMILY,
    NOT_LOCAL_CHAIN,
    REJECT_CHAIN,
    Container,
    bridge_table,
)
from isthmus.programs.node_proxy.rules.nftables.port_rules import Element, local_matches
from isthmus.programs.node_proxy.rules.settings import RuleSettings

_ADDRESS_PORT = "{addr} . inet_proto . inet_service : verdict"
_PORT = "inet_proto . inet_service : verdict"

#: Kind, type and comment of each named container.
_CONTAINERS = {
    Container.CLUSTER_IPS: ("set", "{addr}", "Active ClusterIPs"),
    Container.HAIRPIN: (
        "set", "{addr} . {addr} . inet_proto . inet_service", "service hairpin connections",
    ),
    Container.NODE_PORT_IPS: ("set", "{addr}", "IPs that accept NodePort traffic"),
    Container.NO_ENDPOINT_SERVICES: (
        "map", _ADDRESS_PORT, "vmap to drop or reject packets to services with no endpoints",
    ),
    Container.NO_ENDPOINT_NODE_PORTS: (
        "map", _PORT, "vmap to drop or reject packets to service nodeports with no endpoints",
    ),
    Container.FIREWALL_IPS: (
        "map", _ADDRESS_PORT, "destinations that are subject to LoadBalancerSourceRanges",
    ),
    Container.SERVICE_IPS: (
        "map", _ADDRESS_PORT, "ClusterIP, ExternalIP and LoadBalancer IP traffic",
    ),
    Container.SERVICE_NODE_PORTS: ("map", _PORT, "NodePort traffic"),
}  # fmt: skip

#: Base chains: type, hook, priority, and what they jump to.
_HOOKS = {
    # Before DNAT, where the balancer's address is still the destination.
    "filter-prerouting-pre-dnat": ("filter", "prerouting", -110, ("firewall-check",)),
    "filter-output-pre-dnat": ("filter", "output", -110, ("firewall-check",)),
    "filter-input": (
        "filter", "input", 0, ("nodeport-endpoints-check", "service-endpoints-check"),
    ),
    "filter-forward": ("filter", "forward", 0, ("service-endpoints-check", "cluster-ips-check")),
    "filter-output": ("filter", "output", 0, ("service-endpoints-check", "cluster-ips-check")),
    "nat-prerouting": ("nat", "prerouting", -100, ("services",)),
    "nat-output": ("nat", "output", -100, ("services",)),
    "nat-postrouting": ("nat", "postrouting", 100, ("masquerading",)),
}  # fmt: skip

_DESTINATION = "{ip} daddr . meta l4proto . th dport vmap @{map}"
_NODE_PORT = "meta l4proto . th dport vmap @{map}"
# Node ports of the loopback addresses need route_localnet, which nftables mode does without.
_NOT_LOOPBACK = {IpFamily.IPV4: "ip daddr != 127.0.0.0/8", IpFamily.IPV6: "ip6 daddr != ::1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRules:
    """The same whatever Services there are.

    ``heads`` say what a chain hooks into, or its comment; chains without one are plain.
    ``bridge`` are the rules that mark what bridge ports bring, None for no such table.
    """

    containers: Mapping[Container, tuple[str, str]]
    heads: Mapping[str, str]
    chains: Mapping[str, tuple[str, ...]]
    elements: tuple[Element, ...]
    bridge: tuple[str, ...] | None = None
    bridge_table: str = ""


def base_rules(settings: RuleSettings) -> BaseRules:
    """Write what the settings ask for."""
    addresses = node_port_addresses(settings)
    chains: dict[str, tuple[str, ...]] = {}
    for name, (kind, _, _, targets) in _HOOKS.items():
        new = "ct state new " if kind == "filter" else ""
        chains[name] = tuple(f"{new}jump {target}" for target in targets)
    chains |= _checks(settings, everywhere=addresses is None)
    chains["services"] = _services(settings, everywhere=addresses is None)
    chains["masquerading"] = _masquerading(settings)
    matches = local_matches(settings)
    if len(matches) > 1 and not settings.masquerade_all:
        returns = (f"{match.nft} return" for match in matches)
        chains[NOT_LOCAL_CHAIN] = (*returns, f"mark set mark or {settings.mark}")
    return BaseRules(
        containers=_containers(settings.family, node_port_ips=addresses is not None),
        heads=_heads(),
        chains=chains,
        elements=tuple(Element(Container.NODE_PORT_IPS, each) for each in addresses or ()),
        bridge=_bridge(settings) if matches else None,
        bridge_table=bridge_table(settings.family),
    )


def node_port_addresses(settings: RuleSettings) -> tuple[str, ...] | None:
    """The addresses of this node that take node ports, without loopback ones; None for all."""
    if settings.node_port_addresses is None:
        return None
    chosen = dict.fromkeys(settings.node_port_addresses)
    return tuple(each for each in chosen if not ip_address(each).is_loopback)


def _containers(family: IpFamily, *, node_port_ips: bool) -> dict[Container, tuple[str, str]]:
    addr = f"ipv{family.version}_addr"
    return {
        container: (kind, f'type {written.format(addr=addr)} ; comment "{comment}" ;')
        for container, (kind, written, comment) in _CONTAINERS.items()
        if node_port_ips or container is not Container.NODE_PORT_IPS
    }


def hooked(kind: str, hook: str, priority: int) -> str:
    """How a chain says what it hooks into."""
    return f"type {kind} hook {hook} priority {priority} ;"


def _heads() -> dict[str, str]:
    heads = {
        name: hooked(kind, hook, priority) for name, (kind, hook, priority, _) in _HOOKS.items()
    }
    comment = "helper for @no-endpoint-services / @no-endpoint-nodeports"
    return heads | {REJECT_CHAIN: f'comment "{comment}" ;'}


def _checks(settings: RuleSettings, *, everywhere: bool) -> dict[str, tuple[str, ...]]:
    ip = NFT_FAMILY[settings.family]
    unknown = [
        f"{ip} daddr @cluster-ips reject"
        ' comment "Reject traffic to invalid ports of ClusterIPs"'
    ]  # fmt: skip
    version = settings.family.version
    ours = [each for each in settings.service_cidrs if (":" in each) == (version == 6)]
    if ours:
        unknown.append(
            f"{ip} daddr {{ {' , '.join(ours)} }} drop"
            ' comment "Drop traffic to unallocated ClusterIPs"'
        )
    where = _NOT_LOOPBACK[settings.family] if everywhere else f"{ip} daddr @nodeport-ips"
    return {
        REJECT_CHAIN: ("reject",),
        "firewall-check": (_DESTINATION.format(ip=ip, map="firewall-ips"),),
        "service-endpoints-check": (_DESTINATION.format(ip=ip, map="no-endpoint-services"),),
        "nodeport-endpoints-check": (
            f"{where} {_NODE_PORT.format(map='no-endpoint-nodeports')}",
        ),
        "cluster-ips-check": tuple(unknown),
    }  # fmt: skip


def _services(settings: RuleSettings, *, everywhere: bool) -> tuple[str, ...]:
    ip = NFT_FAMILY[settings.family]
    where = f"{ip} daddr @nodeport-ips"
    if everywhere:
        where = f"fib daddr type local {_NOT_LOOPBACK[settings.family]}"
    return (
        *_masquerade_cluster_ips(settings, ip),
        _DESTINATION.format(ip=ip, map="service-ips"),
        f"{where} {_NODE_PORT.format(map='service-nodeports')}",
    )


def _masquerade_cluster_ips(settings: RuleSettings, ip: str) -> tuple[str, ...]:
    matches = local_matches(settings)
    mark = f"mark set mark or {settings.mark}"
    if settings.masquerade_all:
        return (f'{ip} daddr @cluster-ips {mark} comment "masquerade all clusterIP traffic"',)
    if not matches:
        return ()
    # One match has its opposite; that of several is a chain that all of them leave.
    act = f"{matches[0].nft_not} {mark}" if len(matches) == 1 else f"jump {NOT_LOCAL_CHAIN}"
    comment = "masquerade clusterIP traffic from outside cluster"
    return (f'{ip} daddr @cluster-ips {act} comment "{comment}"',)


def _masquerading(settings: RuleSettings) -> tuple[str, ...]:
    ip = NFT_FAMILY[settings.family]
    mark = settings.mark
    return (
        f"mark and {mark} != 0 mark set mark xor {mark} masquerade fully-random",
        f"ct status dnat {ip} saddr . {ip} daddr . meta l4proto . th dport"
        " @hairpin-connections masquerade fully-random",
    )


def _bridge(settings: RuleSettings) -> tuple[str, ...] | None:
    prefixes = settings.detector.bridge_ports
    if prefixes is None:
        return None
    # The bridge family sees all protocols; each of ours marks its own packets.
    packet = f"meta protocol {NFT_FAMILY[settings.family]}"
    mark = f"meta mark set meta mark or {1 << BRIDGE_MARK_BIT:#010x}"
    if not prefixes:
        return (f"{packet} {mark}",)
    return tuple(f'{packet} meta iifname "{prefix}*" {mark}' for prefix in prefixes)
