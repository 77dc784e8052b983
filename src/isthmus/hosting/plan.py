"""A document becomes a plan: what is wrong with it, or what follows from it.

The rules are HyperShift's own (its CRD's and its controller's), those that its CRD leaves out, and
things that nobody refuses and that surprise those who get them. What a rule is, is in rules.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from isthmus.hosting import (
    rules_names,
    rules_networks,
    rules_platforms,
    rules_services,
    rules_v1alpha1,
)
from isthmus.hosting.endpoints import endpoints_of
from isthmus.hosting.model import HostedCluster, PlanFinding, PublishPlan, Weight
from isthmus.hosting.models import V1ALPHA1, V1BETA1
from isthmus.hosting.objects import objects
from isthmus.hosting.rules import PlanRule
from isthmus.hosting.rules_endpoints import cidr_findings, surprises

#: Every rule of today, in the order of the documents.
RULES: Final[tuple[PlanRule, ...]] = (
    *rules_services.RULES,
    *rules_names.RULES,
    *rules_services.NODE_PORT_RULES,
    *rules_platforms.SECTION_RULES,
    *rules_platforms.RULES,
    *rules_networks.RULES,
    *rules_networks.GUEST_RULES,
)

# What is true of every version, besides the platforms' and the webhook's.
_ALWAYS = ("other-platform", "private-yet-public", "load-balancer-provider")
_LATER = ("s3-on-aws", "unused-service", "filled-in-service")

#: The rules of each version. Who else missed what they find is known of today's HyperShift alone.
RULES_OF: Final[Mapping[str, tuple[PlanRule, ...]]] = {
    V1BETA1.api_version: RULES,
    V1ALPHA1.api_version: (
        *rules_v1alpha1.RULES,
        *(
            replace(rule, missed_by="")
            for rule in (
                *(rule for rule in rules_services.RULES if rule.name not in _LATER),
                *rules_names.RULES,
                *rules_services.NODE_PORT_RULES,
                *(rule for rule in rules_platforms.RULES if rule.name in _ALWAYS),
                *rules_networks.RULES,
            )
        ),
    ),
}


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
    rules = RULES_OF[cluster.model.api_version]
    found = [finding for rule in rules for finding in rule.findings(cluster)]
    return tuple(sorted(found, key=lambda finding: finding.place.line))


def table(rules: Iterable[PlanRule] = RULES) -> str:
    """Rules as a table of Markdown, for the documents."""
    lines = ["| rule | weight | what holds | missed today by |", "|---|---|---|---|"]
    for rule in rules:
        lines.append(f"| `{rule.name}` | {rule.weight.value} | {rule.means} | {rule.missed_by} |")
    return "\n".join(lines) + "\n"
