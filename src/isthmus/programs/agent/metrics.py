"""The metrics of an agent and their names.

Names that start with ``konnectivity_network_proxy_`` mean what they mean in konnectivity.
frame/observe/program.py has the metrics common to all programs.
"""

from __future__ import annotations

from isthmus.errors import DialFailure
from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import (
    Family,
    Samples,
    by_name,
    counted,
    counter,
    gauge,
    histogram,
    one,
)
from isthmus.frame.observe.node_traffic import NodeMetrics
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.frame.revoking import RevocationMetrics

AGENT_DIAL_BUCKETS_S = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)


class AgentMetrics(ProgramMetrics):
    """The metrics of an agent."""

    program = "agent"

    def __init__(self) -> None:
        self.node = NodeMetrics()
        self.endpoint_denials: dict[str, int] = {}
        self.revocation = RevocationMetrics()
        super().__init__(AGENT_DIAL_BUCKETS_S)

    def endpoint_denied(self, entry: str) -> None:
        """Count a dial that this entry of the agent's lists denied."""
        self.endpoint_denials[entry] = self.endpoint_denials.get(entry, 0) + 1

    def _go_dial_failures(self) -> Samples:
        timeouts = self.dial_failures[DialFailure.TIMED_OUT]
        rest = sum(self.dial_failures.values()) - timeouts
        return (("timeout",), timeouts), (("unknown",), rest)

    def _own_families(self) -> list[Family]:
        go, gauges = "konnectivity_network_proxy_agent_", self.gauges
        return [
            histogram(
                f"{go}dial_duration_seconds",
                "Latency of dial to the remote endpoint in seconds",
                self.dials,
            ),
            counter(
                f"{go}endpoint_dial_failure_total",
                "Number of failures dialing the remote endpoint, by reason (example: timeout).",
                counted(self._go_dial_failures),
                ("reason",),
            ),
            self.packet_family(go),
            *self.leases.agent_families(go),
            gauge(
                f"{go}open_server_connections",
                "Current number of open server connections.",
                one(lambda: gauges.links()),
                merge=Merge.SUM,
            ),
            gauge(
                f"{go}known_server_count",
                "Current number of servers agent is trying to connect to.",
                one(lambda: gauges.known_servers()),
                merge=Merge.MAX,
            ),
            gauge(
                f"{go}open_endpoint_connections",
                "Current number of open endpoint connections.",
                one(lambda: gauges.tunnels()),
                merge=Merge.SUM,
            ),
            counter(
                "isthmus_agent_endpoint_denials_total",
                "Dials denied by an entry of --endpoint-deny, by entry; (not allowed) if not in"
                " --endpoint-allow.",
                lambda: by_name(self.endpoint_denials)(),
                ("entry",),
            ),
            *self.revocation.families("isthmus_agent_"),
            *self.node.families(),
        ]
