"""Metrics of several programs: counters, Leases, and gauges that are read at scrape time.

Metrics of only one program, and the konnectivity names, are in the metrics.py of its room;
counters.py keeps the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, Self

import isthmus
from isthmus.errors import DialFailure, LinkStage
from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import (
    Families,
    Family,
    Histogram,
    Samples,
    by_enum,
    counted,
    counter,
    gauge,
    histogram,
    histograms,
    one,
)
from isthmus.net.certificates import Lifetime
from isthmus.settings.gates import GATES
from isthmus.tunnel.budget import UNBOUNDED, Budget
from isthmus.tunnel.end import Ending

LAG_BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 5.0, 30.0)
PACKET_TYPES = ("DIAL_REQ", "DIAL_RSP", "CLOSE_REQ", "CLOSE_RSP", "DATA", "DIAL_CLS", "DRAIN")
LATENCY_BUCKETS_S = (0.000001, 0.00001, 0.0001, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5)
_ByAnswer = dict[tuple[str, str], int]


def _zero() -> int:
    return 0


def _none() -> Mapping[str, float]:
    return MappingProxyType({})


def _no_packets() -> Mapping[str, Sequence[int]]:
    return MappingProxyType({})


def _no_bytes() -> tuple[int, int]:
    return 0, 0


@dataclass(slots=True, kw_only=True)
class Gauges:
    """The values read at scrape time; the program replaces the defaults while it starts.

    ``live_bytes`` is (to target, to client) of the tunnels that have not ended: a tunnel leaves it
    in the same callback that reports ``tunnel_ended``, so that the sum never decreases.
    ``certificates`` returns the validity of each file. ``ready_by_strategy``, ``http_connections``,
    ``handed_on`` and those of nodes are for a server, ``known_servers`` for an agent.
    """

    pending_dials: Callable[[], int] = _zero
    tunnels: Callable[[], int] = _zero
    links: Callable[[], int] = _zero
    suspended_links: Callable[[], int] = _zero
    kept_bytes: Callable[[], int] = _zero
    held_bytes: Callable[[], int] = _zero
    reload_failures: Callable[[], int] = _zero
    draining: Callable[[], int] = _zero
    lines_suppressed: Callable[[], int] = _zero
    live_bytes: Callable[[], tuple[int, int]] = _no_bytes
    certificates: Callable[[], Mapping[str, Lifetime]] = dict
    http_connections: Callable[[], int] = _zero
    ready_agents: Callable[[], int] = _zero
    ready_by_strategy: Callable[[], Mapping[str, float]] = _none
    known_servers: Callable[[], int] = _zero
    handed_on: Callable[[], int] = _zero
    #: Open connections of clients and of agents, by port.
    connections: Callable[[], Mapping[str, float]] = _none
    #: Feature gates by name, 1 for those that are on.
    gates: Callable[[], Mapping[str, float]] = _none
    node_dials: Callable[[], int] = _zero
    node_tunnels: Callable[[], int] = _zero
    #: Open calls of each gRPC method, and packets by segment and type.
    grpc_calls: Callable[[], Mapping[str, float]] = _none
    packets: Callable[[], Mapping[str, Sequence[int]]] = _no_packets
    #: The memory held for peers.
    budget: Budget = UNBOUNDED


class ProgramMetrics:
    """The counts of servers and agents. Every method is a few plain additions."""

    program = ""
    #: What carries its bytes.
    carried_by = "tunnels"
    #: The meaning of label values, by the label's name in the reference page.
    label_values: ClassVar[tuple[tuple[str, type[Enum]], ...]] = ()
    #: Whether it has links and their metrics.
    has_links = True
    #: Whether it carries connections: dials, tunnels, certificates.
    carries = True

    def __init__(self, dial_buckets_s: tuple[float, ...]) -> None:
        self.gauges = Gauges()
        self.dials = Histogram(dial_buckets_s)
        self.failed_dials = Histogram(dial_buckets_s)
        self.dial_failures = dict.fromkeys(DialFailure, 0)
        self.endings = dict.fromkeys(Ending, 0)
        self.link_failures = dict.fromkeys(LinkStage, 0)
        self.links_opened = 0
        self.link_suspensions = self.link_resumes = 0
        self.bytes_to_target = 0
        self.bytes_to_client = 0
        self.streams_reset_for_budget = 0
        self.loop_lag = Histogram(LAG_BUCKETS_S)
        self.loop_stalls = 0
        self.leases = LeaseMetrics()
        self._families = Families([*self._own_families(), *self._shared_families()])
        self.registry = self._families.registry

    @classmethod
    def of(cls, settings: Any) -> Self:
        """Create the metrics of a program with these settings."""
        return cls()  # type: ignore[call-arg]  # every program's own class takes nothing

    @property
    def families(self) -> tuple[Family, ...]:
        """Every family, in the order of the exposition."""
        return self._families.families

    def render(self) -> bytes:
        """Write the metrics in the Prometheus text format."""
        return self._families.render()

    def render_open(self) -> bytes:
        """Write the metrics in the OpenMetrics format, with ids of connections as exemplars."""
        return self._families.render_open()

    def dial_succeeded(self, seconds: float, connection_id: str = "") -> None:
        """Count a dial that was answered with a connection; its id may become an exemplar."""
        self.dials.observe(seconds, connection_id)

    def dial_failed(self, failure: DialFailure, seconds: float) -> None:
        """Count a dial that was answered with a failure."""
        self.dial_failures[failure] += 1
        self.failed_dials.observe(seconds)

    def tunnel_ended(
        self, ending: Ending, seconds: float, bytes_to_target: int, bytes_to_client: int
    ) -> None:
        """Count the end of a tunnel and what it carried."""
        self.endings[ending] += 1
        self.bytes_to_target += bytes_to_target
        self.bytes_to_client += bytes_to_client

    def packet_family(self, go: str) -> Family:
        """The counts of konnectivity's packets."""
        return counter(
            f"{go}stream_packets_total",
            "Count of packets processed, by segment and packet type"
            " (example: from_client, DIAL_REQ)",
            counted(self._packets),
            ("segment", "packet_type"),
        )

    def _packets(self) -> Samples:
        return [
            ((segment, name), count)
            for segment, counts in self.gauges.packets().items()
            for name, count in zip(PACKET_TYPES, counts, strict=True)
        ]

    def link_opened(self) -> None:
        """Count a link whose handshake is complete."""
        self.links_opened += 1

    def link_failed(self, failure: LinkStage) -> None:
        """Count a link that could not be opened, or was ended by its own rules."""
        self.link_failures[failure] += 1

    def stream_reset_for_budget(self) -> None:
        """Count a stream reset because its link held too many bytes."""
        self.streams_reset_for_budget += 1

    def loop_lagged(self, seconds: float, *, stalled: bool) -> None:
        """Count a heartbeat of the event loop, and a stall if it was late enough."""
        self.loop_lag.observe(seconds)
        self.loop_stalls += stalled

    def bytes_carried(self) -> tuple[int, int]:
        """The bytes to targets and to clients so far, including running tunnels."""
        to_target, to_client = self.gauges.live_bytes()
        return self.bytes_to_target + to_target, self.bytes_to_client + to_client

    def _own_families(self) -> list[Family]:
        raise NotImplementedError

    def _bytes(self) -> Samples:
        to_target, to_client = self.bytes_carried()
        return (("to_target",), to_target), (("to_client",), to_client)

    def _shared_families(self) -> list[Family]:
        ours, gauges = f"isthmus_{self.program}_", self.gauges
        return [
            *(self._tunnel_families() if self.carries else ()),
            *(self._link_families() if self.has_links else ()),
            *(self._memory_families() if self.carries else ()),
            *(self._certificate_families() if self.carries else ()),
            histogram(
                f"{ours}loop_lag_seconds",
                "Delay of the event loop at a heartbeat, measured every second.",
                self.loop_lag,
            ),
            counter(
                f"{ours}loop_stalls_total",
                "Heartbeats of the event loop more than 5 seconds late.",
                one(lambda: self.loop_stalls),
            ),
            *(self._drain_families() if self.carries else ()),
            counter(
                f"{ours}log_lines_suppressed_total",
                "Log lines suppressed because a peer caused too many similar ones.",
                one(lambda: gauges.lines_suppressed()),
            ),
            gauge(
                # The name and help of Kubernetes itself, which existing dashboards use.
                "kubernetes_feature_enabled",
                "This metric records the data about the stage and enablement of a k8s feature.",
                self._gates,
                ("name", "stage"),
                merge=Merge.SAME,
            ),
            gauge(
                "isthmus_build_info",
                "Always 1; the labels are the program and its version.",
                lambda: (((self.program, isthmus.__version__), 1),),
                ("program", "version"),
                merge=Merge.SAME,
            ),
        ]

    def _tunnel_families(self) -> list[Family]:
        ours = f"isthmus_{self.program}_"
        return [
            counter(
                f"{ours}dial_failures_total",
                "Dials that failed, by reason.",
                by_enum(self.dial_failures),
                ("reason",),
            ),
            histogram(
                f"{ours}failed_dial_duration_seconds",
                "Duration of failed dials.",
                self.failed_dials,
            ),
            counter(
                f"{ours}tunnels_ended_total",
                "Tunnels that ended, by ending.",
                by_enum(self.endings),
                ("ending",),
            ),
            counter(
                f"{ours}bytes_total",
                f"Bytes carried by {self.carried_by}, including running ones.",
                self._bytes,
                ("direction",),
            ),
        ]

    def _drain_families(self) -> list[Family]:
        return [
            gauge(
                f"isthmus_{self.program}_draining",
                "1 while draining, when new dials are refused, else 0.",
                one(lambda: int(self.gauges.draining())),
                merge=Merge.MAX,
            )
        ]

    def _link_families(self) -> list[Family]:
        ours, gauges = f"isthmus_{self.program}_", self.gauges
        return [
            gauge(f"{ours}links", "Open links.", one(lambda: gauges.links()), merge=Merge.SUM),
            counter(
                f"{ours}links_opened_total",
                "Links opened, with a successful handshake.",
                one(lambda: self.links_opened),
            ),
            gauge(
                f"{ours}suspended_links",
                "Links that lost their connection and wait for another one.",
                one(lambda: gauges.suspended_links()),
                merge=Merge.SUM,
            ),
            counter(
                f"{ours}link_suspensions_total",
                "Links that lost their connection and kept their tunnels.",
                one(lambda: self.link_suspensions),
            ),
            counter(
                f"{ours}link_resumes_total",
                "Links that continued on another connection.",
                one(lambda: self.link_resumes),
            ),
            gauge(
                f"{ours}kept_bytes",
                "Bytes sent on links and not acknowledged yet, kept to be sent again.",
                one(lambda: gauges.kept_bytes()),
                merge=Merge.SUM,
            ),
            counter(
                f"{ours}link_failures_total",
                "Links that failed to open or were lost, by reason.",
                by_enum(self.link_failures),
                ("reason",),
            ),
            gauge(
                f"{ours}held_bytes",
                "Bytes received and not yet accepted by the reader's kernel, over all links.",
                one(lambda: gauges.held_bytes()),
                merge=Merge.SUM,
            ),
            counter(
                f"{ours}streams_reset_for_budget_total",
                "Streams reset because their reader read nothing for 5 minutes while the memory"
                " budget was exhausted.",
                one(lambda: self.streams_reset_for_budget),
            ),
        ]

    def _memory_families(self) -> list[Family]:
        ours, gauges = f"isthmus_{self.program}_memory_budget_", self.gauges
        return [
            gauge(
                f"{ours}bytes",
                "Memory budget for everything held on behalf of peers (--memory-budget).",
                one(lambda: gauges.budget.total_bytes),
                merge=Merge.SUM,
            ),
            gauge(
                f"{ours}used_bytes",
                "Bytes charged to peers.",
                one(lambda: gauges.budget.used_bytes),
                merge=Merge.SUM,
            ),
            gauge(
                f"{ours}most_used_bytes",
                "Peak of the bytes charged to peers.",
                one(lambda: gauges.budget.most_used_bytes),
                merge=Merge.SUM,
            ),
            gauge(
                f"{ours}peers",
                "Peers with an account in the memory budget.",
                one(lambda: gauges.budget.peers),
                merge=Merge.SUM,
            ),
            counter(
                f"{ours}over_share_total",
                "Times a peer over its share of the memory budget was slowed or refused.",
                one(lambda: gauges.budget.over_share),
            ),
        ]

    def _gates(self) -> Samples:
        return [((name, GATES[name].stage), on) for name, on in self.gauges.gates().items()]

    def _certificate_families(self) -> list[Family]:
        ours = f"isthmus_{self.program}_certificate_"

        def in_use() -> Iterable[tuple[str, Lifetime]]:
            return self.gauges.certificates().items()

        return [
            gauge(
                f"{ours}expiry_timestamp_seconds",
                "Expiry time of each certificate in use, in UNIX time.",
                lambda: [
                    ((path,), it.not_after) for path, it in self.gauges.certificates().items()
                ],
                ("file",),
                merge=Merge.MIN,
            ),
            gauge(
                f"{ours}start_timestamp_seconds",
                "Start of validity of each certificate in use, in UNIX time.",
                lambda: [
                    ((path,), it.not_before) for path, it in self.gauges.certificates().items()
                ],
                ("file",),
                merge=Merge.MIN,
            ),
            counter(
                f"{ours}reload_failures_total",
                "Failed reloads of changed certificate, key or CA files.",
                one(lambda: self.gauges.reload_failures()),
                merge=Merge.MAX,
            ),
        ]


