"""Plain numbers on the hot path, and the families that show them to Prometheus at scrape time.

A dial touches several numbers, so they are ints in dicts and a list of buckets; the objects of
prometheus_client are created only at scrape time. Measured with timeit, CPython 3.11, on one of two
shared cores, microseconds per call:

    Counter.inc()                0.45      attribute += 1       0.06
    Counter.labels(x).inc()      1.65      dict[enum] += 1      0.34 (Enum hashes in Python)
    Histogram.observe()          1.14      ours                 0.19

prometheus_client takes a lock each time; here everything happens in the loop's own thread.
metrics.py lists the families.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from time import time
from types import MappingProxyType
from typing import Literal, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_open
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from isthmus.frame.model.merge import OF_NUMBERS, Merge

Samples = Iterable[tuple[tuple[str, ...], float]]
_TOTAL = "_total"
_K = TypeVar("_K")
_E = TypeVar("_E", bound=Enum)


class Histogram:
    """Counts values in buckets; a bucket has the values up to its bound."""

    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        #: The last connection in each bucket: its id, the value, and when.
        self.exemplars: list[tuple[str, float, float] | None] = [None] * (len(bounds) + 1)

    def observe(self, value: float, connection_id: str = "") -> None:
        """Count one value; with an id it may become the exemplar of its bucket."""
        at = bisect_left(self.bounds, value)
        self.counts[at] += 1
        self.total += value
        if connection_id:
            self.exemplars[at] = (connection_id, value, time())

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def with_exemplars(self) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
        """The buckets, each with its exemplar if it has one."""
        return [
            bucket
            if found is None
            else (*bucket, Exemplar({"connection_id": found[0]}, found[1], found[2]))
            for bucket, found in zip(self.cumulative(), self.exemplars, strict=True)
        ]

    def cumulative(self) -> list[tuple[str, float]]:
        """The buckets as in Prometheus: each includes the ones below it."""
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self.counts), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric: its name, its help, and how to read its numbers at scrape time.

    Every family has exactly one of ``read``, ``histogram`` and ``by_labels``. ``merge`` is the rule
    for the numbers of several workers.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    merge: Merge
    labels: tuple[str, ...] = ()
    read: Callable[[], Samples] | None = None
    histogram: Histogram | None = None
    by_labels: Callable[[], Iterable[tuple[tuple[str, ...], Histogram]]] | None = None

    def __post_init__(self) -> None:
        if self.merge not in OF_NUMBERS:
            raise ValueError(f"{self.name}: not a merge rule of metrics: {self.merge}")
        if self.kind == "histogram" and self.merge is not Merge.SUM:
            raise ValueError(f"{self.name}: buckets can only be summed")

    def collect_open(self) -> Metric:
        """Read the numbers for OpenMetrics: with exemplars, and kinds as that format has them."""
        if self.histogram is not None and any(self.histogram.exemplars):
            buckets = self.histogram.with_exemplars()
            return HistogramMetricFamily(self.name, self.help, buckets, self.histogram.total)
        metric = self.collect()
        if self.kind == "counter" and not self.name.endswith(_TOTAL):
            # OpenMetrics 1.0 §5.1.1: a counter's samples end in _total; konnectivity's do not all.
            metric.type = "unknown"
        return metric

    def collect(self) -> Metric:
        """Read the numbers into the value that prometheus_client renders."""
        if self.histogram is not None:
            buckets = self.histogram.cumulative()
            return HistogramMetricFamily(self.name, self.help, buckets, self.histogram.total)
        if self.by_labels is not None:
            labelled = HistogramMetricFamily(self.name, self.help, labels=self.labels)
            for values, found in self.by_labels():
                labelled.add_metric(values, found.cumulative(), found.total)
            return labelled
        # The header of a counter is written with "_total"; kube-proxy has gauges with such names,
        # too.
        name = self.name.removesuffix(_TOTAL) if self.kind == "counter" else self.name
        metric = Metric(name, self.help, self.kind)
        for values, number in self.read() if self.read else ():
            metric.add_sample(self.name, dict(zip(self.labels, values, strict=True)), number)
        return metric


def counter(
    name: str,
    help: str,
    read: Callable[[], Samples],
    labels: tuple[str, ...] = (),
    *,
    merge: Merge = Merge.SUM,
) -> Family:
    """Declare a number that only grows.

    Workers' counts add up, unless each of them counts the same event, such as a file that changed:
    that is ``Merge.MAX``.
    """
    return Family(name=name, kind="counter", help=help, labels=labels, read=read, merge=merge)


def gauge(
    name: str,
    help: str,
    read: Callable[[], Samples],
    labels: tuple[str, ...] = (),
    *,
    merge: Merge,
) -> Family:
    """Declare a number that goes up and down."""
    return Family(name=name, kind="gauge", help=help, labels=labels, read=read, merge=merge)


def histogram(name: str, help: str, of: Histogram) -> Family:
    """Declare a distribution."""
    return Family(name=name, kind="histogram", help=help, histogram=of, merge=Merge.SUM)


def histograms(
    name: str,
    help: str,
    labels: tuple[str, ...],
    by_labels: Callable[[], Iterable[tuple[tuple[str, ...], Histogram]]],
) -> Family:
    """Declare distributions, one for each seen value of the labels."""
    return Family(
        name=name, kind="histogram", help=help, labels=labels, by_labels=by_labels, merge=Merge.SUM
    )


def one(number: Callable[[], float]) -> Callable[[], Samples]:
    """Read a single number without labels."""
    return lambda: (((), number()),)


def no_counts() -> Mapping[str, float]:
    """A placeholder for counts that a part provides when it starts."""
    return MappingProxyType({})


#: The label value that counts keys beyond ``most``.
OTHER = "(other)"


def count_one(counts: dict[_K, int], key: _K, *, most: int, other: _K) -> None:
    """Count one; a key beyond ``most`` counts as ``other``."""
    if key not in counts and len(counts) >= most:
        key = other
    counts[key] = counts.get(key, 0) + 1


def by_name(counts: Mapping[str, float]) -> Callable[[], Samples]:
    """Read counts kept per label value."""
    return lambda: [((name,), number) for name, number in counts.items()]


def by_enum(counts: Mapping[_E, int]) -> Callable[[], Samples]:
    """Read counts kept per member of an enum; the label is the member's name in lower case."""
    return lambda: [((member.name.lower(),), number) for member, number in counts.items()]


