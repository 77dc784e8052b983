"""The rules of one port of one Service: in the chains that all share, and in chains of its own."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from isthmus.programs.node_proxy.rules.iptables import base, names
from isthmus.programs.node_proxy.rules.iptables.port_chains import PortPlan, RuleContext, chains_of
from isthmus.programs.node_proxy.rules.model import BackedPort
from isthmus.programs.node_proxy.rules.settings import RuleSettings

#: The chains that all ports share, by table; ``IptablesPortRules.shared`` has the same order.
SHARED = (
    ("filter", names.SERVICES),
    ("filter", names.EXTERNAL_SERVICES),
    ("filter", names.NODE_PORTS),
    ("filter", names.PROXY_FIREWALL),
    ("nat", names.SERVICES),
    ("nat", names.NODE_PORTS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IptablesPortRules:
    """What one port needs, as lines of iptables-restore, each with its end.

    ``shared`` are its lines in the chains of ``SHARED``; ``chains`` are its own, all in nat, and
    ``text`` their rules. ``no_local`` says whether internal and external traffic that has to stay
    on this node finds nothing here.
    """

    backed: BackedPort
    shared: tuple[str, ...]
    chains: tuple[str, ...]
    text: str
    own_rules: int
    no_local: tuple[bool, bool]


def rule_context(settings: RuleSettings, *, large: bool) -> RuleContext:
    """Look up once what the rules of all ports have in common."""
    matches = settings.detector.matches(settings.family)
    masquerade = None
    if settings.masquerade_all:
        masquerade = f"-j {names.MARK_MASQ}"
    elif len(matches) == 1:
        masquerade = f"{base.words(matches[0].iptables_not)} -j {names.MARK_MASQ}"
    elif matches:
        masquerade = f"-j {names.MASQ_IF_NOT_LOCAL}"
    counted = settings.accounting and base.localhost_node_ports(settings)
    return RuleContext(
        masquerade=masquerade,
        local=tuple(base.words(match.iptables) for match in matches),
        node_ip=ip_address(settings.node_ip) if settings.node_ip else None,
        counted_localhost=counted,
        comments=not large,
    )


def port_rules(backed: BackedPort, context: RuleContext) -> IptablesPortRules:
    """Write the rules of a port."""
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
    return f"-A {names.SERVICES} {_why(plan)} {plan.to(plan.port.cluster_ip)} -j {_verdict(plan)}\n"


def _filter_external(plan: PortPlan) -> str:
    port = plan.port
    if plan.external or not port.external:
        return ""
    start = f"-A {names.EXTERNAL_SERVICES} {_why(plan)}"
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
    # Refused where nobody could answer. Where others could, a refusal would be a wrong answer to
    # a load balancer that has not noticed yet.
    return "DROP" if plan.exist else "REJECT"


def _filter_node_ports(plan: PortPlan) -> str:
    number = plan.port.health_check_node_port
    if not number:
        return ""
    return (
        f'-A {names.NODE_PORTS} -m comment --comment "{plan.name} health check node port"'
        f" -m tcp -p tcp --dport {number} -j ACCEPT\n"
    )


def _filter_firewall(plan: PortPlan) -> str:
    if not plan.uses_firewall:
        return ""
    start = (
        f"-A {names.PROXY_FIREWALL} -m comment"
        f' --comment "{plan.name} traffic not accepted by {plan.firewall_chain}"'
    )
    return "".join(f"{start} {plan.to(ip)} -j DROP\n" for ip in plan.port.load_balancer_ips)


def _nat_services(plan: PortPlan) -> str:
    port = plan.port
    start = f'-A {names.SERVICES} -m comment --comment "{plan.name}'
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
    start = f"-A {names.NODE_PORTS} -m comment --comment {plan.name} {plan.match}"
    line = f"{start} --dport {number} -j {plan.external_chain}\n"
    if context.counted_localhost:
        return (
            f"{start} -d {base.LOCALHOST} --dport {number}"
            f" -m nfacct --nfacct-name {base.LOCALHOST_COUNTER} -j {plan.external_chain}\n{line}"
        )
    return line
