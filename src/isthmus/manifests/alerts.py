"""Prometheus rules over the metrics: indicators for the objectives, and every alert.

A new alert needs a section in docs/how-to/monitoring.md, which says what to do, and a case in the
tests: that every name is a metric, that promtool takes the rules, and that each alert fires and
stays quiet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from isthmus.net.rules_expiry import BAD, BAD_SHARE, WARN, WARN_SHARE
from isthmus.text.go_yaml import to_yaml

#: Dial failures caused by Isthmus; the others are caused by targets or policy.
OUR_FAILURES = "no_agent|agent_lost|too_many|internal"
THEIR_FAILURES = "refused|timed_out|unreachable|unresolved"
#: The share of dials that must not fail because of Isthmus.
OBJECTIVE = 0.999
GO = "konnectivity_network_proxy_"


_FAULTS = f'isthmus_server_dial_failures_total{{reason=~"{OUR_FAILURES}"}}'
#: A ratio over few dials means little: its alerts also need this many failures in the window.
_LEAST_FAILURES = 5


def _enough(failures: str, window: str, by: str) -> str:
    return f"sum by ({by}) (increase({failures}[{window}])) >= {_LEAST_FAILURES}"


def enough_faults(window: str) -> str:
    """An expression: enough dials failed in the window for their ratio to mean something."""
    return _enough(_FAULTS, window, "job")


def _fault_ratio(window: str) -> str:
    return (
        f"sum by (job) (rate({_FAULTS}[{window}])) / "
        f"(sum by (job) (rate({GO}server_dial_duration_seconds_count[{window}]))"
        f" + sum by (job) (rate(isthmus_server_dial_failures_total[{window}])))"
    )


def fault_ratio_name(window: str) -> str:
    """The name of the recorded share of dials that failed because of Isthmus."""
    return f"isthmus:server_dial_faults:ratio_rate{window}"


#: Results of connections from nodes that count as failed. A client that leaves at once, such as a
#: probe, and one from outside the node do not count.
NODE_FAILURES = "denied|failed|no_server|unanswered|too_many|gave_up|drained"


_NODE_CONNECTIONS = "isthmus_agent_node_connections_total"
_FAILED_CONNECTIONS = f'{_NODE_CONNECTIONS}{{result=~"{NODE_FAILURES}"}}'


def node_failures(window: str, by: str) -> str:
    """The share of connections from nodes to the control plane that fail."""
    counted = f'{_NODE_CONNECTIONS}{{result=~"joined|{NODE_FAILURES}"}}'
    return (
        f"sum by ({by}) (rate({_FAILED_CONNECTIONS}[{window}])) / "
        f"sum by ({by}) (rate({counted}[{window}]))"
    )


def enough_node_failures(window: str, by: str = "job") -> str:
    """An expression: enough of them failed in the window for their ratio to mean something."""
    return _enough(_FAILED_CONNECTIONS, window, by)


def node_failure_name(window: str) -> str:
    """The name of the recorded share of connections from nodes that failed."""
    return f"isthmus:agent_node_connection_failures:ratio_rate{window}"


WINDOWS = ("5m", "30m", "1h", "6h")


def recorded() -> list[dict[str, Any]]:
    """Recording rules: the indicators for the objectives."""
    return [
        *({"record": fault_ratio_name(window), "expr": _fault_ratio(window)} for window in WINDOWS),
        *(
            {"record": node_failure_name(window), "expr": node_failures(window, "job")}
            for window in WINDOWS
        ),
        {
            "record": "isthmus:agent_node_dial_duration_seconds:p99_rate5m",
            "expr": "histogram_quantile(0.99, sum by (job, le)"
            " (rate(isthmus_agent_node_dial_duration_seconds_bucket[5m])))",
        },
        {
            "record": "isthmus:server_dial_duration_seconds:p99_rate5m",
            "expr": "histogram_quantile(0.99, sum by (job, le)"
            f" (rate({GO}server_dial_duration_seconds_bucket[5m])))",
        },
        {
            "record": "isthmus:server_bytes:rate5m",
            "expr": "sum by (job, direction) (rate(isthmus_server_bytes_total[5m]))",
        },
    ]


CRITICAL, WARNING, INFO = "critical", "warning", "info"
_RUNBOOK = "docs/how-to/monitoring.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusAlert:
    """One alert: condition, duration, severity and text."""

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


_BUDGET = 1 - OBJECTIVE


def _burns(
    short: str,
    long: str,
    factor: float,
    name: Callable[[str], str] = fault_ratio_name,
    enough: Callable[[str], str] = enough_faults,
) -> str:
    limit = f"{factor * _BUDGET:.4g}"
    return f"{name(short)} > {limit} and {name(long)} > {limit} and {enough(long)}"


def _any(suffix: str) -> str:
    """The metric of every Isthmus program that has one."""
    return f'{{__name__=~"isthmus_.+_{suffix}"}}'


def _certificate_left(least: timedelta, share: int) -> str:
    """An expression: the certificate is past a limit of net/rules_expiry.py."""
    end, start = (_any(f"certificate_{it}_timestamp_seconds") for it in ("expiry", "start"))
    return f"{end} - time() < clamp_max(({end} - {start}) / {share}, {least.days} * 86400)"


def _new(suffix: str, window: str) -> str:
    """The growth of a counter of any program."""
    # Aggregated, because programs in one pod may differ only by metric name, which rate() drops.
    labelled = f'label_replace({_any(suffix)}, "metric", "$1", "__name__", "(.+)")'
    return f"sum by (job, instance, metric) (increase(({labelled})[{window}:1m]))"


_AT = "{{ $labels.instance }}"

ALERTS = (
    PrometheusAlert(
        name="IsthmusServerNoAgents",
        expr=f"max by (job, instance) ({GO}server_ready_backends) == 0",
        lasting="2m",
        severity=CRITICAL,
        summary=f"Server {_AT} has no agents",
        description="Nothing in the cluster is reachable through this server: logs, exec,"
        " webhooks and aggregated APIs fail.",
    ),
    PrometheusAlert(
        name="IsthmusDialsFailFast",
        expr=_burns("5m", "1h", 14.4),
        lasting="2m",
        severity=CRITICAL,
        summary="{{ $value | humanizePercentage }} of {{ $labels.job }} dials fail because of"
        " Isthmus",
        description="At this rate the monthly error budget (objective 99.9 %) is used up in two"
        " days. Failures at targets are not included.",
    ),
    PrometheusAlert(
        name="IsthmusDialsFailSlow",
        expr=_burns("30m", "6h", 6),
        lasting="15m",
        severity=WARNING,
        summary="{{ $value | humanizePercentage }} of {{ $labels.job }} dials fail because of"
        " Isthmus",
        description="At this rate the monthly error budget (objective 99.9 %) is used up in five"
        " days.",
    ),
    PrometheusAlert(
        name="IsthmusDialsSlow",
        expr="isthmus:server_dial_duration_seconds:p99_rate5m > 2.5",
        lasting="10m",
        severity=WARNING,
        summary="The p99 of dial times is {{ $value | humanizeDuration }}",
        description="Targets, the network behind the agents, or name resolution there are slow."
        " The snapshot shows which agents are affected.",
    ),
    PrometheusAlert(
        name="IsthmusTargetsFail",
        expr=f'sum by (job) (rate(isthmus_server_dial_failures_total{{reason=~"{THEIR_FAILURES}"}}'
        f"[15m])) > sum by (job) (rate({GO}server_dial_duration_seconds_count[15m]))",
        lasting="15m",
        severity=WARNING,
        summary="More dials of {{ $labels.job }} fail at their targets than succeed",
        description="Agents are connected, but the targets refuse connections, are unreachable,"
        " or their names do not resolve.",
    ),
    PrometheusAlert(
        name="IsthmusAgentNoServer",
        expr=f"{GO}agent_open_server_connections == 0",
        lasting="2m",
        severity=CRITICAL,
        summary=f"Agent {_AT} is linked to no server",
        description="No dials can use this agent, and connections from its node to the control"
        " plane wait.",
    ),
    PrometheusAlert(
        name="IsthmusAgentMissesServers",
        expr=f"{GO}agent_open_server_connections < {GO}agent_known_server_count"
        f" and {GO}agent_open_server_connections > 0",
        lasting="10m",
        severity=WARNING,
        summary=f"Agent {_AT} is not linked to every server",
        description="Dials at the missing servers cannot use this agent.",
    ),
    PrometheusAlert(
        name="IsthmusLinksBreak",
        expr="sum by (job, instance) (increase(isthmus_server_link_failures_total"
        '{reason="lost"}[15m])) > 10',
        lasting="5m",
        severity=WARNING,
        summary=f"Server {_AT} lost {{{{ $value | humanize }}}} links in 15 minutes",
        description="Tunnels on a lost link are reset. Check the network between server and"
        " agents, and idle timeouts of load balancers.",
    ),
    PrometheusAlert(
        name="IsthmusAgentsRefused",
        expr="sum by (job, instance) (increase(isthmus_server_link_failures_total"
        '{reason=~"tls|refused|protocol"}[15m])) > 3',
        lasting="5m",
        severity=WARNING,
        summary=f"Server {_AT} refuses agents",
        description="The server does not accept their certificates, tokens or identifiers.",
    ),
    PrometheusAlert(
        name="IsthmusCertificateExpires",
        expr=_certificate_left(WARN, WARN_SHARE),
        lasting="1h",
        severity=WARNING,
        summary=f"{{{{ $labels.file }}}} of {_AT} expires in {{{{ $value | humanizeDuration }}}}",
        description="Renew the certificate and replace the file. No restart is needed.",
    ),
    PrometheusAlert(
        name="IsthmusCertificateExpiresSoon",
        expr=_certificate_left(BAD, BAD_SHARE),
        lasting="5m",
        severity=CRITICAL,
        summary=f"{{{{ $labels.file }}}} of {_AT} expires in {{{{ $value | humanizeDuration }}}}",
        description="After that, every new link and connection that needs the certificate fails.",
    ),
    PrometheusAlert(
        name="IsthmusReloadFails",
        expr=f"{_new('reload_failures_total', '15m')} > 0",
        lasting="0m",
        severity=WARNING,
        summary=f"{_AT} could not reload a changed file",
        description="The previous version stays in use ({{ $labels.metric }}). The program's log"
        " has the file and the error.",
    ),
    PrometheusAlert(
        name="IsthmusEventLoopStalls",
        expr=f"{_new('loop_stalls_total', '10m')} > 0",
        lasting="0m",
        severity=WARNING,
        summary=f"The event loop of {_AT} was blocked for more than 5 seconds",
        description="The log has the stack of the blocked code. Without one, the machine gave the"
        " program no CPU time.",
    ),
    PrometheusAlert(
        name="IsthmusServerBusy",
        expr="histogram_quantile(0.99, sum by (job, instance, le)"
        " (rate(isthmus_server_loop_lag_seconds_bucket[5m]))) > 0.1",
        lasting="15m",
        severity=WARNING,
        summary=f"Server {_AT} is overloaded",
        description="One CPU core is not enough: the event loop is late, which delays all"
        " tunnels. Add servers or workers.",
    ),
    PrometheusAlert(
        name="IsthmusMemoryHeld",
        expr="isthmus_server_held_bytes > 512 * 1024 * 1024",
        lasting="10m",
        severity=WARNING,
        summary=f"Server {_AT} holds {{{{ $value | humanize1024 }}}}B of unread data",
        description="Clients or targets stopped reading. The snapshot shows which tunnels are"
        " stalled.",
    ),
    PrometheusAlert(
        name="IsthmusStreamsReset",
        expr=f"{_new('streams_reset_for_budget_total', '15m')} > 0",
        lasting="0m",
        severity=WARNING,
        summary=f"{_AT} reset connections to stay within its memory budget",
        description="The reset connections held the most memory, and their readers had stopped"
        " reading.",
    ),
    PrometheusAlert(
        name="IsthmusAuditLosesRecords",
        expr="sum by (job, instance) (increase(isthmus_server_audit_records_dropped_total[15m])"
        " + increase(isthmus_server_audit_write_errors_total[15m])) > 0",
        lasting="0m",
        severity=CRITICAL,
        summary=f"The audit log of {_AT} is incomplete",
        description="Records were dropped because the log cannot be written, or not fast enough."
        " Check the disk.",
    ),
    PrometheusAlert(
        name="IsthmusAuditNotWritten",
        expr="max by (job, instance) (isthmus_server_audit_failing) > 0",
        lasting="1m",
        severity=CRITICAL,
        summary=f"{_AT} cannot write its audit log",
        description="The disk is full, or the file cannot be opened. With --audit-on-failure=deny"
        " the server refuses all new connections until the log can be written.",
    ),
    PrometheusAlert(
        name="IsthmusFilesRunOut",
        expr="process_open_fds / process_max_fds > 0.8"
        " and on (job, instance) isthmus_build_info",
        lasting="5m",
        severity=WARNING,
        summary=f"{_AT} uses {{{{ $value | humanizePercentage }}}} of its file descriptors",
        description="A server needs one for each client connection, an agent one for each target"
        " connection. Raise the limit (LimitNOFILE=).",
    ),
    PrometheusAlert(
        name="IsthmusDrainsForLong",
        expr=f"{_any('draining')} == 1",
        lasting="10m",
        severity=WARNING,
        summary=f"{_AT} has been draining for more than 10 minutes",
        description="It refuses new dials. Long-running tunnels keep it running, or nothing stops"
        " it.",
    ),
    PrometheusAlert(
        name="IsthmusNodesCutOff",
        expr=f"{node_failures('10m', 'job, instance')} > 0.5"
        f" and {enough_node_failures('10m', 'job, instance')}"
        " or max by (job, instance) (isthmus_agent_node_traffic_ready) == 0",
        lasting="5m",
        severity=CRITICAL,
        summary=f"The node of {_AT} cannot reach the control plane",
        description="Most connections from the node fail, or none can be served: they are denied,"
        " refused or not answered, or no server supports them. See /readyz and the log of the"
        " agent.",
    ),
    PrometheusAlert(
        name="IsthmusNodeConnectionsFail",
        expr=_burns("5m", "1h", 14.4, node_failure_name, enough_node_failures),
        lasting="2m",
        severity=CRITICAL,
        summary="{{ $value | humanizePercentage }} of connections from nodes of {{ $labels.job }}"
        " to the control plane fail",
        description="All failures are included. At this rate the monthly error budget (objective"
        " 99.9 %) is used up in two days.",
    ),
    PrometheusAlert(
        name="IsthmusUpstreamDown",
        expr="isthmus_apiserver_proxy_upstream_up == 0",
        lasting="5m",
        severity=WARNING,
        summary=f"Upstream {{{{ $labels.upstream }}}} of {_AT} is down",
        description="Connections use the other upstreams, if any.",
    ),
    PrometheusAlert(
        name="IsthmusNoUpstream",
        expr="max by (job, instance) (isthmus_apiserver_proxy_upstream_up) == 0",
        lasting="1m",
        severity=CRITICAL,
        summary=f"All upstreams of {_AT} are down",
        description="The node cannot reach kube-apiserver.",
    ),
    PrometheusAlert(
        name="IsthmusGuestNamesFail",
        expr=f"{_any('tunnel_healthy')} == 0",
        lasting="5m",
        severity=WARNING,
        summary=f"Sidecar {_AT} cannot reach the guest cluster's DNS",
        description="Until it can, names are resolved by the management cluster's DNS.",
    ),
    PrometheusAlert(
        name="IsthmusServiceRulesFail",
        expr="sum by (job, instance) ("
        "increase(kubeproxy_sync_proxy_rules_iptables_restore_failures_total[15m])) > 0"
        " or sum by (job, instance) ("
        "increase(kubeproxy_sync_proxy_rules_nftables_sync_failures_total[15m])) > 0",
        lasting="5m",
        severity=CRITICAL,
        summary=f"Node proxy {_AT} cannot write its rules",
        description="Services on this node keep their last rules; changes are not applied.",
    ),
    PrometheusAlert(
        name="IsthmusVersionsDiffer",
        expr="count by (program) (count by (program, version) (isthmus_build_info)) > 1",
        lasting="1d",
        severity=INFO,
        summary="More than one version of {{ $labels.program }} has been running for a day",
        description="Adjacent versions are compatible, but an update may have stopped half-way.",
    ),
)  # fmt: skip


def rules() -> dict[str, Any]:
    """Build the rules file as values."""
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
    """Write the same rules as a PrometheusRule of the Prometheus operator."""
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
