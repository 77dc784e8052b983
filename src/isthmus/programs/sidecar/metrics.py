"""The metrics of the two sidecars.

Metrics that all programs have are in frame/observe/program.py; those about links are left out,
since a sidecar has none. docs/reference/metrics.md is generated from these declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType

from isthmus.dial.rules_name_order import Outcome, Source, Way
from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import (
    Family,
    Samples,
    by_enum,
    by_name,
    counter,
    gauge,
    histogram,
    one,
)
from isthmus.frame.observe.program import ProgramMetrics

DIAL_BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 30.0)


class Unserved(Enum):
    """Why a client of a sidecar was not served."""

    BAD_REQUEST = "invalid or unknown protocol"
    NOT_SUPPORTED = "unsupported request, such as UDP"
    NO_METHOD = "no common authentication method"
    WRONG_PASSWORD = "missing or wrong user name or password"
    NO_DESTINATION = "the destination could not be reached"
    LATE = "no complete request in time"
    LEFT = "the client left before it was served"
    CROWDED = "its source used most of --max-handshakes while others connected"
    TOO_MANY = "--max-connections are open"
    TOO_MANY_OF_SOURCE = "--max-connections-per-source of its address are open"


def _no_lookups() -> Mapping[tuple[Source, Outcome], int]:
    return MappingProxyType({})


class SidecarMetrics(ProgramMetrics):
    """The metrics that both sidecars have."""

    has_links = False
    label_values = (
        ("`reason` of the sidecars' `clients_unserved_total`", Unserved),
        ("`source` of the sidecars' `name_lookups_total`", Source),
        ("`result` of the sidecars' `name_lookups_total`", Outcome),
        ("`way` of the sidecars' `dials_total`", Way),
    )

    def __init__(self) -> None:
        self.accepted = 0
        self.unserved = dict.fromkeys(Unserved, 0)
        #: Called on every scrape; the program replaces them while it starts.
        self.waiting: Callable[[], int] = lambda: 0
        self.connections: Callable[[], int] = lambda: 0
        self.lookups: Callable[[], Mapping[tuple[Source, Outcome], int]] = _no_lookups
        self.ways: Callable[[], Mapping[Way, int]] = lambda: dict.fromkeys(Way, 0)
        self.tunnel_works: Callable[[], bool] = lambda: True
        super().__init__(DIAL_BUCKETS_S)

    def _own_families(self) -> list[Family]:
        ours = f"isthmus_{self.program}_"
        return [
            counter(
                f"{ours}connections_accepted_total",
                "Connections accepted.",
                one(lambda: self.accepted),
            ),
            counter(
                f"{ours}clients_unserved_total",
                "Clients that were not served, by reason.",
                by_enum(self.unserved),
                ("reason",),
            ),
            gauge(
                f"{ours}connections",
                "Open connections of clients, in any state.",
                one(lambda: self.connections()),
                merge=Merge.SUM,
            ),
            gauge(
                f"{ours}handshakes",
                "Connections that have not sent their request yet.",
                one(lambda: self.waiting()),
                merge=Merge.SUM,
            ),
            histogram(
                f"{ours}dial_duration_seconds",
                "Duration of successful dials, including name resolution.",
                self.dials,
            ),
            *self._name_families(),
        ]

    def _name_families(self) -> list[Family]:
        ours = f"isthmus_{self.program}_"
        return [
            counter(
                f"{ours}name_lookups_total",
                "Steps of name lookups, by source and result.",
                self._lookups,
                ("source", "result"),
            ),
            counter(
                f"{ours}dials_total",
                "Dials after name resolution, by way.",
                lambda: by_enum(self.ways())(),
                ("way",),
            ),
            gauge(
                f"{ours}tunnel_healthy",
                "1 while the guest cluster's DNS can be reached through the tunnel, else 0; names"
                " then go to the management cluster's DNS.",
                one(lambda: int(self.tunnel_works())),
                merge=Merge.MIN,
            ),
        ]

    def _lookups(self) -> Samples:
        return [
            ((source.name.lower(), outcome.name.lower()), count)
            for (source, outcome), count in self.lookups().items()
        ]


class Socks5ProxyMetrics(SidecarMetrics):
    """All metrics of the SOCKS5 sidecar."""

    program = "socks5_proxy"


class HttpsProxyMetrics(SidecarMetrics):
    """All metrics of the HTTPS sidecar."""

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
                "Responses of destinations to plain HTTP requests, by status class.",
                by_name(self.answers),
                ("status",),
            ),
            counter(
                f"{ours}connections_reused_total",
                "Plain HTTP requests sent on a reused connection.",
                one(lambda: self.reused),
            ),
            counter(
                f"{ours}requests_sent_again_total",
                "Plain HTTP requests sent on a new connection because a reused one had closed.",
                one(lambda: self.sent_again),
            ),
        ]
