"""Liveness: whether a program can do its job, or has to be started again.

It cannot when a listener is gone, the event loop does not turn, or a task that should live as long
as the program has ended. Readiness is something else (is there an agent, do we drain) and is the
programs' own. Nothing is done per request or connection: a heartbeat looks once a second, and a
probe when it comes. The same heartbeat keeps the history of the last hour.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping
from contextvars import Context
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from isthmus.frame.admin.answers import PING, Check
from isthmus.frame.admin.ports import Port
from isthmus.frame.heartbeat import Heartbeat
from isthmus.frame.model.history import STEP_S, History, Tally
from isthmus.frame.observe.program import ProgramMetrics

T = TypeVar("T")


class ListenerHealth(Protocol):
    """A listener, as far as health looks at it."""

    name: str

    def trouble(self, now: float) -> str:
        """Say why nobody can come in here; empty while all is well, and once stopped."""


class WatchedTasks(asyncio.TaskGroup):
    """A task group whose tasks should live as long as the program.

    One that raises ends the group, as in every task group. One that returns or is cancelled would
    go unnoticed: its check fails.
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
        """Make a task of the group and keep an eye on it."""
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
    """What a program's ``/livez`` and ``/healthz`` are made of.

    ``listeners`` gives those that are open; ``leaving`` is true once the program drains: then its
    tasks may end. Every ten seconds ``counted`` is asked, for ``history``. Make it in the loop,
    ``start`` it when everything listens.
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
        """Watch the loop from now on, and these HTTP ports by name."""
        self._ports = ports
        self._next_step = self._loop.time() + STEP_S
        self._heartbeat.start()

    def stop(self) -> None:
        """Watch nothing more."""
        self._heartbeat.stop()
        self._ports = {}

    def tasks(self) -> WatchedTasks:
        """Make a task group for what lives as long as the program."""
        group = WatchedTasks()
        self._groups.append(group)
        return group

    def tally(self) -> Tally:
        """What was counted so far."""
        return self._counted()

    def live(self) -> list[Check]:
        """Every check, well or not."""
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
        # Whether connections wait in vain can only be told by looking more than once.
        for listener in self._listeners():
            listener.trouble(now)
        if now >= self._next_step:
            # From when it was due, so that the steps are ten seconds and not ten beats.
            self._next_step = max(self._next_step + STEP_S, now + STEP_S / 2)
            self.history.take(self._counted(), at=datetime.now(UTC))
