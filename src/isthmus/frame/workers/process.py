"""One worker as its parent sees it: starts it, reads its reports, and restarts it when it exits."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum

from isthmus.errors import ConfigError, IsthmusError, ProtocolError
from isthmus.frame.model.snapshot import ProgramView
from isthmus.frame.workers.channel import (
    Begin,
    Bound,
    Channel,
    Failed,
    Started,
    Stop,
    ToParent,
    ToWorker,
    WorkerAnswer,
    WorkerQuestion,
    WorkerReport,
)
from isthmus.frame.workers.passing import Giver, make_pair
from isthmus.frame.workers.worker import VARIABLE, Inherited
from isthmus.logs import RECENT, log
from isthmus.net.child_endings import ending_of
from isthmus.net.poller import Poller
from isthmus.text.pacing import Backoff

#: How long a worker may take to start.
START_S = 60.0
#: A worker that does not report for this long is stuck, and is ended.
SILENT_S = 30.0
#: How long a worker may take to exit after its channel is closed.
_GONE_S = 5.0
ASK_S = 5.0
#: A worker that served for this long did not fail at its start.
_LIVED_S = 30.0
_LOOK_S = 1.0
#: The report of a worker that has not reported yet.
_NOTHING = WorkerReport()
_log = logging.getLogger("isthmus.workers")


class WorkerState(Enum):
    """The state of a worker."""

    STARTING = "starting"
    RUNNING = "running"
    RESTING = "exited, restarting soon"
    ENDED = "ended"


class WorkerLost(IsthmusError):
    """A worker ended before it answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """The parameters that all workers are started with."""

    count: int
    program_id: str
    audited: Callable[[int], None] | None = None
    command: Sequence[str] = ()


