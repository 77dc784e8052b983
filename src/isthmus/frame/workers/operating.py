"""The health and admin ports of a program with workers: merges what the workers show.

The counts of a dead worker stay in the sums, as of its last report, at most five seconds before its
end, so that no counter decreases. A tunnel and a link keep their number and get their worker's as
the last two digits, so that tunnel 1203 is tunnel 12 of worker 3; after a restart of the worker,
counting continues far above.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from isthmus import __version__
from isthmus.frame.admin.answers import HEADERS, Check, Handler, Routes, json_reply, reply
from isthmus.frame.admin.debug_routes import PREFIX, debug_routes
from isthmus.frame.admin.routes import METRICS_TYPE, OPEN_METRICS_TYPE
from isthmus.frame.model.history import Tally
from isthmus.frame.model.merge import Merge, merge_numbers, merge_values
from isthmus.frame.model.snapshot import LinkView, ProgramView, Totals
from isthmus.frame.observe.counters import merge_table
from isthmus.frame.program import Program
from isthmus.frame.workers import exposition
from isthmus.frame.workers.metrics import WorkersMetrics
from isthmus.frame.workers.process import Worker, WorkerLost
from isthmus.values import TunnelId

_LONGEST_PROFILE_S = 310.0
_WORKERS = 100
#: Numbers reserved for each life of a worker; more than it could use.
_LIFE = 10**9
MOST_ENDINGS = 100
_K = TypeVar("_K", str, float)


class Operating:
    """Asks the workers, and keeps the counts of dead ones."""

    def __init__(
        self,
        program: Program,
        workers: Sequence[Worker],
        metrics: WorkersMetrics,
        *,
        clock: Callable[[], float],
        draining: Callable[[], bool],
        known: Callable[[], Mapping[str, Any]],
    ) -> None:
        """``known`` returns the fields of a snapshot that the parent knows better than any
        worker."""
        self._view_class = program.view_class
        self._workers = workers
        self._metrics = metrics
        self._clock = clock
        self._draining = draining
        self._known = known
        self._started_at = clock()
        self._rules = merge_table((*program.found(program.metrics)().families, *metrics.families))
        #: The counts of each worker from earlier lives.
        self._gone: dict[int, exposition.Exposition] = {}
        self._gone_totals = Totals()
        self._gone_tally = Tally()
        self._last: ProgramView | None = None

    def died(self, worker: Worker) -> None:
        """Keep the counts of a worker that died."""
        if worker.metrics:
            ended = exposition.read(worker.metrics)
            exposition.keep(self._gone.setdefault(worker.index, {}), ended)
        view = worker.shown or (self._decoded(worker.view) if worker.view else None)
        if view is not None:
            self._gone_totals = add_totals([self._gone_totals, view.totals])
            self._last = replace(view, tunnels=())
        tally = replace(worker.report.tally, tunnels=0, agents=0, links=0)
        self._gone_tally = _together([self._gone_tally, tally])

    def _decoded(self, body: bytes) -> ProgramView:
        view: ProgramView = msgspec.msgpack.decode(body, type=self._view_class)
        return view

    # Checks and history, from the last reports.

    def ready(self) -> list[Check]:
        """Ready: every worker serves, and each check passes in at least one of them."""
        found: dict[str, list[str]] = {}
        for worker in self._workers:
            for name, failure in worker.report.ready:
                found.setdefault(name, []).append(failure)
        return [
            *(
                Check(name, "" if "" in failures else failures[0])
                for name, failures in found.items()
                if name != "drain"
            ),
            Check("drain", "draining" if self._draining() else ""),
            *(Check(f"worker:{it.index}", it.trouble()) for it in self._workers),
        ]

    def live(self) -> list[Check]:
        """The liveness of the running workers; one that does not run is restarted."""
        return [
            Check(f"worker:{worker.index}:{name}", failure)
            for worker in self._workers
            if worker.running and not worker.leaving
            for name, failure in worker.report.live
        ]

    def tally(self) -> Tally:
        """The tally of all workers."""
        each = [worker.report.tally for worker in self._workers]
        together = _together([self._gone_tally, *each])
        return replace(together, agents=max((it.agents for it in each), default=0))

    # Metrics.

    async def _texts(self, what: str) -> dict[int, bytes]:
        async def one(worker: Worker) -> bytes:
            try:
                # Counts that a client was shown have to be kept, or they could decrease.
                worker.metrics = (await worker.ask("metrics")).body
                return worker.metrics if what == "metrics" else (await worker.ask(what)).body
            except WorkerLost:
                # Once it is dead this is empty, and its counts are among those of dead workers.
                return worker.metrics if what == "metrics" else b""

        lives = [worker.ended for worker in self._workers]
        texts = await asyncio.gather(*map(one, self._workers))
        return {
            worker.index: text
            for worker, life, text in zip(self._workers, lives, texts, strict=True)
            # The counts of one that died meanwhile are among those of dead workers, and must not
            # count twice.
            if worker.ended == life
        }

    async def metrics(self) -> bytes:
        """Merge, in the Prometheus text format."""
        return self._merged(await self._texts("metrics"), self._metrics.render())

    async def open_metrics(self) -> bytes:
        """Merge, in the OpenMetrics format."""
        texts = await self._texts("open_metrics")
        return self._merged(texts, self._metrics.render_open(), open_metrics=True)

    def _merged(
        self, texts: Mapping[int, bytes], own: bytes, *, open_metrics: bool = False
    ) -> bytes:
        each = {index: exposition.read(text) for index, text in texts.items()}
        heads = next(iter(each.values()), {})
        for index, gone in self._gone.items():
            one = each.setdefault(index, exposition.blank(heads))
            # In OpenMetrics the head of a counter has a different name, its samples have the same.
            exposition.add_gone(one, gone)
        total = exposition.merged([*each.values(), exposition.read(own)], self._rules)
        return exposition.write(total, open_metrics=open_metrics)

    async def _metrics_route(self, request: web.BaseRequest) -> web.Response:
        wants_open = "application/openmetrics-text" in request.headers.get("Accept", "")
        kind = OPEN_METRICS_TYPE if wants_open else METRICS_TYPE
        headers = {**HEADERS, "Content-Type": kind, "Vary": "Accept"}
        asked = request.query.get("worker")
        if asked is None:
            body = await (self.open_metrics() if wants_open else self.metrics())
            return web.Response(body=body, headers=headers)
        worker = self._named(asked)
        if worker is None:
            return _no_worker()
        try:
            answer = await worker.ask("open_metrics" if wants_open else "metrics")
        except WorkerLost as error:
            return reply(503, f"{error}\n")
        return web.Response(body=answer.body, headers=headers)

    # Snapshots.

    async def snapshot(self, limit: int) -> ProgramView:
        """Merge the workers' snapshots; for one that does not answer, its last one."""

        async def one(worker: Worker) -> WorkerView | None:
            life = worker.ended
            try:
                body = (await worker.ask("snapshot", {"limit": str(limit)})).body
            except WorkerLost:
                body = worker.view
            if not body or worker.ended != life:
                return None
            view = self._decoded(body)
            worker.shown = replace(view, tunnels=())  # kept for the same reason
            return WorkerView(index=worker.index, restarts=worker.restarts, view=view)

        found = [it for it in await asyncio.gather(*map(one, self._workers)) if it is not None]
        gone = self._gone_totals
        if not found:  # no worker runs, and one did before
            if self._last is None:
                raise web.HTTPServiceUnavailable(text="no worker is running\n")
            blank = replace(self._last, totals=Totals())
            found = [WorkerView(index=0, restarts=0, view=blank)]
        return merge(found, limit=limit, gone=gone, same=self._same())

    def _same(self) -> dict[str, Any]:
        same: dict[str, Any] = {
            "version": __version__,
            "taken_at": datetime.now(UTC),
            "uptime_s": self._clock() - self._started_at,
            "draining": self._draining(),
            **self._known(),
        }
        return same

    async def end_tunnel(self, tunnel: TunnelId, operator: str) -> str | None:
        """End a tunnel in the worker that has it."""
        index, restarts, own = worker_of(tunnel)
        if index >= len(self._workers) or self._workers[index].restarts != restarts:
            return None
        try:
            given = {"tunnel": str(own), "operator": operator}
            answer = await self._workers[index].ask("end", given)
        except WorkerLost:
            return None
        return answer.body.decode() if answer.status == 200 else None

    # The parent's own routes.

    def routes(self, *, profiling: bool) -> Routes:
        """The paths that other programs answer differently, or not at all."""
        own: dict[str, Handler] = {"/metrics": self._metrics_route, "/workers": self._list}
        for path, handler in debug_routes(profiling).items():
            own[path] = partial(self._profile, path.removeprefix(PREFIX), handler)
        return own

    async def _profile(
        self, path: str, handler: Handler, request: web.BaseRequest
    ) -> web.StreamResponse:
        asked = request.query.get("worker")
        if asked is None:
            return await handler(request)
        worker = self._named(asked)
        if worker is None:
            return _no_worker()
        given = {**request.query, "path": path}
        try:
            answer = await worker.ask("profile", given, timeout_s=_LONGEST_PROFILE_S)
        except WorkerLost as error:
            return reply(503, f"{error}\n")
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    def _named(self, text: str) -> Worker | None:
        if not (text.isascii() and text.isdigit() and len(text) < 4):
            return None
        return self._workers[int(text)] if int(text) < len(self._workers) else None

    async def _list(self, request: web.BaseRequest) -> web.Response:
        rows = [
            {
                "index": worker.index,
                "pid": worker.pid,
                "state": worker.state.name.lower(),
                "why": worker.why,
                "ready": worker.ready,
                "restarts": worker.restarts,
                "load": worker.load,
                "connectionsHanded": worker.handed,
                "cpuSeconds": round(worker.cpu_s, 3),
            }
            for worker in self._workers
        ]
        return json_reply(json.dumps({"kind": "Workers", "workers": rows}) + "\n")