def counted(read: Callable[[], Samples]) -> Callable[[], Samples]:
    """Leave out label values that were not counted yet: each appears at its first event, as in Go.

    For metrics with Konnectivity's names, as existing dashboards and tests expect. Isthmus' own
    metrics begin at 0, so that a rate sees the first event.
    """
    return lambda: [sample for sample in read() if sample[1]]


def _shown(metrics: Iterator[Metric]) -> Iterator[Metric]:
    # In Go a family without values is missing entirely, including its head.
    return (it for it in metrics if it.samples or it.name.startswith("isthmus_"))


class _OpenFamilies(Collector):
    """The same families, as OpenMetrics has them."""

    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Read every family."""
        return _shown(family.collect_open() for family in self._families)


#: The rules for prometheus_client's metrics of the process. Descriptors are limited per process, so
#: the highest use counts.
PROCESS_MERGE = {
    "process_virtual_memory_bytes": Merge.SUM,
    "process_resident_memory_bytes": Merge.SUM,
    "process_start_time_seconds": Merge.MIN,
    "process_cpu_seconds_total": Merge.SUM,
    "process_open_fds": Merge.MAX,
    "process_max_fds": Merge.MIN,
}


class Families(Collector):
    """The families of one program in a registry of their own, and their text form.

    A server and an agent may run in one process, so nothing goes into the global registry.
    """

    def __init__(self, families: Sequence[Family]) -> None:
        self.families = tuple(families)
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self._go_names = [
            f.name.encode() for f in families if f.kind == "counter" and not f.name.endswith(_TOTAL)
        ]

    def collect(self) -> Iterator[Metric]:
        """Read every family."""
        return _shown(family.collect() for family in self.families)

    def render_open(self) -> bytes:
        """Write everything in the OpenMetrics text format 1.0.0, with exemplars."""
        registry = CollectorRegistry()
        registry.register(_OpenFamilies(self.families))
        ProcessCollector(registry=registry)
        text: bytes = generate_open(registry)  # type: ignore[no-untyped-call]  # theirs has none
        return text

    def render(self) -> bytes:
        """Write everything in the Prometheus text format 0.0.4."""
        text = generate_latest(self.registry)
        for name in self._go_names:
            # generate_latest() writes "_total" into the header lines of every counter; konnectivity
            # has a counter named dial_failure_count, and its header must name what follows.
            text = text.replace(b" %b_total " % name, b" %b " % name)
        return text


def merge_table(families: Iterable[Family]) -> Mapping[str, Merge]:
    """The rule of each name.

    Raises:
        ValueError: a name has two rules.
    """
    found = dict(PROCESS_MERGE)
    for family in families:
        if found.setdefault(family.name, family.merge) is not family.merge:
            raise ValueError(f"{family.name}: merged as {family.merge} and {found[family.name]}")
    return found