class Worker:
    """One worker, through all its lives.

    ``died`` is called at the end of a life, before the last report is dropped; ``changed`` when
    connections may be handed over again.
    """

    def __init__(
        self,
        index: int,
        birth: Birth,
        poller: Poller,
        *,
        died: Callable[[Worker], None],
        changed: Callable[[], None],
    ) -> None:
        self.index = index
        self.state = WorkerState.STARTING
        self.report = _NOTHING
        #: What was kept from this life: the last reports that had metrics, and a snapshot.
        self.metrics = self.view = b""
        #: What a client was shown since then, without tunnels.
        self.shown: ProgramView | None = None
        self.restarts = 0
        #: How many lives have ended.
        self.ended = 0
        self.why = ""
        self.leaving = False
        self._birth = birth
        self._poller = poller
        self._died = died
        self._changed = changed
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[ToWorker, ToParent] | None = None
        self._giver: Giver | None = None
        self._where: Bound | None = None
        self._numbers = 0
        self._asked: dict[int, asyncio.Future[WorkerAnswer]] = {}
        self._heard_at = self._started_at = 0.0
        self._given_before = 0
        self._cpu_before_s = 0.0
        self._backoff = Backoff(first_s=0.2, cap_s=30.0, factor=2.0, chance=random.random)

    def __repr__(self) -> str:
        return f"<Worker {self.index} {self.state.value} pid={self.pid}>"

    # For choosing, and for metrics.

    @property
    def running(self) -> bool:
        """Whether it takes connections."""
        return self.state is WorkerState.RUNNING

    @property
    def ready(self) -> bool:
        """Whether it reported that it could serve a client; False before its first report."""
        said = self.running and self.report is not _NOTHING
        return said and not any(failure for _, failure in self.report.ready)

    @property
    def load(self) -> int:
        """What it had open at its last report, plus what it was handed since."""
        given = self._giver.given if self._giver is not None else 0
        return self.report.load + given - self.report.taken

    @property
    def handed(self) -> int:
        """The connections that it was handed in all its lives."""
        return self._given_before + (self._giver.given if self._giver is not None else 0)

    @property
    def cpu_s(self) -> float:
        """The CPU time that it has used in all its lives."""
        return self._cpu_before_s + self.report.cpu_s

    @property
    def pid(self) -> int:
        """The id of its process; 0 without one."""
        return self._process.pid if self._process is not None else 0

    def trouble(self) -> str:
        """Why it does not serve; empty if it does."""
        return "" if self.running else f"{self.state.value}{': ' if self.why else ''}{self.why}"

    # Connections and questions.

    def give(self, flag: str, sock: socket.socket) -> bool:
        """Hand over a connection; False if it cannot take it now. The caller keeps its
        descriptor."""
        return self.running and self._giver is not None and self._giver.give(flag, sock)

    def tell(self, message: ToWorker) -> None:
        """Send a message that has no answer."""
        if self._channel is not None:
            self._channel.send(message)

    def bound(self, where: Bound) -> None:
        """Report where the parent listens, to this life and later ones."""
        self._where = where
        self.tell(where)

    async def ask(
        self, what: str, given: Mapping[str, str] | None = None, *, timeout_s: float = ASK_S
    ) -> WorkerAnswer:
        """Ask a question; the worker finds the values in ``given`` by name.

        Raises:
            WorkerLost: it does not run, exits before it answers, or takes too long.
        """
        if self._channel is None or not self.running:
            raise WorkerLost(f"worker {self.index} is not running")
        self._numbers += 1
        number = self._numbers
        answered = asyncio.get_running_loop().create_future()
        self._asked[number] = answered
        try:
            if not self._channel.send(
                WorkerQuestion(number=number, what=what, given=dict(given or {}))
            ):
                raise WorkerLost(f"worker {self.index} does not read its channel")
            async with asyncio.timeout(timeout_s):
                answer: WorkerAnswer = await answered
                return answer
        except TimeoutError as exc:
            raise WorkerLost(f"worker {self.index} does not answer") from exc
        finally:
            self._asked.pop(number, None)

    # Its lives.

    async def start(self) -> None:
        """Start it, and wait until it takes connections.

        Raises:
            ConfigError: it reports that a setting or a file is wrong.
            WorkerLost: it exited, is silent, or cannot be started now.
        """
        self.state, self.report = WorkerState.STARTING, _NOTHING
        self.metrics = self.view = b""
        channel = await self._spawn()
        try:
            async with asyncio.timeout(START_S):
                first = await channel.receive()
        except TimeoutError:
            first = None
        match first:
            case Started():
                self._heard_at = self._started_at = asyncio.get_running_loop().time()
                self.state, self.why = WorkerState.RUNNING, ""
                if self._where is not None:
                    channel.send(self._where)
                if self.leaving:  # sent before it could receive messages
                    channel.send(Stop())
                self._changed()
            case Failed(sentence=sentence):
                await self._bury()
                raise ConfigError(sentence)
            case _:
                code = await self._bury()
                raise WorkerLost(f"worker {self.index} did not start: {ending_of(code)}")

    async def _spawn(self) -> Channel[ToWorker, ToParent]:
        try:
            ours, giver, reading = self._launch()
        except OSError as exc:  # no process, memory or descriptor is available now
            why = exc.strerror or str(exc)
            raise WorkerLost(f"worker {self.index} cannot be started: {why}") from exc
        if self._birth.audited is not None:
            self._birth.audited(reading)
        self._giver = Giver(giver, self._poller, self._changed)
        ours.setblocking(False)
        self._channel = await Channel.of_parent(ours)
        birth = self._birth
        begin = Begin(index=self.index, count=birth.count, program_id=birth.program_id)
        self._channel.send(begin)
        return self._channel

    def _launch(self) -> tuple[socket.socket, socket.socket, int]:
        """Start its process; returns the parent's ends of its channel, its queue and its records.

        Raises:
            OSError: it cannot be started; nothing is left open.
        """
        with ExitStack() as kept, ExitStack() as passed:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            kept.callback(ours.close)
            passed.callback(theirs.close)
            giver, taker = make_pair()
            kept.callback(giver.close)
            passed.callback(taker.close)
            reading = audit = -1
            if self._birth.audited is not None:
                reading, audit = os.pipe()
                kept.callback(os.close, reading)
                passed.callback(os.close, audit)
            inherited = Inherited(
                index=self.index,
                parent=os.getpid(),
                channel=theirs.fileno(),
                passing=taker.fileno(),
                audit=audit,
            )
            # Not in another thread, because the worker would end with it (prctl(2)).
            self._process = subprocess.Popen(
                list(self._birth.command) or own_command(),
                stdin=subprocess.DEVNULL,
                pass_fds=[fd for fd in (theirs.fileno(), taker.fileno(), audit) if fd >= 0],
                env={**os.environ, VARIABLE: inherited.to_text()},
            )
            kept.pop_all()
        return ours, giver, reading

    async def watch(self) -> None:
        """Read its messages, and restart it when it dies, until it is told to end."""
        while True:
            if self._channel is not None:
                await self.follow()
            self.state = WorkerState.ENDED if self.leaving else WorkerState.RESTING
            if self.state is WorkerState.ENDED:
                return
            pause_s = self._backoff.next_s()
            log(
                _log, logging.ERROR, "worker exited, restarting", index=self.index,
                reason=self.why, seconds=round(pause_s, 1), restarts=self.restarts,
            )  # fmt: skip
            await asyncio.sleep(pause_s)
            await self._start_again()

    async def _start_again(self) -> None:
        if self.leaving:  # told between two lives
            return
        self.restarts += 1
        try:
            await self.start()
            log(_log, logging.INFO, "worker restarted", index=self.index, pid=self.pid)
        except IsthmusError as error:
            self.why = str(error)

    async def follow(self) -> None:
        """Read its messages until the end of this life."""
        assert self._channel is not None
        watching = asyncio.create_task(self._look(), name=f"silence:{self.index}")
        try:
            while (message := await self._channel.receive()) is not None:
                self._hear(message)
        except ProtocolError as error:
            log(_log, logging.ERROR, "invalid message from worker", index=self.index, error=error)
            self.kill()
        finally:
            watching.cancel()
        # It gets no more connections, though it may take a moment to exit.
        self.state = WorkerState.RESTING
        lived_s = asyncio.get_running_loop().time() - self._started_at
        self.why = ending_of(await self._bury())
        if lived_s >= _LIVED_S:
            self._backoff.reset()

    def _hear(self, message: ToParent) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        match message:
            case WorkerReport():
                was_ready, self.report = self.ready, message
                self.metrics = message.metrics or self.metrics
                if message.view:
                    self.view, self.shown = message.view, None
                for line in message.lines:
                    RECENT.keep(line)
                if self.ready and not was_ready:
                    self._changed()
            case WorkerAnswer():
                asked = self._asked.get(message.number)
                if asked is not None and not asked.done():
                    asked.set_result(message)
            case _:
                pass

    async def _look(self) -> None:
        """Check that it keeps reporting."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(_LOOK_S)
            if loop.time() - before > 2 * _LOOK_S:
                self._heard_at = loop.time()  # the parent itself did not run
            if loop.time() - self._heard_at > SILENT_S:
                log(_log, logging.ERROR, "worker is stuck, killing it", index=self.index)
                self.kill()
                return

    async def _bury(self) -> int:
        """Make sure that its process is gone, and keep its last counts; returns the exit code."""
        assert self._process is not None
        process = self._process
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        try:
            code = await asyncio.to_thread(process.wait, _GONE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = await asyncio.to_thread(process.wait)
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(WorkerLost(f"worker {self.index} ended"))
        self._asked.clear()
        if self._giver is not None:
            self._given_before += self._giver.given
            self._giver.close()
            self._giver = None
        self._died(self)
        self.ended += 1
        self._cpu_before_s += self.report.cpu_s
        self.report = _NOTHING
        self.metrics, self.view, self.shown = b"", b"", None
        self._process = None
        return code

    async def finish(self, timeout_s: float) -> None:
        """It was told to end: read its last messages for a limited time, and make sure that it is
        gone."""
        self.leaving = True
        if self._channel is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.follow()
            except TimeoutError:
                log(_log, logging.WARNING, "worker does not exit, killing it", index=self.index)
                self.kill()
                await self._bury()
        elif self._process is not None:
            self.kill()
            await self._bury()
        self.state = WorkerState.ENDED

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()


def own_command() -> list[str]:
    """The command line of this process, to start another one."""
    return [sys.executable, *sys.orig_argv[1:]]
