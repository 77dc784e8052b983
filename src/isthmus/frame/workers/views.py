"""Snapshots of workers merged into one of their program.

A tunnel and a link keep their number and get their worker's as the last two digits, so that tunnel
1203 is tunnel 12 of worker 3; after a restart of the worker, counting goes on far above. Every
field is merged by the rule that it declares in frame/model/snapshot.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isthmus.frame.model.merge import merge_values
from isthmus.frame.model.snapshot import LinkView, ProgramView, Totals
from isthmus.values import TunnelId

_WORKERS = 100
#: So many numbers a life of a worker has; more than it could use.
_LIFE = 10**9
MOST_ENDINGS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What one worker showed, which worker it is, and how often it was started again."""

    index: int
    restarts: int
    view: ProgramView

    def number(self, own: int) -> int:
        """A number of its own, as the program shows it; 0 is none."""
        return own and (self.restarts * _LIFE + own) * _WORKERS + self.index


def worker_of(number: int) -> tuple[int, int, int]:
    """Take such a number apart: the worker, its restarts, and its own number."""
    rest, index = divmod(number, _WORKERS)
    restarts, own = divmod(rest, _LIFE)
    return index, restarts, own


def merge(
    found: Sequence[WorkerView], *, limit: int, gone: Totals, same: Mapping[str, Any]
) -> ProgramView:
    """Merge what at least one worker showed, with at most ``limit`` tunnels.

    ``gone`` is what workers counted that are no more; ``same`` are fields that the parent knows
    itself.
    """
    view = merge_values([_numbered(one) for one in found])
    tunnels = sorted(view.tunnels, key=lambda row: -row.age_s)  # oldest first, as one program
    endings = sorted(view.recent_endings, key=lambda row: row.age_s)
    return replace(
        view,
        totals=add_totals([view.totals, gone]),
        tunnels=tuple(tunnels[:limit]),
        truncated=view.truncated + max(0, len(tunnels) - limit),
        recent_endings=tuple(endings[:MOST_ENDINGS]),
        **same,
    )


def _numbered(of: WorkerView) -> ProgramView:
    view = of.view
    tunnels = tuple(
        replace(it, id=TunnelId(of.number(it.id)), link_id=of.number(it.link_id))
        for it in view.tunnels
    )
    links: Sequence[LinkView] = getattr(view, "links", ())
    if links:
        numbered = tuple(replace(it, id=of.number(it.id)) for it in links)
        return replace(view, tunnels=tunnels, links=numbered)
    return replace(view, tunnels=tunnels)


def add_totals(each: Iterable[Totals]) -> Totals:
    """Add up what was counted."""
    return merge_values(list(each))
