"""The indicators that our objectives are held against, as recording rules of Prometheus."""

from __future__ import annotations

from typing import Any

#: Failures of dials that are ours; the others say something about targets or policy.
OUR_FAILURES = "no_agent|agent_lost|too_many|internal"
THEIR_FAILURES = "refused|timed_out|unreachable|unresolved"
#: The share of dials that should not fail by us.
OBJECTIVE = 0.999
GO = "konnectivity_network_proxy_"


_FAULTS = f'isthmus_server_dial_failures_total{{reason=~"{OUR_FAILURES}"}}'
#: A ratio over a few dials means little: its alerts also need this many failures in the window.
_LEAST_FAILURES = 5


def _enough(failures: str, window: str, by: str) -> str:
    return f"sum by ({by}) (increase({failures}[{window}])) >= {_LEAST_FAILURES}"


def enough_faults(window: str) -> str:
    """Whether more dials failed by us than may happen to a server that has little to do."""
    return _enough(_FAULTS, window, "job")


def _fault_ratio(window: str) -> str:
    return (
        f"sum by (job) (rate({_FAULTS}[{window}])) / "
        f"(sum by (job) (rate({GO}server_dial_duration_seconds_count[{window}]))"
        f" + sum by (job) (rate(isthmus_server_dial_failures_total[{window}])))"
    )


def fault_ratio_name(window: str) -> str:
    """What the share of dials that failed by us is recorded as."""
    return f"isthmus:server_dial_faults:ratio_rate{window}"


#: What becomes of connections from nodes that fail, for whatever reason. Who leaves at once, as a
#: probe does, and who comes from outside is nobody whom we failed.
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
    """Whether more of them failed than may happen to a node that has little to ask."""
    return _enough(_FAILED_CONNECTIONS, window, by)


def node_failure_name(window: str) -> str:
    """What the share of connections from nodes that failed is recorded as."""
    return f"isthmus:agent_node_connection_failures:ratio_rate{window}"


WINDOWS = ("5m", "30m", "1h", "6h")


def recorded() -> list[dict[str, Any]]:
    """Rules that only compute: the indicators that objectives are held against."""
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
