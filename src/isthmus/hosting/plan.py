"""A document becomes a plan: what is wrong with it, or what follows from it.

The rules are HyperShift's own (its CRD's and its controller's), those that its CRD leaves out, and
things that nobody refuses and that surprise those who get them. What a rule is, is in rules.py.
"""

from __future__ import annotations

from typing import Final

from isthmus.hosting import (
    rules_guest_network,
    rules_names,
    rules_networks,
    rules_platforms,
    rules_ports,
    rules_sections,
    rules_services,
)
from isthmus.hosting.endpoints import endpoints_of
from isthmus.hosting.model import HostedCluster, PlanFinding, PublishPlan, Weight
from isthmus.hosting.objects import objects
from isthmus.hosting.rules import PlanRule
from isthmus.hosting.rules_endpoints import cidr_findings, surprises

#: Every rule, in the order of the documents.
RULES: Final[tuple[PlanRule, ...]] = (
    *rules_services.RULES,
    *rules_names.RULES,
    *rules_ports.RULES,
    *rules_sections.RULES,
    *rules_platforms.RULES,
    *rules_networks.RULES,
    *rules_guest_network.RULES,
)


def make_plan(cluster: HostedCluster, *, keep_sources: bool = False) -> PublishPlan:
    """Check a cluster, and say what publishing it makes and who will see what.

    ``keep_sources`` makes the allowed CIDR blocks hold for node ports and load balancers that they
    would not hold for otherwise; what that asks of the nodes is said in objects.py.
    """
    findings = check(cluster)
    if any(each.weight is Weight.ERROR for each in findings):
        return PublishPlan(cluster=cluster, findings=findings)
    made = objects(cluster, keep_sources=keep_sources)
    found = endpoints_of(cluster, made)
    return PublishPlan(
        cluster=cluster,
        findings=(*findings, *cidr_findings(cluster, found), *surprises(cluster, found)),
        endpoints=found,
        objects=tuple(each.manifest for each in made),
    )


def check(cluster: HostedCluster) -> tuple[PlanFinding, ...]:
    """Everything that is wrong or surprising, in the order of the document's lines."""
    found = [finding for rule in RULES for finding in rule.findings(cluster)]
    return tuple(sorted(found, key=lambda finding: finding.place.line))


def table() -> str:
    """The rules as a table of Markdown, for the documents."""
    lines = ["| rule | weight | what holds | missed today by |", "|---|---|---|---|"]
    for rule in RULES:
        lines.append(f"| `{rule.name}` | {rule.weight.value} | {rule.means} | {rule.missed_by} |")
    return "\n".join(lines) + "\n"
