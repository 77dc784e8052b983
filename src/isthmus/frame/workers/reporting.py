"""What a worker tells its parent: reports by itself, and answers to what the parent is asked."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from aiohttp import web

from isthmus.frame.admin.answers import Check
from isthmus.frame.admin.debug_routes import PREFIX, debug_routes
from isthmus.frame.admin.watched import Watched
from isthmus.frame.handed import Handed
from isthmus.frame.lifetime import WorkerProgram
from isthmus.frame.workers.channel import Channel
from isthmus.frame.workers.messages import Answer, Ask, Report, ToParent, ToWorker
from isthmus.frame.workers.passing import Taker
from isthmus.logs import RECENT, log
from isthmus.values import TunnelId

REPORT_S = 1.0
#: So soon it says that it is ready: clients are not sent to a worker without agents.
SOON_S = 0.1
#: How often what is kept of a worker that dies is brought up to date.
KEEP_S = 5.0
#: Log lines in one report; more are in the log alone.
MOST_LINES = 200
_log = logging.getLogger("isthmus.workers")


class Reporter:
    """Speaks to the parent for a program."""

    def __init__(
        self,
        program: WorkerProgram,
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
        """Report for ever: once a second, and at once when readiness changes."""
        due = 0.0
        while True:
            ready = not _failures(self._watched.ready())
            if ready != self._was_ready or time.monotonic() >= due:
                self._was_ready = ready
                self.report()
                due = time.monotonic() + REPORT_S
            await asyncio.sleep(SOON_S)

    def report(self, *, last: bool = False) -> None:
        """Say how it is doing; what is to be kept as well now and then, and at the end."""
        watched, program = self._watched, self._program
        now = time.monotonic()
        keep = last or now - self._kept_at >= KEEP_S
        if keep:
            self._kept_at = now
        self._channel.send(
            Report(
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

    def ask(self, asked: Ask) -> None:
        """Answer a question, now or when it is done."""
        task = asyncio.get_running_loop().create_task(self._answer(asked), name=f"ask:{asked.what}")
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def _answer(self, asked: Ask) -> None:
        try:
            answer = await self._answered(asked)
        except Exception as exc:
            log(_log, logging.ERROR, "cannot answer", what=asked.what, exc_info=exc)
            answer = Answer(number=asked.number, status=500)
        if not self._channel.send(answer):
            self._channel.send(Answer(number=asked.number, status=507))

    async def _answered(self, asked: Ask) -> Answer:
        watched, given = self._watched, asked.given
        match asked.what:
            case "metrics":
                return Answer(number=asked.number, body=_now(watched.metrics()))
            case "open_metrics":
                return Answer(number=asked.number, body=_now(watched.open_metrics()))
            case "snapshot":
                view = _now(watched.snapshot(int(given["limit"])))
                return Answer(number=asked.number, body=msgspec.msgpack.encode(view))
            case "end":
                return self._end(asked)
            case "profile":
                return await self._profile(asked)
            case _:
                return Answer(number=asked.number, status=404)

    def _end(self, asked: Ask) -> Answer:
        end = self._watched.end_tunnel
        if end is None:
            return Answer(number=asked.number, status=404)
        found = _now(end(TunnelId(int(asked.given["tunnel"])), asked.given["operator"]))
        if found is None:
            return Answer(number=asked.number, status=404)
        return Answer(number=asked.number, body=found.encode())

    async def _profile(self, asked: Ask) -> Answer:
        settings: Any = self._watched.settings
        routes = debug_routes(settings.admin.enable_profiling)
        handler = routes.get(f"{PREFIX}{asked.given['path']}")
        if handler is None:
            return Answer(number=asked.number, status=404, body=b"404 page not found\n")
        # Of a request the handlers of profiles read the query alone.
        request = cast(web.BaseRequest, SimpleNamespace(query=_query(asked.given)))
        made = await handler(request)
        assert isinstance(made, web.Response)
        body = made.body if isinstance(made.body, bytes) else b""
        return Answer(
            number=asked.number, status=made.status, body=body, headers=dict(made.headers)
        )


def _query(given: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in given.items() if key != "path"}


def _now(value: Any) -> Any:
    """What a program of a worker gives, it gives at once."""
    assert not inspect.isawaitable(value)
    return value


def _checks(checks: list[Check]) -> list[tuple[str, str]]:
    return [(check.name, check.failure) for check in checks]


def _failures(checks: list[Check]) -> list[str]:
    return [check.failure for check in checks if check.failure]
