"""Snapshots of workers merged into one of their program.

A tunnel and a link keep their number and get their worker's as the last two digits, so that tunnel
1203 is tunnel 12 of worker 3; after a restart of the worker, counting goes on far above. What adds
up is added, what is the same everywhere is taken from the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from isthmus.core.names_view import NamesView
from isthmus.core.snapshot import (
    AgentView,
    BackendView,
    EndedView,
    NetworkView,
    ProgramView,
    RouteView,
    Totals,
    UpstreamView,
)
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
    first = found[0].view
    merged: dict[str, Any] = {}
    for each in fields(first):
        name = each.name
        if name in same:
            merged[name] = same[name]
        elif name in _NUMBERED:
            merged[name] = _numbered(name, found)
        elif name in _MERGED:
            merged[name] = _MERGED[name]([getattr(one.view, name) for one in found])
    merged["totals"] = _added([merged["totals"], gone])
    tunnels = merged["tunnels"]
    merged["tunnels"] = tunnels[:limit]
    merged["truncated"] += max(0, len(tunnels) - limit)
    return replace(first, **merged)


def _numbered(name: str, found: Sequence[WorkerView]) -> tuple[Any, ...]:
    if name == "links":
        return tuple(replace(it, id=of.number(it.id)) for of in found for it in of.view.links)  # type: ignore[union-attr]  # those that have a field of the name
    rows = [
        replace(it, id=TunnelId(of.number(it.id)), link_id=of.number(it.link_id))
        for of in found
        for it in of.view.tunnels
    ]
    rows.sort(key=lambda row: -row.age_s)  # the oldest first, as one program shows them
    return tuple(rows)


def add_totals(each: Iterable[Totals]) -> Totals:
    """Add up what was counted."""
    total: Totals = _added(list(each))
    return total


def _added(each: Sequence[Any]) -> Any:
    """Add the numbers of values that have nothing else."""
    first = each[0]
    return replace(
        first, **{it.name: sum(getattr(one, it.name) for one in each) for it in fields(first)}
    )


def _by(
    key: Callable[[Any], Any], together: Callable[[Any, Any], Any]
) -> Callable[[Sequence[tuple[Any, ...]]], tuple[Any, ...]]:
    """Merge lists: rows of one key become one."""

    def merged(lists: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        found: dict[Any, Any] = {}
        for row in (row for rows in lists for row in rows):
            known = found.get(key(row))
            found[key(row)] = row if known is None else together(known, row)
        return tuple(found.values())

    return merged


def _agent(one: AgentView, other: AgentView) -> AgentView:
    rtts = [it.rtt_s for it in (one, other) if it.rtt_s is not None]
    return replace(
        one,
        links=one.links + other.links,
        tunnels=one.tunnels + other.tunnels,
        draining=one.draining and other.draining,
        rtt_s=min(rtts, default=None),
    )


def _network(one: NetworkView, other: NetworkView) -> NetworkView:
    return replace(one, agents=max(one.agents, other.agents))


def _backend(one: BackendView, other: BackendView) -> BackendView:
    return replace(
        one, connections=one.connections + other.connections, failed=one.failed and other.failed
    )


def _route(one: RouteView, other: RouteView) -> RouteView:
    backends = _by(lambda it: it.address, _backend)([one.backends, other.backends])
    return replace(
        one,
        connections=one.connections + other.connections,
        max_connections=one.max_connections + other.max_connections,
        backends=backends,
    )


def _upstream(one: UpstreamView, other: UpstreamView) -> UpstreamView:
    worse = one if not one.up else other
    return replace(
        worse,
        connections=one.connections + other.connections,
        checks=one.checks + other.checks,
        failed=one.failed or other.failed,
    )


def _names(each: Sequence[NamesView]) -> NamesView:
    def counted(one: Any, other: Any) -> Any:
        return replace(one, count=one.count + other.count)

    keyed = _by(lambda row: tuple(_without(row, "count")), counted)
    return NamesView(
        tunnel_works=any(one.tunnel_works for one in each),
        failing_s=min(one.failing_s for one in each),
        lookups=keyed([one.lookups for one in each]),
        ways=keyed([one.ways for one in each]),
    )


def _without(row: Any, name: str) -> Iterable[Any]:
    return (getattr(row, it.name) for it in fields(row) if it.name != name)


def _endings(lists: Sequence[tuple[EndedView, ...]]) -> tuple[EndedView, ...]:
    every = sorted((one for each in lists for one in each), key=lambda one: one.age_s)
    return tuple(every[:MOST_ENDINGS])


def _first(one: Any, other: Any) -> Any:
    return one


_NUMBERED = frozenset({"tunnels", "links"})
_MERGED: dict[str, Callable[[Sequence[Any]], Any]] = {
    "totals": _added,
    "truncated": sum,
    "agents": _by(lambda row: row.id, _agent),
    "networks": _by(lambda row: row.name, _network),
    "recent_endings": _endings,
    "certificates": _by(lambda row: row.file, _first),
    "hellos": sum,
    "handshakes": sum,
    "requests": sum,
    "dialing": sum,
    "routes": _by(lambda row: row.name, _route),
    "upstreams": _by(lambda row: row.address, _upstream),
    "names": _names,
    "draining": all,
    "uptime_s": max,
}
