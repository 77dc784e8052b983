"""The metrics of the HTTP proxy sidecar: those of both, and what plain HTTP requests count."""

from __future__ import annotations

from isthmus.frame.observe.counters import Family, by_name, counter, one
from isthmus.programs.sidecar.metrics import SidecarMetrics


class HttpsProxyMetrics(SidecarMetrics):
    """Everything that the HTTPS sidecar counts."""

    program = "https_proxy"
    carried_by = "tunnels and by plain HTTP requests and answers"

    def __init__(self) -> None:
        self.answers = dict.fromkeys(("1xx", "2xx", "3xx", "4xx", "5xx"), 0)
        self.sent_again = 0
        self.reused = 0
        super().__init__()

    def answered(self, status: int) -> None:
        """Count the answer of a destination to a plain request."""
        self.answers[f"{min(max(status // 100, 1), 5)}xx"] += 1

    def _own_families(self) -> list[Family]:
        ours = f"isthmus_{self.program}_"
        return [
            *super()._own_families(),
            counter(
                f"{ours}answers_total",
                "Answers of destinations to plain HTTP requests, by class of their status.",
                by_name(self.answers),
                ("status",),
            ),
            counter(
                f"{ours}connections_reused_total",
                "Plain HTTP requests sent on the connection of the one before.",
                one(lambda: self.reused),
            ),
            counter(
                f"{ours}requests_sent_again_total",
                "Plain HTTP requests sent on a new connection because a reused one had closed.",
                one(lambda: self.sent_again),
            ),
        ]
