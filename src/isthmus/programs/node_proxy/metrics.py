"""The metrics of the node service proxy, with kube-proxy's names, labels and buckets.

As in kube-proxy, the mode determines which families exist. ``ProgramMetrics`` has those of all
programs; those about links and tunnels do not apply to a node proxy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Self

from typing_extensions import override

from isthmus.frame.model.merge import Merge
from isthmus.frame.observe.counters import (
    Families,
    Family,
    Histogram,
    Samples,
    by_enum,
    by_name,
    counter,
    gauge,
    histograms,
    one,
)
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.programs.node_proxy.settings import NodeProxySettings

#: 1 ms, doubling up to 16.4 s.
SYNC_BUCKETS_S = tuple(0.001 * 2**n for n in range(15))
PROGRAMMING_BUCKETS_S = (
    0.25,
    0.5,
    *map(float, range(1, 60)),
    *map(float, range(60, 120, 5)),
    *map(float, range(120, 301, 30)),
)
MODES = ("iptables", "ipvs", "nftables")


class LocalhostRefusal(Enum):
    """Why a connection to a node port on localhost was not joined to an endpoint."""

    ENDPOINTS_DOWN = "no endpoint could be reached"
    NO_ENDPOINT = "the node port no longer has an endpoint"
    LEFT = "the client left before it was joined to an endpoint"
    TOO_MANY = "the limit --max-connections is reached"
    TOO_MANY_OF_SOURCE = "the limit --max-connections-per-source of the client's user is reached"
    MEMORY = "the client's user holds more than its share of --memory-budget"
    OUTSIDE = "the client is not on a loopback address"


class LocalhostCounts:
    """Counts for node ports on localhost; the callables are called at scrape time."""

    def __init__(self) -> None:
        self.accepted = 0
        self.refusals = dict.fromkeys(LocalhostRefusal, 0)
        self.open: Callable[[], int] = lambda: 0
        self.listening: Callable[[], int] = lambda: 0
        self.taken: Callable[[], int] = lambda: 0


class FamilyTimings:
    """One histogram per IP family seen."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.by_family: dict[str, Histogram] = {}

    def observe(self, family: str, seconds: float) -> None:
        found = self.by_family.get(family)
        if found is None:
            found = self.by_family[family] = Histogram(self.bounds)
        found.observe(seconds)

    def read(self) -> Iterable[tuple[tuple[str, ...], Histogram]]:
        return [((family,), found) for family, found in self.by_family.items()]


def _no_packets() -> Mapping[str, float]:
    return MappingProxyType({})


class NodeProxyMetrics(ProgramMetrics):
    """The metrics of a node proxy. IP families are given by their value, "IPv4" or "IPv6".

    ``mode`` is one of ``MODES``.
    """

    has_links = False
    carries = False
    program = "node_proxy"
    label_values = (
        ("`reason` of `isthmus_node_proxy_localhost_connections_refused_total`", LocalhostRefusal),
    )

    def __init__(self, mode: str = "iptables", *, wall: Callable[[], float] = time.time) -> None:
        if mode not in MODES:
            raise ValueError(f"unknown proxy mode {mode!r}")
        self.mode = mode
        self._wall = wall
        self.syncs = FamilyTimings(SYNC_BUCKETS_S)
        self.full_syncs = FamilyTimings(SYNC_BUCKETS_S)
        self.partial_syncs = FamilyTimings(SYNC_BUCKETS_S)
        self.programming = FamilyTimings(PROGRAMMING_BUCKETS_S)
        self.conntrack = FamilyTimings(SYNC_BUCKETS_S)
        self.last_synced: dict[str, float] = {}
        self.last_queued: dict[str, float] = {}
        self.failures: dict[str, int] = {}
        self.partial_failures: dict[str, int] = {}
        self.cleanup_failures: dict[str, int] = {}
        self.flows_deleted: dict[str, int] = {}
        self.rules: dict[tuple[str, ...], float] = {}
        self.rules_written: dict[tuple[str, ...], float] = {}
        self.no_local_endpoints: dict[tuple[str, ...], float] = {}
        self.service_changes = 0
        self.endpoint_changes = 0
        self.healthz_codes: dict[str, int] = {}
        self.livez_codes: dict[str, int] = {}
        self.pings = 0
        self.localhost = LocalhostCounts()
        #: Called at scrape time; the program replaces them at its start. ``packets`` are the
        #: nfacct counters that exist, by name.
        self.services_pending: Callable[[], int] = lambda: 0
        self.endpoints_pending: Callable[[], int] = lambda: 0
        self.packets: Callable[[], Mapping[str, float]] = _no_packets
        super().__init__(SYNC_BUCKETS_S)
        self._slis = Families(_sli_families(self))

    @classmethod
    @override
    def of(cls, settings: NodeProxySettings) -> Self:
        return cls(settings.mode)

    def queued(self, family: str) -> None:
        self.last_queued[family] = self._wall()

    def synced(
        self,
        family: str,
        seconds: float,
        *,
        full: bool,
        rules: Mapping[str, int] = MappingProxyType({}),
        written: Mapping[str, int] = MappingProxyType({}),
        no_local_endpoints: Mapping[str, int] = MappingProxyType({}),
        triggers: Iterable[float] = (),
    ) -> None:
        """Count a successful sync; the mappings are those of a ``SyncReport``.

        ``triggers`` are the times of the changes that it wrote, as times of day.
        """
        now = self._wall()
        self.last_synced[family] = now
        self._took(family, seconds, full=full)
        for table, number in rules.items():
            self.rules[table, family] = number
        for table, number in written.items():
            self.rules_written[table, family] = number
        for policy in ("internal", "external"):
            self.no_local_endpoints[policy, family] = no_local_endpoints.get(policy, 0)
        for changed_at in triggers:
            self.programming.observe(family, max(0.0, now - changed_at))

    def sync_failed(self, family: str, seconds: float, *, full: bool) -> None:
        """Count a failed sync, which changed nothing."""
        self._took(family, seconds, full=full)
        self.failures[family] = self.failures.get(family, 0) + 1
        if not full:
            self.partial_failures[family] = self.partial_failures.get(family, 0) + 1

    def flows_cleaned(self, family: str, seconds: float, deleted: int) -> None:
        """Count one cleanup of stale conntrack entries."""
        self.conntrack.observe(family, seconds)
        self.flows_deleted[family] = self.flows_deleted.get(family, 0) + deleted

    def healthz_answered(self, status: int) -> None:
        self.healthz_codes[str(status)] = self.healthz_codes.get(str(status), 0) + 1

    def livez_answered(self, status: int) -> None:
        self.livez_codes[str(status)] = self.livez_codes.get(str(status), 0) + 1

    def pinged(self) -> None:
        self.pings += 1

    def render_slis(self) -> bytes:
        """Write ``/metrics/slis``: the results of health checks by the metrics port."""
        return self._slis.render()

    def _took(self, family: str, seconds: float, *, full: bool) -> None:
        self.syncs.observe(family, seconds)
        (self.full_syncs if full else self.partial_syncs).observe(family, seconds)

    def _own_families(self) -> list[Family]:
        by_mode = {
            "iptables": _iptables_families,
            "ipvs": _ipvs_families,
            "nftables": _nftables_families,
        }
        return [*_common_families(self), *by_mode[self.mode](self)]


