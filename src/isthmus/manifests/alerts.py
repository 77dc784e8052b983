"""Prometheus rules over our metrics, as a file and as an object of the Prometheus operator.

What to do about each alert is docs/how-to/monitoring.md; that every name is a metric of ours, that
promtool takes the rules, and that each alert fires and stays quiet is tested.
"""

from __future__ import annotations

from typing import Any

from isthmus.manifests.alert_list import ALERTS
from isthmus.manifests.indicators import recorded
from isthmus.settings.go_yaml_writing import to_yaml


def rules() -> dict[str, Any]:
    """The rules file, as values."""
    return {
        "groups": [
            {"name": "isthmus.recorded", "rules": recorded()},
            {"name": "isthmus.alerts", "rules": [alert.to_rule() for alert in ALERTS]},
        ]
    }


def rules_text() -> str:
    """Write the rules file for Prometheus."""
    return to_yaml([rules()])


def prometheus_rule(*, name: str, namespace: str) -> str:
    """Write the same as an object of the Prometheus operator."""
    meta = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": "isthmus"}}
    return to_yaml(
        [
            {
                "apiVersion": "monitoring.coreos.com/v1",
                "kind": "PrometheusRule",
                "metadata": meta,
                "spec": rules(),
            }
        ]
    )
