"""One alert of Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CRITICAL, WARNING, INFO = "critical", "warning", "info"
_RUNBOOK = "docs/how-to/monitoring.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert: when, for how long, how bad, and what to tell."""

    name: str
    expr: str
    lasting: str
    severity: str
    summary: str
    description: str

    def to_rule(self) -> dict[str, Any]:
        """As in a rules file."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.lasting,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook": f"{_RUNBOOK}#{self.name.lower()}",
            },
        }
