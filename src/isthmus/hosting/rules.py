"""What may be published how: every rule, in one table, and the check that asks all of them.

The rules are HyperShift's own (its CRD's and its controller's), those that its CRD leaves out, and
things that nobody refuses and that surprise whoever gets them. Whether allowed CIDR blocks hold for
what is published is said in cidrs.py.
"""

from __future__ import annotations

from typing import Final

from isthmus.hosting import (
    rules_names,
    rules_networks,
    rules_platforms,
    rules_ports,
    rules_services,
)
from isthmus.hosting.model import Finding, HostedCluster
from isthmus.hosting.rule import Rule

#: Every rule, in the order of the documents.
RULES: Final[tuple[Rule, ...]] = (
    *rules_services.RULES,
    *rules_names.RULES,
    *rules_ports.RULES,
    *rules_platforms.RULES,
    *rules_networks.RULES,
)


def check(cluster: HostedCluster) -> tuple[Finding, ...]:
    """Everything that is wrong or surprising, in the order of the document's lines."""
    found = [finding for rule in RULES for finding in rule.findings(cluster)]
    return tuple(sorted(found, key=lambda finding: finding.place.line))


def table() -> str:
    """The rules as a table of Markdown, for the documents."""
    lines = ["| rule | weight | what holds | missed today by |", "|---|---|---|---|"]
    for rule in RULES:
        lines.append(f"| `{rule.name}` | {rule.weight.value} | {rule.means} | {rule.missed_by} |")
    return "\n".join(lines) + "\n"
