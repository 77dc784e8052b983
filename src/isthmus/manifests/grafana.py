"""A Grafana dashboard for the metrics: rows of panels on Grafana's grid of 24 columns.

What is in it is grafana_panels.py. Grafana takes the text as it is (Dashboards, Import), and asks
which Prometheus to read from.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.manifests.alerts import GO, NODE_FAILURES, OUR_FAILURES

COLUMNS = 24
ROW_HEIGHT = 8
_SCHEMA = 39
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query and the legend of its lines."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel of queries; ``kind`` and ``unit`` are Grafana's words."""

    title: str
    says: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    stacked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelRow:
    """A heading and its panels; Grafana loads a collapsed row when it is opened."""

    title: str
    panels: Sequence[Panel]
    closed: bool = False


def dashboard(rows: Sequence[PanelRow], *, title: str, uid: str) -> str:
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


def _laid_out(rows: Sequence[PanelRow]) -> list[dict[str, Any]]:
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


_AT = 'job=~"$job",instance=~"$instance"'
_RATE = "[$__rate_interval]"


def _sum(metric: str, *by: str, labels: str = "") -> str:
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"sum{grouped} (rate({metric}{{{_AT}{labels}}}{_RATE}))"


def _now(metric: str, *by: str, function: str = "sum") -> str:
    grouped = f" by ({', '.join(by)})" if by else ""
    return f"{function}{grouped} ({metric}{{{_AT}}})"


def _least(metric: str, *by: str) -> str:
    return _now(metric, *by, function="min")


def _quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, {_sum(f'{metric}_bucket', 'le')})"


def _quantiles(metric: str) -> tuple[Query, ...]:
    return tuple(
        Query(expr=_quantile(share, metric), legend=name)
        for share, name in ((0.5, "median"), (0.9, "90 %"), (0.99, "99 %"))
    )


_DIALS = f"{GO}server_dial_duration_seconds"
_FAILED = "isthmus_server_dial_failures_total"
_OURS = f',reason=~"{OUR_FAILURES}"'
_NODES = "isthmus_agent_node_connections_total"
_LOST = f',result=~"{NODE_FAILURES}"'
_TRIED = f',result=~"joined|{NODE_FAILURES}"'