class LeaseMetrics:
    """Counts by the API's answer; see kube.leases.KeeperMetrics and CounterMetrics."""

    def __init__(self) -> None:
        self.culled = 0
        self._lists: _ByAnswer = {}
        self._deletes: _ByAnswer = {}
        self._watches: _ByAnswer = {}
        self._list_latency: dict[tuple[str, ...], Histogram] = {}
        self._delete_latency: dict[tuple[str, ...], Histogram] = {}

    def lease_listed(self, status: int, reason: str, seconds: float) -> None:
        """Leases were listed, or could not be."""
        _count(self._lists, status, reason)
        _time(self._list_latency, status, seconds)

    def lease_deleted(self, status: int, reason: str, seconds: float) -> None:
        """An expired Lease was deleted, or could not be."""
        _count(self._deletes, status, reason)
        _time(self._delete_latency, status, seconds)

    def lease_watched(self, status: int, reason: str) -> None:
        """A watch was opened, or could not be."""
        _count(self._watches, status, reason)

    def lease_culled(self) -> None:
        """This program deleted the Lease of a dead server."""
        self.culled += 1

    def server_families(self, go: str) -> list[Family]:
        """The families of a server."""
        labels = ("http_status_code", "reason")
        return [
            counter(
                f"{go}culled_leases_count",
                "Number of leases culled by the garbage collection controller.",
                one(lambda: self.culled),
            ),
            histograms(
                f"{go}lease_delete_latency_seconds",
                "Latency of server lease delete requests in seconds.",
                labels[:1],
                self._delete_latency.items,
            ),
            counter(
                f"{go}lease_delete_total",
                "Number of server lease delete requests.",
                lambda: _samples(self._deletes),
                labels,
            ),
            histograms(
                f"{go}lease_list_latency_seconds",
                "Latency of server lease list requests in seconds.",
                labels[:1],
                self._list_latency.items,
            ),
            counter(
                f"{go}lease_list_total",
                "Number of server lease list requests.",
                lambda: _samples(self._lists),
                labels,
            ),
        ]

    def agent_families(self, go: str) -> list[Family]:
        """The families of an agent."""
        labels = ("http_response_code", "reason")
        return [
            counter(
                f"{go}lease_lists_total",
                "Number of server lease list requests.",
                lambda: _samples(self._lists),
                labels,
            ),
            counter(
                f"{go}lease_watches_total",
                "Number of server lease watch requests.",
                lambda: _samples(self._watches),
                labels,
            ),
            histograms(
                f"{go}lease_list_latency_seconds",
                "Latency of server lease list requests in seconds.",
                labels[:1],
                self._list_latency.items,
            ),
        ]


def _count(counts: _ByAnswer, status: int, reason: str) -> None:
    key = (str(status), reason)
    counts[key] = counts.get(key, 0) + 1


def _time(by_status: dict[tuple[str, ...], Histogram], status: int, seconds: float) -> None:
    key = (str(status),)
    if key not in by_status:
        by_status[key] = Histogram(LATENCY_BUCKETS_S)
    by_status[key].observe(seconds)


def _samples(counts: _ByAnswer) -> Samples:
    return list(counts.items())
