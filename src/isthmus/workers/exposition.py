"""Metrics of several processes as those of one: counters and histograms add up, gauges by kind.

All of them are written by one version of the same program, so that a sample is the same line but
for its number; what a line means is not looked into. Both text formats are read: Prometheus' 0.0.4
and OpenMetrics 1.0.0, whose buckets may carry an example.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

#: The bucket of a histogram with an example behind its number (OpenMetrics 1.0 §5.1.6.3).
_EXAMPLE = re.compile(rb"(\S+_bucket\{.*\}) (\S+) # (.*)")
_EOF = b"# EOF"
_ADDED = frozenset({b"counter", b"histogram", b"unknown"})

#: Gauges that do not add up, by the end of their name: what every worker sees alike, what is yes
#: or no, and times. An agent has a link to each worker and is one agent.
_MOST: tuple[bytes, ...] = (
    b"_draining", b"_build_info", b"_feature_enabled", b"_ready_backends",
    b"_ready_backend_connections", b"_tunnel_works", b"_routes", b"_known_server_count",
)  # fmt: skip
_LEAST: tuple[bytes, ...] = (
    b"_timestamp_seconds", b"_start_time_seconds", b"_max_fds", b"_upstream_up",
)  # fmt: skip


@dataclass(slots=True)
class MetricFamily:
    """One metric: its comment lines, and its samples by everything that stands before a number."""

    name: bytes
    kind: bytes
    head: list[bytes] = field(default_factory=list)
    samples: dict[bytes, float] = field(default_factory=dict)
    examples: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def adds_up(self) -> bool:
        """Its numbers only grow, and a dead worker's stay."""
        return self.kind in _ADDED

    def together(self) -> Callable[[float, float], float]:
        """How two numbers of it become one."""
        if self.kind == b"gauge":
            if self.name.endswith(_MOST):
                return max
            if self.name.endswith(_LEAST):
                return min
        return _sum


def _sum(one: float, other: float) -> float:
    return one + other


Exposition = dict[bytes, MetricFamily]


def read(text: bytes) -> Exposition:
    """Read a whole text; what is not as we write it is left out."""
    found: Exposition = {}
    current = MetricFamily(b"", b"")
    for line in text.splitlines():
        if line == _EOF or not line:
            continue
        if line.startswith(b"# "):
            _, word, name, *rest = line.split(b" ", 3)
            if name != current.name:
                current = found.setdefault(name, MetricFamily(name, b""))
            if word == b"TYPE" and rest:
                current.kind = rest[0]
            current.head.append(line)
            continue
        matched = _EXAMPLE.fullmatch(line) if b" # " in line else None
        if matched is not None:
            key, number = matched[1], matched[2]
            current.examples[key] = matched[3]
        else:
            key, _, number = line.rpartition(b" ")
        current.samples[key] = float(number)
    return found


def add(total: Exposition, more: Exposition, *, only_counts: bool = False) -> None:
    """Add what another process counted; ``only_counts`` leaves gauges out: it is gone."""
    for name, family in more.items():
        if only_counts and not family.adds_up:
            continue
        into = total.get(name)
        if into is None:
            into = total[name] = MetricFamily(name, family.kind, list(family.head))
        if not into.head:
            into.head = list(family.head)
        together = into.together()
        for key, number in family.samples.items():
            # OpenMetrics has the time that a counter began; ours have none.
            into.samples[key] = together(into.samples[key], number) if key in into.samples else (
                number
            )  # fmt: skip
        into.examples.update(family.examples)


def write(total: Exposition, *, open_metrics: bool = False) -> bytes:
    """Write everything in the format that it was read in."""
    lines: list[bytes] = []
    for family in total.values():
        lines += family.head
        for key, number in family.samples.items():
            line = b"%b %b" % (key, _number(number))
            example = family.examples.get(key)
            lines.append(line if example is None else b"%b # %b" % (line, example))
    if open_metrics:
        lines.append(_EOF)
    return b"\n".join(lines) + b"\n"


def add_gone(total: Exposition, gone: Exposition) -> None:
    """Add what processes that are no more had counted, by sample: heads differ between formats."""
    families = {key: family for family in total.values() for key in family.samples}
    for family in gone.values():
        into = total.get(family.name) or total.get(family.name.removesuffix(b"_total"))
        for key, number in family.samples.items():
            there = families.get(key, into)
            if there is not None:
                there.samples[key] = there.samples.get(key, 0.0) + number
            else:
                total.setdefault(family.name, family_like(family)).samples[key] = number


def family_like(family: MetricFamily) -> MetricFamily:
    """The same family without samples."""
    return MetricFamily(family.name, family.kind, list(family.head))


def summed(each: Iterable[Exposition]) -> Exposition:
    """Add several up."""
    total: Exposition = {}
    for one in each:
        add(total, one)
    return total


def _number(value: float) -> bytes:
    if math.isinf(value):
        return b"+Inf" if value > 0 else b"-Inf"
    return b"NaN" if math.isnan(value) else repr(value).encode()
