"""The program inside a worker: it is handed connections, reports, answers, and ends when told.

Signals are the parent's business: a terminal and systemd send them to every process of a group.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

import uvloop

from isthmus.errors import ConfigError
from isthmus.frame.handed import Handed, WorkerSlot
from isthmus.frame.lifecycle import Lifecycle
from isthmus.frame.lifetime import WorkerProgram, fill_standard_streams
from isthmus.frame.program import Program
from isthmus.frame.sharing import WorkerPlan
from isthmus.frame.workers.channel import Channel
from isthmus.frame.workers.messages import (
    Ask,
    Audit,
    Begin,
    Bound,
    Drain,
    Failed,
    Hangup,
    Started,
    Stop,
    ToParent,
    ToWorker,
)
from isthmus.frame.workers.passing import Taker
from isthmus.frame.workers.reporting import Reporter
from isthmus.logs import configure, log

#: Says to a process that it is a worker, and by which descriptors it hears.
VARIABLE = "_ISTHMUS_WORKER"
_PR_SET_PDEATHSIG = 1
_BEGIN_S = 30.0
_FLUSH_S = 2.0
WRONG = 2
_log = logging.getLogger("isthmus.workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """What a worker was started with: its number, its parent, and descriptors; audit -1 is none."""

    index: int
    parent: int
    channel: int
    passing: int
    audit: int = -1

    def to_text(self) -> str:
        """Write it for the environment."""
        return json.dumps(asdict(self))


def inherited(environment: MutableMapping[str, str]) -> Inherited | None:
    """Read what a worker was started with, and remove it; None in any other process."""
    text = environment.pop(VARIABLE, "")
    return Inherited(**json.loads(text)) if text else None


def main(program: Program, settings: Any, found: Inherited) -> int:
    """Run a worker until its parent ends it; the exit code."""
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
    program.found(program.parts or program.made)
    # As in frame/lifetime.py: what is imported by now lives for ever.
    gc.collect()
    gc.freeze()
    return uvloop.run(_run(program, settings, found))


def _die_with(parent: int) -> None:
    """Have the kernel kill us when our parent dies; it may have done so already (prctl(2))."""
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
        made = _made(program, plan.settings(slot), handed)
        await made.start()
    except ConfigError as error:
        channel.send(Failed(sentence=str(error)))
        await channel.flush(_FLUSH_S)
        return WRONG
    if found.audit >= 0:
        os.close(found.audit)  # the log has opened it for itself
    passing = socket.socket(fileno=found.passing)
    passing.setblocking(False)
    taker = Taker(passing, made.poller, handed.take)
    reporter = Reporter(made, handed, taker, channel)
    await WorkerLife(made, handed, taker, channel, reporter).run()
    return 0


def _made(program: Program, settings: Any, handed: Handed) -> WorkerProgram:
    if program.parts:
        return Lifecycle(program, settings, handed=handed)
    made: WorkerProgram = program.found(program.made)(settings, handed)
    return made


class WorkerLife:
    """A worker from its start to its end."""

    def __init__(
        self,
        program: WorkerProgram,
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
                self._taker.take_all()  # what was handed over before that
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
                case Ask():
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
                    pass  # it came first, and comes once
        # Nobody accepts for us any more, and nobody would see what we do.
        log(_log, logging.ERROR, "the parent is gone")
        os._exit(1)
