"""Makes a plan from a document: its errors, or its consequences.

The rules are HyperShift's (of its CRD and its controller), those missing from the CRD, and warnings
about settings that are valid but have surprising effects. rules.py defines a rule.
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

#: All current rules, in the order of the documentation.
RULES: Final[tuple[PlanRule, ...]] = (
    *rules_services.RULES,
    *rules_names.RULES,
    *rules_services.NODE_PORT_RULES,
    *rules_platforms.SECTION_RULES,
    *rules_platforms.RULES,
    *rules_networks.RULES,
    *rules_networks.GUEST_RULES,
)

# Rules of every version, besides those about platforms and the webhook.
_ALWAYS = ("other-platform", "private-yet-public", "load-balancer-provider")
_LATER = ("s3-on-aws", "unused-service", "filled-in-service")

#: The rules of each version. ``missed_by`` is known only for today's HyperShift.
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
    """Check a cluster; its objects and endpoints, and who sees them.

    ``keep_sources`` enforces the allowed CIDR blocks for node ports and load balancers to which
    they would not apply otherwise; objects.py says what nodes need for that.
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
    """All errors and warnings, in the order of the document's lines."""
    rules = RULES_OF[cluster.model.api_version]
    found = [finding for rule in rules for finding in rule.findings(cluster)]
    return tuple(sorted(found, key=lambda finding: finding.place.line))


def table(rules: Iterable[PlanRule] = RULES) -> str:
    """Rules as a Markdown table, for the documentation."""
    lines = ["| rule | weight | what holds | missed today by |", "|---|---|---|---|"]
    for rule in rules:
        lines.append(f"| `{rule.name}` | {rule.weight.value} | {rule.means} | {rule.missed_by} |")
    return "\n".join(lines) + "\n"