OVERVIEW = PanelRow(
    title="Overview",
    panels=(
        Panel(
            title="Dials without internal failure",
            says="Failures at targets and denials are not counted. The objective is 99.9 %.",
            kind="stat",
            unit="percentunit",
            width=6,
            queries=(
                Query(
                    expr=f"1 - {_sum(_FAILED, labels=_OURS)}"
                    f" / ({_sum(f'{_DIALS}_count')} + {_sum(_FAILED)})"
                ),
            ),
        ),
        Panel(
            title="Agents",
            says="Agents ready at the servers; an agent counts once for each server.",
            kind="stat",
            width=6,
            queries=(
                Query(
                    expr=_now(f"{GO}server_ready_backend_connections", "instance", function="max")
                ),
            ),
        ),
        Panel(
            title="Tunnels",
            says="Open tunnels.",
            kind="stat",
            width=6,
            queries=(Query(expr=_now(f"{GO}server_established_connections")),),
        ),
        Panel(
            title="Next certificate expiry",
            says="Time until the first certificate in use expires.",
            kind="stat",
            unit="s",
            width=6,
            queries=(
                Query(
                    expr="min ({__name__=~"
                    f'"isthmus_.+_certificate_expiry_timestamp_seconds",{_AT}}}) - time()'
                ),
            ),
        ),
    ),
)
DIALS = PanelRow(
    title="Dials",
    panels=(
        Panel(
            title="Dials",
            says="Dials per second, by result.",
            unit="reqps",
            queries=(
                Query(expr=_sum(f"{_DIALS}_count"), legend="succeeded"),
                Query(expr=_sum(_FAILED), legend="failed"),
            ),
        ),
        Panel(
            title="Failures by reason",
            says="no_agent, agent_lost, too_many and internal are failures of Isthmus; the others"
            " are caused by targets, name resolution and policy.",
            unit="reqps",
            stacked=True,
            queries=(Query(expr=f"{_sum(_FAILED, 'reason')} > 0", legend="{{reason}}"),),
        ),
        Panel(
            title="Dial duration",
            says="Time from the request until the target was connected.",
            unit="s",
            queries=_quantiles(_DIALS),
        ),
        Panel(
            title="Pending dials",
            says="Grows when agents or targets do not answer.",
            queries=(Query(expr=_now(f"{GO}server_pending_backend_dials", "instance"),
                           legend="{{instance}}"),),
        ),
        Panel(
            title="Tunnel endings",
            says="Every ending except clean was a reset on both sides.",
            unit="reqps",
            stacked=True,
            queries=(
                Query(
                    expr=f"{_sum('isthmus_server_tunnels_ended_total', 'ending')} > 0",
                    legend="{{ending}}",
                ),
            ),
        ),
        Panel(
            title="Denied",
            says="Denied dials, by policy rule.",
            unit="reqps",
            queries=(
                Query(expr=f"{_sum('isthmus_server_policy_denials_total', 'rule')} > 0",
                      legend="{{rule}}"),
            ),
        ),
    ),
)  # fmt: skip
TRAFFIC = PanelRow(
    title="Traffic and links",
    panels=(
        Panel(
            title="Bytes",
            says="Carried by tunnels.",
            unit="Bps",
            queries=(
                Query(expr=_sum("isthmus_server_bytes_total", "direction"), legend="{{direction}}"),
            ),
        ),
        Panel(
            title="Tunnels by server",
            says="Open tunnels.",
            queries=(
                Query(
                    expr=_now(f"{GO}server_established_connections", "instance"),
                    legend="{{instance}}",
                ),
            ),
        ),
        Panel(
            title="Unread bytes",
            says="Received over links and not read yet.",
            unit="bytes",
            queries=(
                Query(expr=_now("isthmus_server_held_bytes", "instance"), legend="{{instance}}"),
            ),
        ),
        Panel(
            title="Links",
            says="Open links, by server.",
            queries=(Query(expr=_now("isthmus_server_links", "instance"), legend="{{instance}}"),),
        ),
        Panel(
            title="Failed links",
            says="Links that failed to open or were lost; tls and refused are agents that the"
            " server does not accept.",
            unit="reqps",
            stacked=True,
            queries=(
                Query(
                    expr=f"{_sum('isthmus_server_link_failures_total', 'reason')} > 0",
                    legend="{{reason}}",
                ),
            ),
        ),
        Panel(
            title="Agents missing servers",
            says="Number of servers each agent is not linked to.",
            queries=(
                Query(
                    expr=f"{_now(f'{GO}agent_known_server_count', 'instance')}"
                    f" - {_now(f'{GO}agent_open_server_connections', 'instance')} > 0",
                    legend="{{instance}}",
                ),
            ),
        ),
    ),
)
HEALTH = PanelRow(
    title="Programs",
    panels=(
        Panel(
            title="Event loop lag",
            says="p99 of the heartbeat delay. Above 0.1 s one core is not enough.",
            unit="s",
            queries=(
                Query(
                    expr=_quantile(0.99, "isthmus_server_loop_lag_seconds"), legend="server"
                ),
                Query(expr=_quantile(0.99, "isthmus_agent_loop_lag_seconds"), legend="agent"),
            ),
        ),
        Panel(
            title="CPU",
            says="Cores in use.",
            queries=(
                Query(
                    expr=f"{_sum('process_cpu_seconds_total', 'instance')}"
                    " and on (instance) isthmus_build_info",
                    legend="{{instance}}",
                ),
            ),
        ),
        Panel(
            title="Memory",
            says="Resident memory.",
            unit="bytes",
            queries=(
                Query(
                    expr=f"{_now('process_resident_memory_bytes', 'instance')}"
                    " and on (instance) isthmus_build_info",
                    legend="{{instance}}",
                ),
            ),
        ),
        Panel(
            title="Certificates",
            says="Time until each certificate in use expires.",
            kind="table",
            unit="s",
            width=12,
            queries=(
                Query(
                    expr="sort({__name__=~"
                    f'"isthmus_.+_certificate_expiry_timestamp_seconds",{_AT}}} - time())'
                ),
            ),
        ),
        Panel(
            title="Versions",
            says="Number of instances by program and version.",
            kind="table",
            width=12,
            queries=(
                Query(expr=_now("isthmus_build_info", "program", "version", function="count")),
            ),
        ),
    ),
)  # fmt: skip
NODES = PanelRow(
    title="Nodes to the control plane",
    closed=True,
    panels=(
        Panel(
            title="Connections from nodes",
            says="Connections from nodes, by result.",
            unit="reqps",
            stacked=True,
            queries=(
                Query(
                    expr=_sum("isthmus_agent_node_connections_total", "result"), legend="{{result}}"
                ),
            ),
        ),
        Panel(
            title="Failed connections from nodes",
            says="The share of failed connections, for any reason; the objective is 0.1 %.",
            unit="percentunit",
            queries=(
                Query(
                    expr=f"{_sum(_NODES, 'job', labels=_LOST)} / "
                    f"{_sum(_NODES, 'job', labels=_TRIED)}",
                    legend="{{job}}",
                ),
            ),
        ),
        Panel(
            title="Dial duration of connections from nodes",
            says="Time from accepting a connection of the node until a server reached the"
            " destination.",
            unit="s",
            queries=_quantiles("isthmus_agent_node_dial_duration_seconds"),
        ),
        Panel(
            title="Upstreams of apiserver proxies",
            says="1 while the health checks of an upstream succeed.",
            queries=(
                Query(
                    expr=_now(
                        "isthmus_apiserver_proxy_upstream_up",
                        "instance",
                        "upstream",
                        function="min",
                    ),
                    legend="{{instance}} {{upstream}}",
                ),
            ),
        ),
    ),
)
HOSTED = PanelRow(
    title="Sidecars and the node proxy",
    closed=True,
    panels=(
        Panel(
            title="Dials of sidecars",
            says="Successful dials per second.",
            unit="reqps",
            queries=(
                Query(expr=_sum("isthmus_socks5_proxy_dial_duration_seconds_count"),
                      legend="SOCKS5"),
                Query(expr=_sum("isthmus_https_proxy_dial_duration_seconds_count"), legend="HTTP"),
            ),
        ),
        Panel(
            title="Guest cluster's DNS",
            says="0 while the DNS is unreachable through the tunnel.",
            queries=(
                Query(expr=_least("isthmus_socks5_proxy_tunnel_healthy", "instance"),
                      legend="SOCKS5 {{instance}}"),
                Query(expr=_least("isthmus_https_proxy_tunnel_healthy", "instance"),
                      legend="HTTP {{instance}}"),
            ),
        ),
        Panel(
            title="Service rule syncs",
            says="Duration of a sync of Services into the kernel.",
            unit="s",
            queries=_quantiles("kubeproxy_sync_proxy_rules_duration_seconds"),
        ),
    ),
)  # fmt: skip
ROWS = (OVERVIEW, DIALS, TRAFFIC, HEALTH, NODES, HOSTED)


def grafana_text() -> str:
    """Write the dashboard of Isthmus."""
    return dashboard(ROWS, title="Isthmus", uid="isthmus")
