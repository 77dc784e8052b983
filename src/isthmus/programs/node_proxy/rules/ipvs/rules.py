"""The iptables part of ipvs mode: a few rules that match the sets, as iptables-restore reads them.

The order of rules is kube-proxy's. What marks, masquerades and forwards is iptables mode's. Where
several matches tell what is local, the chain KUBE-MASQ-IF-NOT-LOCAL returns for each of them and
masquerades the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

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
from isthmus.programs.node_proxy.rules.ipvs.plan import BlockedAddress, IpvsPlan
from isthmus.programs.node_proxy.rules.ipvs.sets import IpSet
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.rules.settings import RuleSettings

NODE_PORT = "KUBE-NODE-PORT"
LOAD_BALANCER = "KUBE-LOAD-BALANCER"
SOURCE_RANGES = "KUBE-SOURCE-RANGES-FIREWALL"
FILTER = "KUBE-IPVS-FILTER"
OUT_FILTER = "KUBE-IPVS-OUT-FILTER"

CHAINS: Mapping[str, tuple[str, ...]] = {
    "nat": (SERVICES, POSTROUTING, NODE_PORT, LOAD_BALANCER, MARK_MASQ),
    "filter": (FORWARD, NODE_PORT, PROXY_FIREWALL, SOURCE_RANGES, FILTER, OUT_FILTER),
}
#: What is only there with several matches, and is removed with the rest.
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

#: Which set leads from where to where: set, chain, target, direction, protocol. A set with
#: policy Local comes before the one that has all.
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
#: Ports of a Service's address that are not the Service's own are refused, these excepted.
_REACHABLE = (
    (IpSet.LOAD_BALANCER, "dst,dst"),
    (IpSet.CLUSTER_IP, "dst,dst"),
    (IpSet.EXTERNAL_IP, "dst,dst"),
    (IpSet.EXTERNAL_IP_LOCAL, "dst,dst"),
    (IpSet.HEALTH_CHECK_NODE_PORT, "dst"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IpvsRuleset:
    """The rules of each table, in order, and whether the chain for several matches is used."""

    nat: tuple[str, ...]
    filter: tuple[str, ...]
    several: bool

    def text(self) -> str:
        """All of it for ``iptables-restore --noflush``; every chain of ours is rewritten."""
        lines: list[str] = []
        for table, rules in (("nat", self.nat), ("filter", self.filter)):
            more = MORE_CHAINS[table] if self.several else ()
            lines.append(f"*{table}")
            lines += [f":{chain} - [0:0]" for chain in (*CHAINS[table], *more)]
            lines += [*rules, "COMMIT"]
        return "\n".join([*lines, ""])


def rules(made: IpvsPlan, settings: RuleSettings) -> IpvsRuleset:
    """Write the rules for what is planned; sets without entries are not matched."""
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


def _said(comment: str) -> str:
    return f'-m comment --comment "{comment}"'


def _in(each: IpSet, way: str, family: IpFamily) -> str:
    return f"-m set --match-set {each.of(family)} {way}"


def _matched(each: IpSet, way: str, family: IpFamily) -> str:
    return f"{_said(each.comment)} {_in(each, way, family)}"


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
    # Nothing tells what is local. But the node itself takes a Service's address for its source,
    # since it has them all, and the answer to that would not come back.
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
    # Last in the chain: what is for a virtual server passes whatever rules of others come next.
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
