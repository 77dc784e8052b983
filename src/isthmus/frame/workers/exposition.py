"""Merges the metrics of several processes, each family by its declared rule.

The same program writes all of them, so a sample is the same line except for its number; the meaning
of a line is not parsed. The rules are those of the program's own families. Both text formats are
read: Prometheus' 0.0.4 and OpenMetrics 1.0.0, whose buckets may have an exemplar.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isthmus.frame.model.merge import Merge, merge_numbers

#: The bucket of a histogram with an exemplar after its number (OpenMetrics 1.0 §5.1.6.3).
_EXAMPLE = re.compile(rb"(\S+_bucket\{.*\}) (\S+) # (.*)")
_EOF = b"# EOF"
_ADDED = frozenset({b"counter", b"histogram", b"unknown"})


@dataclass(slots=True)
class MetricFamily:
    """One metric: its comment lines, and its samples by the text before the number."""

    name: bytes
    kind: bytes
    head: list[bytes] = field(default_factory=list)
    samples: dict[bytes, float] = field(default_factory=dict)
    examples: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def adds_up(self) -> bool:
        """Whether its numbers only grow, and a restarted worker's continue from its last life."""
        return self.kind in _ADDED

    def rule(self, rules: Mapping[str, Merge]) -> Merge | None:
        """The rule that merges its numbers; None for a family that this version does not know."""
        # OpenMetrics writes a counter's head without the suffix of its samples.
        name = self.name.decode()
        return rules.get(name) or rules.get(name + "_total")


Exposition = dict[bytes, MetricFamily]


def read(text: bytes) -> Exposition:
    """Read a whole text; lines in a format that Isthmus does not write are left out."""
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


def keep(kept: Exposition, ended: Exposition) -> None:
    """Add what a process had counted when it ended, without its gauges, which no longer apply."""
    for name, family in ended.items():
        if family.adds_up:
            into = kept.setdefault(name, family_like(family))
            for key, number in family.samples.items():
                into.samples[key] = into.samples.get(key, 0.0) + number


def merged(each: Sequence[Exposition], rules: Mapping[str, Merge]) -> Exposition:
    """Merge the metrics of several processes, each family by its rule."""
    total: Exposition = {}
    found: dict[bytes, dict[bytes, list[float]]] = {}
    for family in (family for one in each for family in one.values()):
        into = total.setdefault(family.name, family_like(family))
        into.head = into.head or list(family.head)
        into.examples.update(family.examples)
        numbers = found.setdefault(family.name, {})
        for key, number in family.samples.items():
            numbers.setdefault(key, []).append(number)
    for name, family in list(total.items()):
        rule = family.rule(rules)
        if rule is None:  # of a worker that was started by a newer version
            del total[name]
            continue
        samples = found[name].items()
        family.samples = {key: merge_numbers(rule, numbers) for key, numbers in samples}
    return total


def write(total: Exposition, *, open_metrics: bool = False) -> bytes:
    """Write everything in the format that was read."""
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
    """Add what a worker had counted in earlier lives, by sample: heads differ between formats."""
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


def blank(like: Exposition) -> Exposition:
    """The same families for a process without samples."""
    return {name: family_like(family) for name, family in like.items()}


def _number(value: float) -> bytes:
    if math.isinf(value):
        return b"+Inf" if value > 0 else b"-Inf"
    return b"NaN" if math.isnan(value) else repr(value).encode()
