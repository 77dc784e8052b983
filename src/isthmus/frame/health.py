"""Liveness: whether a program can do its job, or must be restarted.

It must be restarted when a listener is gone, the event loop is stuck, or a task that should live
as long as the program has ended. Readiness is different (is there an agent, is the program
draining), and each program's own. Nothing is done per request or connection: a heartbeat checks
once a second, and each probe checks, too. The same heartbeat keeps the history of the last hour. A
stuck loop cannot answer a probe, which then times out, as it should; a thread logs where the loop
is stuck.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextvars import Context
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from isthmus.frame.admin.answers import PING, Check
from isthmus.frame.admin.ports import Port
from isthmus.frame.model.history import STEP_S, History, Tally
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.logs import log

T = TypeVar("T")
BEAT_S = 1.0
#: A heartbeat that is this late is a stall.
STALL_S = 5.0
#: A stall is reported for this long after its end, for probes that waited during it.
RECENT_S = 10.0
_MOST_FRAMES = 16  # what fits in a log line
_log = logging.getLogger("isthmus.app")


class ListenerHealth(Protocol):
    """A listener, as health checks see it."""

    name: str

    def trouble(self, now: float) -> str:
        """Why no connections can be accepted; empty if they can, and after a stop."""


class WatchedTasks(asyncio.TaskGroup):
    """A task group for tasks that should live as long as the program.

    A task that raises ends the group, as in any task group. A task that returns or is cancelled
    would go unnoticed, so its check fails.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: list[asyncio.Task[Any]] = []

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        """Create a task in the group and watch it."""
        task = super().create_task(coro, name=name, context=context)
        self._made.append(task)
        return task

    def checks(self) -> list[Check]:
        """One check for each task."""
        return [Check(f"task:{task.get_name()}", _ending(task)) for task in self._made]


def _ending(task: asyncio.Task[Any]) -> str:
    if not task.done():
        return ""
    if task.cancelled():
        return "was cancelled"
    error = task.exception()
    return f"failed: {type(error).__name__}" if error is not None else "ended"


class Health:
    """The checks behind a program's ``/livez`` and ``/healthz``.

    ``listeners`` returns the open ones; ``leaving`` is true once the program drains, when its
    tasks may end. ``counted`` is called every ten seconds, for ``history``. Create it in the loop,
    and ``start`` it when everything listens.
    """

    def __init__(
        self,
        metrics: ProgramMetrics,
        *,
        leaving: Callable[[], bool],
        listeners: Callable[[], Iterable[ListenerHealth]] = tuple,
        counted: Callable[[], Tally] = Tally,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._leaving = leaving
        self._listeners = listeners
        self._counted = counted
        self.history = History()
        self._next_step = 0.0
        self._ports: Mapping[str, Port] = {}
        self._groups: list[WatchedTasks] = []
        self._heartbeat = Heartbeat(metrics, self._look)

    def start(self, ports: Mapping[str, Port]) -> None:
        """Start to watch the loop, and these HTTP ports by name."""
        self._ports = ports
        self._next_step = self._loop.time() + STEP_S
        self._heartbeat.start()

    def stop(self) -> None:
        """Stop watching."""
        self._heartbeat.stop()
        self._ports = {}

    def tasks(self) -> WatchedTasks:
        """Create a task group for tasks that live as long as the program."""
        group = WatchedTasks()
        self._groups.append(group)
        return group

    def tally(self) -> Tally:
        """The counts so far."""
        return self._counted()

    def live(self) -> list[Check]:
        """All checks, passed or failed."""
        now = self._loop.time()
        return [
            PING,
            Check("event-loop", self._heartbeat.trouble()),
            *(Check(f"listener:{it.name}", it.trouble(now)) for it in self._listeners()),
            *(Check(f"listener:{name}", port.trouble()) for name, port in self._ports.items()),
            *(() if self._leaving() else self._task_checks()),
        ]

    def _task_checks(self) -> list[Check]:
        return [check for group in self._groups for check in group.checks()]

    def _look(self, now: float) -> None:
        # Only several looks can tell that connections wait without being accepted.
        for listener in self._listeners():
            listener.trouble(now)
        if now >= self._next_step:
            # From the due time, so that a step is ten seconds and not ten beats.
            self._next_step = max(self._next_step + STEP_S, now + STEP_S / 2)
            self.history.take(self._counted(), at=datetime.now(UTC))


class Heartbeat:
    """Beats once a second in the loop that created it, from ``start`` to ``stop``.

    ``beaten`` is called at every beat. Only the loop's thread writes the numbers; the watchdog's
    thread reads one of them, the time of the last beat.
    """

    def __init__(
        self,
        metrics: ProgramMetrics,
        beaten: Callable[[float], None],
        *,
        beat_s: float = BEAT_S,
        stall_s: float = STALL_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._metrics = metrics
        self._beaten = beaten
        self._beat_s = beat_s
        self._stall_s = stall_s
        self._timer: asyncio.TimerHandle | None = None
        self._last = time.monotonic()
        self._ended = float("-inf")
        self._lasted = 0.0
        self._loop_thread = 0
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start to beat, watched by a thread."""
        self._last = time.monotonic()
        self._loop_thread = threading.get_ident()
        self._timer = self._loop.call_later(self._beat_s, self._beat)
        # A daemon thread: the end of the process cannot damage anything it holds.
        threading.Thread(target=self._watch, name="loop-watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop beating; the thread exits by itself."""
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def trouble(self) -> str:
        """What is wrong with the loop; empty while it is on time."""
        now = time.monotonic()
        if self._timer is None:
            return ""
        late = now - self._last - self._beat_s
        if late > self._stall_s:  # the loop runs, since it answers, but its timers are late
            return f"its timers are {late:.1f} s late"
        if now - self._ended < RECENT_S:
            return f"it was stuck for {self._lasted:.1f} s until a moment ago"
        return ""

    def _beat(self) -> None:
        now = time.monotonic()
        late = max(0.0, now - self._last - self._beat_s)
        stalled = late > self._stall_s
        self._metrics.loop_lagged(late, stalled=stalled)
        self._last = now
        self._timer = self._loop.call_later(self._beat_s, self._beat)
        if stalled:
            self._ended, self._lasted = now, late
            log(_log, logging.ERROR, "the event loop was stuck", seconds=round(late, 1))
        self._beaten(self._loop.time())

    def _watch(self) -> None:
        """Look at the last beat from a thread; say once in each stall where the loop is."""
        said, looked = 0.0, self._last
        while not self._stopping.wait(self._beat_s):
            now, before, looked = time.monotonic(), looked, time.monotonic()
            # The whole process stood still (SIGSTOP, a machine without time): the loop is not to
            # blame, and gets the time to beat first.
            slept = now - before > self._beat_s + self._stall_s / 2
            last = self._last
            if slept or last == said or now - last - self._beat_s <= self._stall_s:
                continue
            said = last
            self._say_where(now - last - self._beat_s)

    def _say_where(self, late: float) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return
        where: list[str] = []
        while frame is not None and len(where) < _MOST_FRAMES:
            code = frame.f_code
            file = "/".join(code.co_filename.rsplit("/", 2)[1:])
            where.append(f"{code.co_qualname} ({file}:{frame.f_lineno})")
            frame = frame.f_back
        log(
            _log, logging.ERROR, "the event loop is stuck", seconds=round(late, 1),
            stuck_in=" < ".join(where),
        )  # fmt: skip
