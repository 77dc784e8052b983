"""What a sidecar did with names, as values: a part of its snapshot (snapshot.py)."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.dial.rules_name_order import Outcome, Source, Way
from isthmus.frame.model.merge import Merge, merges


@merges(source=Merge.KEY, result=Merge.KEY, count=Merge.SUM)
@dataclass(frozen=True, slots=True, kw_only=True)
class LookupView:
    """How often who was asked for a name, with what result."""

    source: Source
    result: Outcome
    count: int


@merges(way=Merge.KEY, count=Merge.SUM)
@dataclass(frozen=True, slots=True, kw_only=True)
class WayView:
    """How often a way was taken."""

    way: Way
    count: int


@merges(tunnel_works=Merge.MIN, failing_s=Merge.MAX, lookups=Merge.ROWS, ways=Merge.ROWS)
@dataclass(frozen=True, slots=True, kw_only=True)
class NamesView:
    """What a sidecar did with names. ``failing_s`` is how long the tunnel has not worked, or 0."""

    tunnel_works: bool
    failing_s: float
    lookups: tuple[LookupView, ...]
    ways: tuple[WayView, ...]
