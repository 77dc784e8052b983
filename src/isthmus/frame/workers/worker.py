"""The program inside a worker: takes connections, reports, answers, and exits on request.

The parent handles signals: a terminal and systemd send them to every process of a group.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import uvloop
from aiohttp import web

from isthmus.errors import ConfigError
from isthmus.frame.admin.answers import Check, Watched
from isthmus.frame.admin.debug_routes import PREFIX, debug_routes
from isthmus.frame.lifecycle import Lifecycle
from isthmus.frame.lifetime import fill_standard_streams, settle_memory
from isthmus.frame.part import Handed, WorkerPlan, WorkerSlot
from isthmus.frame.program import Program
from isthmus.frame.workers.channel import (
    Audit,
    Begin,
    Bound,
    Channel,
    Drain,
    Failed,
    Hangup,
    Started,
    Stop,
    ToParent,
    ToWorker,
    WorkerAnswer,
    WorkerQuestion,
    WorkerReport,
)
from isthmus.frame.workers.passing import Taker
from isthmus.logs import RECENT, configure, log
from isthmus.values import TunnelId

#: Tells a process that it is a worker, and its descriptors.
VARIABLE = "_ISTHMUS_WORKER"
_PR_SET_PDEATHSIG = 1
_BEGIN_S = 30.0
_FLUSH_S = 2.0
WRONG = 2
_log = logging.getLogger("isthmus.workers")
REPORT_S = 1.0
#: How soon it reports that it is ready: clients are not sent to a worker without agents.
SOON_S = 0.1
#: How often the data kept for a worker that dies is updated.
KEEP_S = 5.0
#: Most log lines in a report; others are only in the log.
MOST_LINES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """The parameters of a worker: its number, its parent, and descriptors; audit -1 is none."""

    index: int
    parent: int
    channel: int
    passing: int
    audit: int = -1

    def to_text(self) -> str:
        """Write it as an environment variable."""
        return json.dumps(asdict(self))


def inherited(environment: MutableMapping[str, str]) -> Inherited | None:
    """Read the parameters of a worker, and remove them; None in any other process."""
    text = environment.pop(VARIABLE, "")
    return Inherited(**json.loads(text)) if text else None


def main(program: Program, settings: Any, found: Inherited) -> int:
    """Run a worker until its parent ends it; returns the exit code."""
    _die_with(found.parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    fill_standard_streams()
    logs = settings.log
    configure(
        logs.v, "json" if logs.log_format == "json" else "text", sys.stderr,
        fields={"worker": found.index},
    )  # fmt: skip
    os.umask(0o077)
    program.found(program.parts)
    settle_memory()
    return uvloop.run(_run(program, settings, found))


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, which may have happened already
    (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


async def _run(program: Program, settings: Any, found: Inherited) -> int:
    channel = await Channel.of_worker(socket.socket(fileno=found.channel))
    async with asyncio.timeout(_BEGIN_S):
        begin = await channel.receive()
    if not isinstance(begin, Begin):
        return 1
    audit = f"/dev/fd/{found.audit}" if found.audit >= 0 else ""
    slot = WorkerSlot(
        index=begin.index, count=begin.count, program_id=begin.program_id, audit=audit
    )
    handed = Handed(slot)
    try:
        plan: WorkerPlan = program.found(program.workers)(settings)
        made = Lifecycle(program, plan.settings(slot), handed=handed)
        await made.start()
    except ConfigError as error:
        channel.send(Failed(sentence=str(error)))
        await channel.flush(_FLUSH_S)
        return WRONG
    if found.audit >= 0:
        os.close(found.audit)  # the log has its own descriptor
    passing = socket.socket(fileno=found.passing)
    passing.setblocking(False)
    taker = Taker(passing, made.poller, handed.take)
    reporter = Reporter(made, handed, taker, channel)
    await WorkerLife(made, handed, taker, channel, reporter).run()
    return 0


class WorkerLife:
    """A worker from its start to its end."""

    def __init__(
        self,
        program: Lifecycle,
        handed: Handed,
        taker: Taker,
        channel: Channel[ToParent, ToWorker],
        reporter: Reporter,
    ) -> None:
        self._program = program
        self._handed = handed
        self._taker = taker
        self._channel = channel
        self._reporter = reporter
        self._told = asyncio.Event()
        self._hurry = asyncio.Event()
        self._drain_s = 0.0

    async def run(self) -> None:
        """Serve until told to end."""
        try:
            async with asyncio.TaskGroup() as tasks:
                long: list[asyncio.Task[Any]] = [
                    tasks.create_task(self._program.watch(), name="watch"),
                    tasks.create_task(self._reporter.run(), name="report"),
                    tasks.create_task(self._listen(), name="parent"),
                ]
                self._channel.send(Started())
                await self._told.wait()
                self._taker.take_all()  # connections that were handed over before that
                draining = tasks.create_task(self._program.drain(self._drain_s), name="drain")
                hurried = tasks.create_task(self._hurry.wait(), name="hurry")
                await asyncio.wait({draining, hurried}, return_when=asyncio.FIRST_COMPLETED)
                for task in (draining, hurried, *long):
                    task.cancel()
        finally:
            await self._program.stop()
            self._reporter.report(last=True)
            await self._channel.flush(_FLUSH_S)

    async def _listen(self) -> None:
        while (message := await self._channel.receive()) is not None:
            match message:
                case WorkerQuestion():
                    self._reporter.ask(message)
                case Bound():
                    self._handed.bound(message.where)
                case Drain():
                    self._drain_s = message.timeout_s
                    self._told.set()
                case Stop():
                    self._told.set()
                    self._hurry.set()
                case Hangup():
                    reload = getattr(self._program, "reload", None)
                    if reload is not None:
                        reload()
                case Audit(failing=failing):
                    told = self._handed.on_audit
                    if told is not None:
                        told(failing)
                case Begin():
                    pass  # it came first, and only once
        # Without the parent, this worker gets no connections and cannot report.
        log(_log, logging.ERROR, "the parent process has exited")
        os._exit(1)


class Reporter:
    """Talks to the parent for a program."""

    def __init__(
        self,
        program: Lifecycle,
        handed: Handed,
        taker: Taker,
        channel: Channel[ToParent, ToWorker],
    ) -> None:
        self._program = program
        self._handed = handed
        self._taker = taker
        self._channel = channel
        self._kept_at = float("-inf")
        self._lines = 0
        self._was_ready = False
        self._asked: set[asyncio.Task[None]] = set()

    @property
    def _watched(self) -> Watched:
        assert self._handed.watched is not None  # the program has started
        return self._handed.watched

    async def run(self) -> None:
        """Report until cancelled: once a second, and at once when readiness changes."""
        due = 0.0
        while True:
            ready = not _failures(self._watched.ready())
            if ready != self._was_ready or time.monotonic() >= due:
                self._was_ready = ready
                self.report()
                due = time.monotonic() + REPORT_S
            await asyncio.sleep(SOON_S)

    def report(self, *, last: bool = False) -> None:
        """Report the state; now and then, and at the end, with the data to keep."""
        watched, program = self._watched, self._program
        now = time.monotonic()
        keep = last or now - self._kept_at >= KEEP_S
        if keep:
            self._kept_at = now
        self._channel.send(
            WorkerReport(
                taken=self._taker.taken,
                load=len(program.poller) + program.calls,
                live=_checks(watched.live()),
                ready=_checks(watched.ready()),
                status=program.status(),
                has_peers=program.has_peers,
                cpu_s=time.process_time(),
                tally=program.health.tally(),
                lines=self._new_lines(),
                metrics=_now(watched.metrics()) if keep else b"",
                view=msgspec.msgpack.encode(_now(watched.snapshot(0))) if keep else b"",
            )
        )

    def _new_lines(self) -> list[bytes]:
        new, self._lines = RECENT.count - self._lines, RECENT.count
        return RECENT.last(min(new, MOST_LINES)) if new else []

    # Questions.

    def ask(self, asked: WorkerQuestion) -> None:
        """Answer a question, now or when the answer is ready."""
        task = asyncio.get_running_loop().create_task(self._answer(asked), name=f"ask:{asked.what}")
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _answer(self, asked: WorkerQuestion) -> None:
        try:
            answer = await self._answered(asked)
        except Exception as exc:
            log(_log, logging.ERROR, "cannot answer", what=asked.what, exc_info=exc)
            answer = WorkerAnswer(number=asked.number, status=500)
        if not self._channel.send(answer):
            self._channel.send(WorkerAnswer(number=asked.number, status=507))

    async def _answered(self, asked: WorkerQuestion) -> WorkerAnswer:
        watched, given = self._watched, asked.given
        match asked.what:
            case "metrics":
                return WorkerAnswer(number=asked.number, body=_now(watched.metrics()))
            case "open_metrics":
                return WorkerAnswer(number=asked.number, body=_now(watched.open_metrics()))
            case "snapshot":
                view = _now(watched.snapshot(int(given["limit"])))
                return WorkerAnswer(number=asked.number, body=msgspec.msgpack.encode(view))
            case "end":
                return self._end(asked)
            case "profile":
                return await self._profile(asked)
            case _:
                return WorkerAnswer(number=asked.number, status=404)

    def _end(self, asked: WorkerQuestion) -> WorkerAnswer:
        end = self._watched.end_tunnel
        if end is None:
            return WorkerAnswer(number=asked.number, status=404)
        found = _now(end(TunnelId(int(asked.given["tunnel"])), asked.given["operator"]))
        if found is None:
            return WorkerAnswer(number=asked.number, status=404)
        return WorkerAnswer(number=asked.number, body=found.encode())

    async def _profile(self, asked: WorkerQuestion) -> WorkerAnswer:
        settings: Any = self._watched.settings
        routes = debug_routes(settings.admin.enable_profiling)
        handler = routes.get(f"{PREFIX}{asked.given['path']}")
        if handler is None:
            return WorkerAnswer(number=asked.number, status=404, body=b"404 page not found\n")
        # The handlers of profiles read only the query of a request.
        request = cast(web.BaseRequest, SimpleNamespace(query=_query(asked.given)))
        made = await handler(request)
        assert isinstance(made, web.Response)
        body = made.body if isinstance(made.body, bytes) else b""
        return WorkerAnswer(
            number=asked.number, status=made.status, body=body, headers=dict(made.headers)
        )


def _query(given: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in given.items() if key != "path"}


def _now(value: Any) -> Any:
    """A worker's program returns this at once, without waiting."""
    assert not inspect.isawaitable(value)
    return value


def _checks(checks: list[Check]) -> list[tuple[str, str]]:
    return [(check.name, check.failure) for check in checks]


def _failures(checks: list[Check]) -> list[str]:
    return [check.failure for check in checks if check.failure]
