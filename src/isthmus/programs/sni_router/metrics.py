"""The metrics of the SNI router.

Metrics that all programs have are in frame/observe/program.py; those about links are left out,
since a router has none. docs/reference/metrics.md is generated from these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import (
    OTHER,
    Family,
    Histogram,
    Samples,
    by_enum,
    by_name,
    count_one,
    counter,
    gauge,
    histogram,
    no_counts,
    one,
)
from isthmus.frame.observe.program import ProgramMetrics

DIAL_BUCKETS_S = (0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
HELLO_BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)
#: A bound, because every reload may bring new names of routes and backends.
MOST_LABELS = 10_000


class SniRefusal(Enum):
    """Why a connection was not joined to a backend."""

    NO_NAME = "no server name, and no default route"
    UNKNOWN_NAME = "no route for the server name, and no default route"
    NO_PROTOCOL = "the server name has routes, but none for a protocol that the client offers"
    UNKNOWN_TLV = "no route for the TLV of its PROXY header"
    SOURCE_NOT_ALLOWED = "its source is in none of the route's allowedCIDRs"
    NOT_TLS = "no TLS, or an invalid or too large ClientHello"
    LATE = "no complete ClientHello in time"
    LEFT = "the client left before it was joined to a backend"
    CROWDED = "its source used most of --max-hellos while others connected"
    NO_PROXY_HEADER = "a required PROXY header is missing or invalid"
    UNTRUSTED_PROXY = "the client is in none of the networks of --proxy-from"
    TOO_MANY = "--max-connections are open"
    TOO_MANY_OF_SOURCE = "--max-connections-per-source of its address are open"
    ROUTE_FULL = "the route has its maxConnections"
    BACKEND_DOWN = "no backend of the route could be reached"
    LOOP = "the backend's address leads back to this router"


class SniRouterMetrics(ProgramMetrics):
    """All metrics of a router."""

    has_links = False
    program = "sni_router"
    label_values = (("`reason` of `connections_refused_total`", SniRefusal),)

    def __init__(self) -> None:
        self.accepted = 0
        self.refusals = dict.fromkeys(SniRefusal, 0)
        self.routed_to: dict[str, int] = {}
        self.sources_refused: dict[str, int] = {}
        self.backend_failures: dict[tuple[str, str], int] = {}
        self.hellos = Histogram(HELLO_BUCKETS_S)
        self.reloads = 0
        self.reload_failures = 0
        #: Called on every scrape; the program replaces them while it starts.
        self.open_by_route: Callable[[], Mapping[str, float]] = no_counts
        self.waiting_hellos: Callable[[], int] = lambda: 0
        self.routes: Callable[[], int] = lambda: 0
        super().__init__(DIAL_BUCKETS_S)

    def refused(self, why: SniRefusal) -> None:
        """Count a connection that was not joined to a backend."""
        self.refusals[why] += 1

    def routed(self, route: str) -> None:
        """Count a connection that was joined to a backend of this route."""
        count_one(self.routed_to, route, most=MOST_LABELS, other=OTHER)

    def source_refused(self, route: str) -> None:
        """Count a connection whose source this route does not allow."""
        count_one(self.sources_refused, route, most=MOST_LABELS, other=OTHER)

    def backend_failed(self, route: str, backend: str) -> None:
        """Count a dial to a backend that failed, whether or not another one was reached."""
        key, other = (route, backend), (OTHER, OTHER)
        count_one(self.backend_failures, key, most=MOST_LABELS, other=other)

    def _backend_failures(self) -> Samples:
        return list(self.backend_failures.items())

    def _own_families(self) -> list[Family]:
        ours = f"isthmus_{self.program}_"
        return [
            counter(
                f"{ours}connections_accepted_total",
                "Connections accepted.",
                one(lambda: self.accepted),
            ),
            counter(
                f"{ours}connections_routed_total",
                "Connections joined to a backend, by route.",
                by_name(self.routed_to),
                ("route",),
            ),
            counter(
                f"{ours}connections_refused_total",
                "Connections not joined to a backend, by reason.",
                by_enum(self.refusals),
                ("reason",),
            ),
            counter(
                f"{ours}sources_refused_total",
                "Connections refused by a route's allowedCIDRs, by route.",
                by_name(self.sources_refused),
                ("route",),
            ),
            gauge(
                f"{ours}connections",
                "Connections joined to a backend or dialing one, by route.",
                lambda: by_name(self.open_by_route())(),
                ("route",),
                merge=Merge.SUM,
            ),
            gauge(
                f"{ours}hellos",
                "Connections waiting for their ClientHello.",
                one(lambda: self.waiting_hellos()),
                merge=Merge.SUM,
            ),
            histogram(
                f"{ours}hello_duration_seconds",
                "Time from accepting a connection to its complete ClientHello.",
                self.hellos,
            ),
            histogram(
                f"{ours}dial_duration_seconds",
                "Duration of successful dials to backends.",
                self.dials,
            ),
            counter(
                f"{ours}backend_failures_total",
                "Failed dials to backends, including those followed by a successful one.",
                self._backend_failures,
                ("route", "backend"),
            ),
            gauge(f"{ours}routes", "Routes in use.", one(lambda: self.routes()), merge=Merge.SAME),
            counter(
                f"{ours}config_reloads_total",
                "Successful reloads of the changed routes file.",
                one(lambda: self.reloads),
                merge=Merge.MAX,
            ),
            counter(
                f"{ours}config_reload_failures_total",
                "Failed reloads of the changed routes file.",
                one(lambda: self.reload_failures),
                merge=Merge.MAX,
            ),
        ]
