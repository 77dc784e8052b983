"""The table without any Service, and the names of everything in it.

Sets, maps, base chains and the rules that use them have kube-proxy's order, priorities and
comments, so that listings of the two can be compared. The name of a port's chain is a prefix, eight
characters of a hash, and the hashed text; nft allows 256 characters, of which kube-proxy reserves
16 for the prefix.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from ipaddress import ip_address
from typing import NamedTuple

from isthmus.programs.node_proxy.rules.detectors import BRIDGE_MARK_BIT, LocalMatch
from isthmus.programs.node_proxy.rules.model import Endpoint, IpFamily, PortKey
from isthmus.programs.node_proxy.rules.settings import RuleSettings

#: The one table per family. The name is kube-proxy's on purpose: the two never run side by side.
TABLE = "kube-proxy"

NFT_FAMILY = {IpFamily.IPV4: "ip", IpFamily.IPV6: "ip6"}

SERVICE = "service-"
LOCAL = "local-"
EXTERNAL = "external-"
FIREWALL = "firewall-"
ENDPOINT = "endpoint-"
AFFINITY = "affinity-"

REJECT_CHAIN = "reject-chain"
#: Not in kube-proxy: used when several matches detect local traffic; one match needs no chain.
NOT_LOCAL_CHAIN = "masq-if-not-local"
#: Always has one rule: if it has none, another program flushed the table.
MARKER_CHAIN = "nat-prerouting"

_HASH_CHARS = 8
_BASE_CHARS = 240
_CUT = "..."
_COMMENT_CHARS = 128


class NftContainer(StrEnum):
    """The named sets and verdict maps; the value is the nft name."""

    CLUSTER_IPS = "cluster-ips"
    SERVICE_IPS = "service-ips"
    SERVICE_NODE_PORTS = "service-nodeports"
    NO_ENDPOINT_SERVICES = "no-endpoint-services"
    NO_ENDPOINT_NODE_PORTS = "no-endpoint-nodeports"
    FIREWALL_IPS = "firewall-ips"
    HAIRPIN = "hairpin-connections"
    NODE_PORT_IPS = "nodeport-ips"


class Element(NamedTuple):
    """One element of a set, or of a verdict map if it has a ``value``."""

    container: NftContainer
    key: str
    value: str = ""
    comment: str = ""

    def __str__(self) -> str:
        comment = f' comment "{self.comment}"' if self.comment else ""
        return f"{self.key}{comment} : {self.value}" if self.value else f"{self.key}{comment}"


def bridge_table(family: IpFamily) -> str:
    """The table of the bridge family that marks packets of this family."""
    return f"isthmus-node-proxy-{NFT_FAMILY[family]}"


def port_base(key: PortKey) -> str:
    """The common end of the names of a port's chains: ``HASH-namespace/name/protocol/port``."""
    return _hashed(_text(key))


def endpoint_base(key: PortKey, endpoint: Endpoint) -> str:
    """The common end of the names of an endpoint's chain and affinity set."""
    # nft names cannot contain a colon.
    address = endpoint.ip.replace(":", ".")
    return _hashed(f"{_text(key)}__{address}/{endpoint.port}")


def comment(key: PortKey) -> str:
    """The comment of a port's elements, cut to the length that nft allows."""
    return str(key)[:_COMMENT_CHARS]


def is_port_chain(name: str) -> bool:
    """Whether a chain belongs to a port of a Service: only their names contain a slash."""
    return "/" in name


def _text(key: PortKey) -> str:
    return f"{key.service.namespace}/{key.service.name}/{key.protocol.value}/{key.port}"


def _hashed(text: str) -> str:
    digest = b32encode(sha256(text.encode()).digest()[:5]).decode()
    name = f"{digest[:_HASH_CHARS]}-{text}"
    return name if len(name) <= _BASE_CHARS else name[: _BASE_CHARS - len(_CUT)] + _CUT


_ADDRESS_PORT = "{addr} . inet_proto . inet_service : verdict"
_PORT = "inet_proto . inet_service : verdict"

