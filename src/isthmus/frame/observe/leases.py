"""What is counted of the Kubernetes API's Leases, under konnectivity's names.

The server's label is ``http_status_code``, the agent's ``http_response_code``: as in konnectivity.
"""

from __future__ import annotations

from isthmus.frame.observe.counters import Family, Histogram, Samples, counter, histograms, one

LATENCY_BUCKETS_S = (0.000001, 0.00001, 0.0001, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5)

_ByAnswer = dict[tuple[str, str], int]


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
        """The Lease of a dead server is gone, by our hand."""
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
