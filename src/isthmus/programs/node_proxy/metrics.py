"""The metrics of the node service proxy: what is counted, in kube-proxy's buckets.

How they are called is in node_proxy_families.py. What every program counts is in program.py; what
speaks of links and tunnels is left out, since a node proxy has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from isthmus.frame.observe.counters import Families, Family, Histogram
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.programs.node_proxy.families import own_families, sli_families

#: 1 ms, doubled up to 16.4 s.
SYNC_BUCKETS_S = tuple(0.001 * 2**n for n in range(15))
PROGRAMMING_BUCKETS_S = (
    0.25,
    0.5,
    *map(float, range(1, 60)),
    *map(float, range(60, 120, 5)),
    *map(float, range(120, 301, 30)),
)
MODES = ("iptables", "ipvs", "nftables")


class FamilyTimings:
    """One histogram for each IP family that was seen."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.by_family: dict[str, Histogram] = {}

    def observe(self, family: str, seconds: float) -> None:
        """Count one value."""
        found = self.by_family.get(family)
        if found is None:
            found = self.by_family[family] = Histogram(self.bounds)
        found.observe(seconds)

    def read(self) -> Iterable[tuple[tuple[str, ...], Histogram]]:
        """Give them with their label."""
        return [((family,), found) for family, found in self.by_family.items()]


def _no_packets() -> Mapping[str, float]:
    return MappingProxyType({})


class NodeProxyMetrics(ProgramMetrics):
    """Everything a node proxy counts. Families of IP are given by their value, "IPv4" or "IPv6".

    ``mode`` is one of ``MODES``.
    """

    has_links = False
    carries = False
    program = "node_proxy"

    def __init__(self, mode: str = "iptables", *, wall: Callable[[], float] = time.time) -> None:
        if mode not in MODES:
            raise ValueError(f"not a way to program the kernel: {mode!r}")
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
        #: Asked at scrape time; the program replaces them while it starts. ``packets`` are counts
        #: of nfacct objects by their names, of those that there are.
        self.services_pending: Callable[[], int] = lambda: 0
        self.endpoints_pending: Callable[[], int] = lambda: 0
        self.packets: Callable[[], Mapping[str, float]] = _no_packets
        super().__init__(SYNC_BUCKETS_S)
        self._slis = Families(sli_families(self))

    def queued(self, family: str) -> None:
        """Note that a sync was asked for."""
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
        """Count a sync that succeeded; the mappings are those of a ``SyncReport``.

        ``triggers`` are the times of day at which what it brought had changed.
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
        """Count a sync that failed, and so changed nothing."""
        self._took(family, seconds, full=full)
        self.failures[family] = self.failures.get(family, 0) + 1
        if not full:
            self.partial_failures[family] = self.partial_failures.get(family, 0) + 1

    def cleanup_failed(self, family: str) -> None:
        """Count a failure to remove what nothing uses any more."""
        self.cleanup_failures[family] = self.cleanup_failures.get(family, 0) + 1

    def flows_cleaned(self, family: str, seconds: float, deleted: int) -> None:
        """Count a round of forgetting the kernel's connections to endpoints that are gone."""
        self.conntrack.observe(family, seconds)
        self.flows_deleted[family] = self.flows_deleted.get(family, 0) + deleted

    def healthz_answered(self, status: int) -> None:
        """Count an answer of ``/healthz``."""
        self.healthz_codes[str(status)] = self.healthz_codes.get(str(status), 0) + 1

    def livez_answered(self, status: int) -> None:
        """Count an answer of ``/livez``."""
        self.livez_codes[str(status)] = self.livez_codes.get(str(status), 0) + 1

    def pinged(self) -> None:
        """Count an answer of the metrics port's own ``/healthz``."""
        self.pings += 1

    def render_slis(self) -> bytes:
        """Write ``/metrics/slis``: how often the metrics port's health was asked."""
        return self._slis.render()

    def _took(self, family: str, seconds: float, *, full: bool) -> None:
        self.syncs.observe(family, seconds)
        (self.full_syncs if full else self.partial_syncs).observe(family, seconds)

    def _own_families(self) -> list[Family]:
        return own_families(self)
