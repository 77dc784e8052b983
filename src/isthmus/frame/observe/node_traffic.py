"""An agent's counts of connections from its node to the control plane (KEP-2025)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType

from isthmus.errors import DialFailure
from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import (
    Family,
    Histogram,
    Samples,
    by_enum,
    by_name,
    counter,
    gauge,
    histogram,
    one,
)

DIAL_BUCKETS_S = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)


class NodeResult(Enum):
    """The result of a connection accepted from the node."""

    JOINED = "a server reached the destination, and the tunnel is open"
    DENIED = "the server does not permit the destination"
    FAILED = "no server reached the destination"
    NO_SERVER = "no server that carries node traffic was linked in time"
    UNANSWERED = "no server answered in time"
    TOO_MANY = "too many others are waiting or open"
    OUTSIDE = "the connection arrived on an uplink, from another machine"
    LEFT = "the client left at once"
    GAVE_UP = "the client left after waiting for a second or longer"
    DRAINED = "the agent is stopping"


def _none() -> Mapping[str, float]:
    return MappingProxyType({})


class NodeMetrics:
    """Counts; the gauges are read at scrape time, and replaced if there is such traffic."""

    def __init__(self) -> None:
        self.results = dict.fromkeys(NodeResult, 0)
        self.failures = dict.fromkeys(DialFailure, 0)
        self.unanswered = 0
        self.lost = 0
        self.dials = Histogram(DIAL_BUCKETS_S)
        #: Connections by state, and servers by whether they carry them.
        self.connections: Callable[[], Mapping[str, float]] = _none
        self.servers: Callable[[], Mapping[str, float]] = _none
        self.listening: Callable[[], int] = lambda: 0
        #: Whether such connections can be served; None if there is no such traffic.
        self.ready: Callable[[], bool] | None = None

    def joined(self, seconds: float, connection_id: str) -> None:
        """Count a connection that became a tunnel, and the time since it was accepted."""
        self.results[NodeResult.JOINED] += 1
        self.dials.observe(seconds, connection_id)

    def ended(self, result: NodeResult) -> None:
        """Count a connection that did not become a tunnel."""
        self.results[result] += 1

    def dial_failed(self, failure: DialFailure) -> None:
        """Count a server's answer that it failed or refused to dial."""
        self.failures[failure] += 1

    def _ready(self) -> Samples:
        return () if self.ready is None else (((), int(self.ready())),)

    def families(self) -> list[Family]:
        """The metric families."""
        ours = "isthmus_agent_node_"
        return [
            counter(
                f"{ours}connections_total",
                "Connections accepted from the node, by result.",
                by_enum(self.results),
                ("result",),
            ),
            gauge(
                f"{ours}connections",
                "Connections from the node, by state: waiting for a server, or open.",
                lambda: by_name(self.connections())(),
                ("state",),
                merge=Merge.SUM,
            ),
            histogram(
                f"{ours}dial_duration_seconds",
                "Time from accepting a connection of the node until a server reached the"
                " destination.",
                self.dials,
            ),
            counter(
                f"{ours}dial_failures_total",
                "Dial failures answered by servers for connections from the node, by reason;"
                " another server may have been asked afterwards.",
                by_enum(self.failures),
                ("reason",),
            ),
            counter(
                f"{ours}dials_unanswered_total",
                "Dials that a server did not answer in time; konnectivity's own server never"
                " answers.",
                one(lambda: self.unanswered),
            ),
            counter(
                f"{ours}dials_lost_total",
                "Dials whose link was lost before the answer.",
                one(lambda: self.lost),
            ),
            gauge(
                f"{ours}listeners",
                "Ports listening for connections from the node.",
                one(lambda: self.listening()),
                merge=Merge.SUM,
            ),
            gauge(
                f"{ours}traffic_ready",
                "1 while connections from the node can be served, else 0; absent without --target.",
                self._ready,
                merge=Merge.MIN,
            ),
            gauge(
                f"{ours}servers",
                "Connected servers, by whether they carry connections from the node.",
                lambda: by_name(self.servers())(),
                ("carries",),
                merge=Merge.SUM,
            ),
        ]