# Families with kube-proxy's names, labels and types.

_SYNC = "kubeproxy_sync_proxy_rules_"


def _common_families(of: NodeProxyMetrics) -> list[Family]:
    return [
        _timings(f"{_SYNC}duration_seconds", "SyncProxyRules latency in seconds", of.syncs),
        gauge(
            f"{_SYNC}last_queued_timestamp_seconds",
            "The last time a sync of proxy rules was queued",
            by_name(of.last_queued),
            ("ip_family",),
            merge=Merge.MAX,
        ),
        gauge(
            f"{_SYNC}last_timestamp_seconds",
            "The last time proxy rules were successfully synced",
            by_name(of.last_synced),
            ("ip_family",),
            merge=Merge.MIN,
        ),
        _timings(
            "kubeproxy_network_programming_duration_seconds",
            "In Cluster Network Programming Latency in seconds",
            of.programming,
        ),
        _numbers(
            f"{_SYNC}no_local_endpoints_total",
            "Number of services with a Local traffic policy and no endpoints",
            of.no_local_endpoints,
            "traffic_policy",
        ),
        gauge(
            f"{_SYNC}endpoint_changes_pending",
            "Pending proxy rules Endpoint changes",
            one(lambda: of.endpoints_pending()),
            merge=Merge.SUM,
        ),
        counter(
            f"{_SYNC}endpoint_changes_total",
            "Cumulative proxy rules Endpoint changes",
            one(lambda: of.endpoint_changes),
        ),
        gauge(
            f"{_SYNC}service_changes_pending",
            "Pending proxy rules Service changes",
            one(lambda: of.services_pending()),
            merge=Merge.SUM,
        ),
        counter(
            f"{_SYNC}service_changes_total",
            "Cumulative proxy rules Service changes",
            one(lambda: of.service_changes),
        ),
        *(
            counter(
                f"kubeproxy_proxy_{path}_total",
                f"Cumulative proxy {path} HTTP status",
                by_name(codes),
                ("code",),
            )
            for path, codes in (("healthz", of.healthz_codes), ("livez", of.livez_codes))
        ),
    ]


def _iptables_families(of: NodeProxyMetrics) -> list[Family]:
    sync = f"{_SYNC}iptables_"
    return [
        *_full_and_partial(of),
        _restore_failures(of),
        _counts(
            f"{sync}partial_restore_failures_total",
            "Cumulative proxy iptables partial restore failures",
            of.partial_failures,
        ),
        _numbers(
            f"{sync}total", "Total number of iptables rules owned by kube-proxy", of.rules, "table"
        ),
        _numbers(
            f"{sync}last",
            "Number of iptables rules written by kube-proxy in last sync",
            of.rules_written,
            "table",
        ),
        *_conntrack_families(of),
        _packets(
            of,
            "ct_state_invalid_dropped_pkts",
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
            "packets dropped by iptables to work around conntrack problems",
        ),
        _packets(
            of,
            "localhost_nps_accepted_pkts",
            "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
            "Number of packets accepted on nodeports of loopback interface",
        ),
    ]