#: Kind, type and comment of each set and map.
_CONTAINERS = {
    NftContainer.CLUSTER_IPS: ("set", "{addr}", "Active ClusterIPs"),
    NftContainer.HAIRPIN: (
        "set", "{addr} . {addr} . inet_proto . inet_service", "service hairpin connections",
    ),
    NftContainer.NODE_PORT_IPS: ("set", "{addr}", "IPs that accept NodePort traffic"),
    NftContainer.NO_ENDPOINT_SERVICES: (
        "map", _ADDRESS_PORT, "vmap to drop or reject packets to services with no endpoints",
    ),
    NftContainer.NO_ENDPOINT_NODE_PORTS: (
        "map", _PORT, "vmap to drop or reject packets to service nodeports with no endpoints",
    ),
    NftContainer.FIREWALL_IPS: (
        "map", _ADDRESS_PORT, "destinations that are subject to LoadBalancerSourceRanges",
    ),
    NftContainer.SERVICE_IPS: (
        "map", _ADDRESS_PORT, "ClusterIP, ExternalIP and LoadBalancer IP traffic",
    ),
    NftContainer.SERVICE_NODE_PORTS: ("map", _PORT, "NodePort traffic"),
}  # fmt: skip

#: Base chains: type, hook, priority, and the chains they jump to.
_HOOKS = {
    # Before DNAT, while the destination is still the load balancer's address.
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
# Node ports on loopback addresses need route_localnet, which nftables mode does not use.
_NOT_LOOPBACK = {IpFamily.IPV4: "ip daddr != 127.0.0.0/8", IpFamily.IPV6: "ip6 daddr != ::1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseRules:
    """The part of the ruleset that does not depend on Services.

    ``heads`` are the hooks or comments of chains; chains without one are plain. ``bridge`` are the
    rules that mark packets from bridge ports; None for no bridge table.
    """

    containers: Mapping[NftContainer, tuple[str, str]]
    heads: Mapping[str, str]
    chains: Mapping[str, tuple[str, ...]]
    elements: tuple[Element, ...]
    bridge: tuple[str, ...] | None = None
    bridge_table: str = ""


def base_rules(settings: RuleSettings) -> BaseRules:
    """The base rules for these settings."""
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
        elements=tuple(Element(NftContainer.NODE_PORT_IPS, each) for each in addresses or ()),
        bridge=_bridge(settings) if matches else None,
        bridge_table=bridge_table(settings.family),
    )


def local_matches(settings: RuleSettings) -> tuple[LocalMatch, ...]:
    """The matches for local traffic without duplicates: all bridge ports share one mark."""
    found = settings.detector.matches(settings.family)
    return tuple({match.nft: match for match in found}.values())


def node_port_addresses(settings: RuleSettings) -> tuple[str, ...] | None:
    """The node's addresses that accept node ports, without loopback; None for all."""
    if settings.node_port_addresses is None:
        return None
    chosen = dict.fromkeys(settings.node_port_addresses)
    return tuple(each for each in chosen if not ip_address(each).is_loopback)


def _containers(family: IpFamily, *, node_port_ips: bool) -> dict[NftContainer, tuple[str, str]]:
    addr = f"ipv{family.version}_addr"
    return {
        container: (kind, f'type {written.format(addr=addr)} ; comment "{comment}" ;')
        for container, (kind, written, comment) in _CONTAINERS.items()
        if node_port_ips or container is not NftContainer.NODE_PORT_IPS
    }


def hooked(kind: str, hook: str, priority: int) -> str:
    """The head of a base chain, in nft syntax."""
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
    # A single match has a negation; several need a chain that each of them returns from.
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
    # The bridge family sees all protocols; each IP family marks its own packets.
    packet = f"meta protocol {NFT_FAMILY[settings.family]}"
    mark = f"meta mark set meta mark or {1 << BRIDGE_MARK_BIT:#010x}"
    if not prefixes:
        return (f"{packet} {mark}",)
    return tuple(f'{packet} meta iifname "{prefix}*" {mark}' for prefix in prefixes)
