"""The metrics of the apiserver proxy.

Metrics that all programs have are in frame/observe/program.py; those about links are left out,
since a proxy has none. docs/reference/metrics.md is generated from these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum

from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import (
    OTHER,
    Family,
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
#: A bound, because every reload may bring new names of upstreams.
MOST_LABELS = 1000


class ProxyRefusal(Enum):
    """Why a connection was not joined to an upstream."""

    UPSTREAMS_DOWN = "no upstream could be reached"
    LEFT = "the client left before it was joined to an upstream"
    TOO_MANY = "--max-connections are open"
    TOO_MANY_OF_SOURCE = "--max-connections-per-source of its address are open"
    OUTSIDE = "it arrived on an uplink, but the address is for this host only"
    CIRCLE = "the connection comes from this proxy: an upstream leads back here"


class ApiserverProxyMetrics(ProgramMetrics):
    """All metrics of an apiserver proxy."""

    has_links = False
    program = "apiserver_proxy"
    label_values = (
        ("`reason` of the apiserver proxy's `connections_refused_total`", ProxyRefusal),
    )

    def __init__(self) -> None:
        self.accepted = 0
        self.refusals = dict.fromkeys(ProxyRefusal, 0)
        self.upstream_failures: dict[str, int] = {}
        self.checks: dict[tuple[str, str], int] = {}
        self.retried = 0
        self.last_resort = 0
        self.reloads = 0
        self.reload_failures = 0
        #: Called on every scrape; the program replaces them while it starts.
        self.open_by_upstream: Callable[[], Mapping[str, float]] = no_counts
        self.up: Callable[[], Mapping[str, float]] = no_counts
        self.waiting: Callable[[], int] = lambda: 0
        super().__init__(DIAL_BUCKETS_S)

    def upstream_failed(self, upstream: str) -> None:
        """Count a dial to an upstream that failed, whether or not another one was reached."""
        count_one(self.upstream_failures, upstream, most=MOST_LABELS, other=OTHER)

    def checked(self, upstream: str, ok: bool) -> None:
        """Count a health check."""
        said = "ok" if ok else "failed"
        count_one(self.checks, (upstream, said), most=MOST_LABELS, other=(OTHER, said))

    def _checks(self) -> Samples:
        return list(self.checks.items())

    def _own_families(self) -> list[Family]:
        ours = f"isthmus_{self.program}_"
        return [
            counter(
                f"{ours}connections_accepted_total",
                "Connections accepted.",
                one(lambda: self.accepted),
            ),
            counter(
                f"{ours}connections_refused_total",
                "Connections not joined to an upstream, by reason.",
                by_enum(self.refusals),
                ("reason",),
            ),
            gauge(
                f"{ours}connections",
                "Connections joined to an upstream or dialing one, by upstream.",
                lambda: by_name(self.open_by_upstream())(),
                ("upstream",),
                merge=Merge.SUM,
            ),
            gauge(
                f"{ours}connections_waiting",
                "Connections waiting for a dial to an upstream.",
                one(lambda: self.waiting()),
                merge=Merge.SUM,
            ),
            gauge(
                f"{ours}upstream_up",
                "1 while the health checks of an upstream succeed, else 0.",
                lambda: by_name(self.up())(),
                ("upstream",),
                merge=Merge.MIN,
            ),
            counter(
                f"{ours}health_checks_total",
                "Health checks of upstreams, by result.",
                self._checks,
                ("upstream", "result"),
            ),
            histogram(
                f"{ours}dial_duration_seconds",
                "Duration of successful dials to upstreams.",
                self.dials,
            ),
            counter(
                f"{ours}upstream_failures_total",
                "Failed dials to upstreams, including those followed by a successful one.",
                by_name(self.upstream_failures),
                ("upstream",),
            ),
            counter(
                f"{ours}connections_retried_total",
                "Connections joined to another upstream after the first one failed.",
                one(lambda: self.retried),
            ),
            counter(
                f"{ours}connections_last_resort_total",
                "Connections for which an upstream that is down was dialed because all were down.",
                one(lambda: self.last_resort),
            ),
            counter(
                f"{ours}config_reloads_total",
                "Successful reloads of the changed configuration file.",
                one(lambda: self.reloads),
                merge=Merge.MAX,
            ),
            counter(
                f"{ours}config_reload_failures_total",
                "Failed reloads of the changed configuration file.",
                one(lambda: self.reload_failures),
                merge=Merge.MAX,
            ),
        ]