def _no_worker() -> web.Response:
    return reply(404, "no such worker\n")


def _together(each: Sequence[Tally]) -> Tally:
    return Tally(
        dials=sum(tally.dials for tally in each),
        failures=_summed([tally.failures for tally in each]),
        dial_times=_summed([tally.dial_times for tally in each]),
        bytes_to_target=sum(tally.bytes_to_target for tally in each),
        bytes_to_client=sum(tally.bytes_to_client for tally in each),
        tunnels=sum(tally.tunnels for tally in each),
        agents=max((tally.agents for tally in each), default=0),
        links=sum(tally.links for tally in each),
    )


def _summed(each: Sequence[Mapping[_K, int]]) -> dict[_K, int]:
    """Add up counts by key, which is the merge rule of counters and of histogram buckets."""
    keys = {key for counts in each for key in counts}
    return {
        key: int(merge_numbers(Merge.SUM, [counts.get(key, 0) for counts in each])) for key in keys
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A worker's snapshot, its number, and how often it was restarted."""

    index: int
    restarts: int
    view: ProgramView

    def number(self, own: int) -> int:
        """One of its own numbers as the program shows it; 0 is none."""
        return own and (self.restarts * _LIFE + own) * _WORKERS + self.index


def worker_of(number: int) -> tuple[int, int, int]:
    """Split such a number: the worker, its restarts, and its own number."""
    rest, index = divmod(number, _WORKERS)
    restarts, own = divmod(rest, _LIFE)
    return index, restarts, own


def merge(
    found: Sequence[WorkerView], *, limit: int, gone: Totals, same: Mapping[str, Any]
) -> ProgramView:
    """Merge the snapshots of one or more workers, with at most ``limit`` tunnels.

    ``gone`` are the counts of dead workers; ``same`` are fields that the parent knows itself.
    """
    view = merge_values([_numbered(one) for one in found])
    tunnels = sorted(view.tunnels, key=lambda row: -row.age_s)  # oldest first
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
    """Add up counts."""
    return merge_values(list(each))
