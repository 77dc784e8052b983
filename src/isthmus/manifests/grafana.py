"""A dashboard for Grafana over our metrics: rows of panels, laid out on its grid of 24 columns.

What is in it is grafana_panels.py. Grafana takes the text as it is (Dashboards, Import), and asks
which Prometheus to read from.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

COLUMNS = 24
ROW_HEIGHT = 8
_SCHEMA = 39
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query and what its lines are called."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A picture of some queries; ``kind`` and ``unit`` are Grafana's words."""

    title: str
    says: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A heading and its panels; a closed one is looked at when it is opened."""

    title: str
    panels: Sequence[Panel]
    closed: bool = False


def dashboard(rows: Sequence[Row], *, title: str, uid: str) -> str:
    """Write the dashboard as JSON."""
    found = {
        "title": title,
        "uid": uid,
        "tags": ["isthmus", "kubernetes"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": _laid_out(rows),
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _variables() -> list[dict[str, Any]]:
    several = {"multi": True, "includeAll": True, "allValue": ".*", "refresh": 2}
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "job",
            "type": "query",
            "label": "Job",
            "datasource": _SOURCE,
            "query": "label_values(isthmus_build_info, job)",
            **several,
        },
        {
            "name": "instance",
            "type": "query",
            "label": "Instance",
            "datasource": _SOURCE,
            "query": 'label_values(isthmus_build_info{job=~"$job"}, instance)',
            **several,
        },
    ]


def _laid_out(rows: Sequence[Row]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    number, y = 0, 0
    for row in rows:
        number += 1
        head: dict[str, Any] = {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": row.closed,
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y},
            "panels": [],
        }
        y += 1
        panels, x = [], 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + ROW_HEIGHT
            number += 1
            place = {"h": ROW_HEIGHT, "w": panel.width, "x": x, "y": y}
            panels.append({"id": number, "gridPos": place, **_panel(panel)})
            x += panel.width
        y += ROW_HEIGHT
        found.append(head)
        if row.closed:
            head["panels"] = panels
        else:
            found += panels
    return found


def _panel(panel: Panel) -> dict[str, Any]:
    custom = {"stacking": {"mode": "normal"}, "fillOpacity": 30} if panel.stacked else {}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                # A number needs one sample, not a line of them.
                "instant": panel.kind in ("stat", "table"),
                "range": panel.kind not in ("stat", "table"),
                **({"format": "table"} if panel.kind == "table" else {}),
            }
            for index, query in enumerate(panel.queries)
        ],
    }