def _ipvs_families(of: NodeProxyMetrics) -> list[Family]:
    return [_restore_failures(of), *_conntrack_families(of)]


def _nftables_families(of: NodeProxyMetrics) -> list[Family]:
    failures = {"sync": of.failures, "cleanup": of.cleanup_failures}
    return [
        *_full_and_partial(of),
        *(
            _counts(
                f"{_SYNC}nftables_{what}_failures_total",
                f"Cumulative proxy nftables {what} failures",
                counts,
            )
            for what, counts in failures.items()
        ),
        *_conntrack_families(of),
        *_localhost_families(of),
    ]


def _localhost_families(of: NodeProxyMetrics) -> list[Family]:
    prefix, counts = f"isthmus_{of.program}_localhost_", of.localhost

    def carried() -> Samples:
        to_endpoint, to_client = of.bytes_carried()
        return (("to_endpoint",), to_endpoint), (("to_client",), to_client)

    return [
        gauge(
            f"{prefix}ports",
            "Node ports that are open on localhost.",
            one(lambda: counts.listening()),
            merge=Merge.SUM,
        ),
        gauge(
            f"{prefix}ports_unavailable",
            "Node ports that could not be opened on localhost because another program has them.",
            one(lambda: counts.taken()),
            merge=Merge.SUM,
        ),
        gauge(
            f"{prefix}connections",
            "Connections to node ports on localhost, established or being established.",
            one(lambda: counts.open()),
            merge=Merge.SUM,
        ),
        counter(
            f"{prefix}connections_accepted_total",
            "Connections accepted at node ports on localhost.",
            one(lambda: counts.accepted),
        ),
        counter(
            f"{prefix}connections_refused_total",
            "Connections to node ports on localhost that failed, by reason.",
            by_enum(counts.refusals),
            ("reason",),
        ),
        counter(
            f"{prefix}dial_failures_total",
            "Failed dials to endpoints, including those followed by a successful one, by reason.",
            by_enum(of.dial_failures),
            ("reason",),
        ),
        counter(
            f"{prefix}bytes_total",
            "Bytes carried between localhost and endpoints, open connections included.",
            carried,
            ("direction",),
        ),
    ]


def _full_and_partial(of: NodeProxyMetrics) -> list[Family]:
    return [
        _timings(
            f"kubeproxy_sync_{what}_proxy_rules_duration_seconds",
            f"SyncProxyRules latency in seconds for {what} resyncs",
            timings,
        )
        for what, timings in (("full", of.full_syncs), ("partial", of.partial_syncs))
    ]


def _restore_failures(of: NodeProxyMetrics) -> Family:
    name = f"{_SYNC}iptables_restore_failures_total"
    return _counts(name, "Cumulative proxy iptables restore failures", of.failures)


def _conntrack_families(of: NodeProxyMetrics) -> list[Family]:
    return [
        _timings(
            "kubeproxy_conntrack_reconciler_sync_duration_seconds",
            "ReconcileConntrackFlowsLatency latency in seconds",
            of.conntrack,
        ),
        _counts(
            "kubeproxy_conntrack_reconciler_deleted_entries_total",
            "Cumulative conntrack flows deleted by conntrack reconciler",
            of.flows_deleted,
        ),
    ]


def _sli_families(of: NodeProxyMetrics) -> list[Family]:
    """The families of ``/metrics/slis``."""
    return [
        gauge(
            "kubernetes_healthcheck",
            "This metric records the result of a single healthcheck.",
            lambda: ((("ping", "healthz"), 1),) if of.pings else (),
            ("name", "type"),
            merge=Merge.SAME,
        ),
        counter(
            "kubernetes_healthchecks_total",
            "This metric records the results of all healthcheck.",
            lambda: ((("ping", "healthz", "success"), of.pings),) if of.pings else (),
            ("name", "type", "status"),
        ),
    ]


def _timings(name: str, help: str, of: FamilyTimings) -> Family:
    return histograms(name, help, ("ip_family",), of.read)


def _counts(name: str, help: str, counts: Mapping[str, int]) -> Family:
    return counter(name, help, by_name(counts), ("ip_family",))


def _numbers(name: str, help: str, numbers: Mapping[tuple[str, ...], float], label: str) -> Family:
    """Numbers by a label and the IP family."""
    labels = (label, "ip_family")
    return gauge(name, help, lambda: list(numbers.items()), labels, merge=Merge.SAME)


def _packets(of: NodeProxyMetrics, accounted: str, name: str, help: str) -> Family:
    def read() -> Samples:
        found = of.packets().get(accounted)
        return () if found is None else (((), found),)

    return counter(name, help, read)
