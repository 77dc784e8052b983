"""Background traffic: open tunnels that send requests repeatedly, and new dials."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

from processes import BenchError

from hold.clients import ask, once, opened
from isthmus.client.dialer import Dialer
from isthmus.client.stream import Connection
from isthmus.errors import DialError

#: The errors of a tunnel or a dial, other than bugs here.
FAULTS = (DialError, OSError, EOFError, TimeoutError, BenchError)
#: A request without an answer for this long is stuck.
STUCK_S = 10.0


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile of the values; 0 if there are none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class Sample:
    """The results of a period: seconds that answers and dials took, and stuck requests."""

    answers: list[float] = field(default_factory=list)
    dials: list[float] = field(default_factory=list)
    #: Tunnels and dials whose requests of that period were not answered long after it.
    stuck: int = 0

    def millis(self, kind: str, share: float) -> float:
        """A percentile of ``answers`` or ``dials`` in milliseconds."""
        return percentile(getattr(self, kind), share) * 1000


class Steady:
    """Open tunnels to echoes with a request every ``pause_s``, and a dial every ``dial_pause_s``.

    A failed tunnel sends no more requests; ``lost`` lists all failures. Answers count in ``sample``
    when they arrive; ``measure`` replaces it for a period.
    """

    def __init__(
        self, dialers: Sequence[Dialer], address: str, *, pause_s: float, dial_pause_s: float = 0
    ) -> None:
        self._dialers = dialers
        self._address = address
        self._pause_s = pause_s
        self._dial_pause_s = dial_pause_s
        self._tunnels: list[Connection] = []
        self._tasks: list[asyncio.Task[None]] = []
        #: The start times of requests without an answer, in order.
        self._waiting: dict[object, float] = {}
        self.sample = Sample()
        self.lost: list[str] = []
        #: The duration of the slowest answer so far; ``measure`` resets it.
        self.longest_s = 0.0

    async def open(self, tunnels: int) -> Self:
        """Open the tunnels, with the dialers in turn, and start requests."""
        for number in range(tunnels):
            dialer = self._dialers[number % len(self._dialers)]
            self._tunnels.append(await opened(dialer, self._address, "echo"))
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._ask_on(tunnel, number / tunnels))
            for number, tunnel in enumerate(self._tunnels)
        ]
        if self._dial_pause_s:
            self._tasks += [loop.create_task(self._dial_on(each)) for each in self._dialers]
        return self

    async def close(self) -> None:
        """Stop requests, and close the remaining tunnels."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        for tunnel in self._tunnels:
            tunnel.abort()

    async def measure(self, seconds: float) -> Sample:
        """Measure from now for a period, and until its requests have their answers.

        A request without an answer for over STUCK_S is stuck, and counts with its waiting time.
        """
        self.sample = sample = Sample()
        await asyncio.sleep(seconds)
        left = await self.answered()
        sample.stuck = len(left)
        sample.answers += left
        self.sample = Sample()
        return sample

    async def answered(self) -> list[float]:
        """Wait for the requests made so far; returns the waiting times of unanswered ones."""
        asked_by = time.monotonic()
        while self._waits(asked_by) and time.monotonic() < asked_by + STUCK_S:
            await asyncio.sleep(0.01)
        now = time.monotonic()
        left = [now - since for since in self._waits(asked_by)]
        self.longest_s = max([self.longest_s, *left])
        return left

    def _waits(self, asked_by: float) -> list[float]:
        return [since for since in self._waiting.values() if since < asked_by]

    async def _ask_on(self, tunnel: Connection, phase: float) -> None:
        await asyncio.sleep(phase * self._pause_s)  # spread the requests
        while True:
            began = time.monotonic()
            with self._waits_as(tunnel):
                try:
                    took = await ask(tunnel)
                except FAULTS as exc:
                    self.lost.append(f"tunnel: {exc!r}")
                    return
            self.sample.answers.append(took)
            self.longest_s = max(self.longest_s, took)
            await asyncio.sleep(max(0.0, self._pause_s - (time.monotonic() - began)))

    async def _dial_on(self, dialer: Dialer) -> None:
        while True:
            began = time.monotonic()
            with self._waits_as(dialer):
                try:
                    took = await once(dialer, self._address)
                    self.sample.dials.append(took)
                    self.longest_s = max(self.longest_s, took)
                except FAULTS as exc:
                    self.lost.append(f"dial: {exc!r}")
            await asyncio.sleep(max(0.01, self._dial_pause_s - (time.monotonic() - began)))

    @contextmanager
    def _waits_as(self, who: object) -> Iterator[None]:
        self._waiting[who] = time.monotonic()
        try:
            yield
        finally:
            del self._waiting[who]


async def pour(connection: Connection, most_bytes: int | None = None) -> bool:
    """Send to a target that may not read; True once the connection was ended for it."""
    block, sent = bytes(65536), 0
    with suppress(OSError):
        while most_bytes is None or sent < most_bytes:
            connection.write(block)
            sent += len(block)
            await connection.drain()
            await asyncio.sleep(0)
        return False
    return True
