"""The indicators that our objectives are held against, as recording rules of Prometheus."""

from __future__ import annotations

from typing import Any

#: Failures of dials that are ours; the others say something about targets or policy.
OUR_FAILURES = "no_agent|agent_lost|too_many|internal"
THEIR_FAILURES = "refused|timed_out|unreachable|unresolved"
#: The share of dials that should not fail by us.
OBJECTIVE = 0.999
GO = "konnectivity_network_proxy_"


def _fault_ratio(window: str) -> str:
    return (
        f'sum by (job) (rate(isthmus_server_dial_failures_total{{reason=~"{OUR_FAILURES}"}}'
        f"[{window}])) / "
        f"(sum by (job) (rate({GO}server_dial_duration_seconds_count[{window}]))"
        f" + sum by (job) (rate(isthmus_server_dial_failures_total[{window}])))"
    )


def fault_ratio_name(window: str) -> str:
    """What the share of dials that failed by us is recorded as."""
    return f"isthmus:server_dial_faults:ratio_rate{window}"


WINDOWS = ("5m", "30m", "1h", "6h")


def recorded() -> list[dict[str, Any]]:
    """Rules that only compute: the indicators that objectives are held against."""
    return [
        *({"record": fault_ratio_name(window), "expr": _fault_ratio(window)} for window in WINDOWS),
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
