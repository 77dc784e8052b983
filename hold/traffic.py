"""Traffic that goes on beside what is broken: open tunnels that ask on and on, and new dials."""

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

#: What can go wrong with a tunnel or a dial, besides a bug here.
FAULTS = (DialError, OSError, EOFError, TimeoutError, BenchError)
#: Who asked and got no answer for so long is stuck.
STUCK_S = 10.0


def percentile(values: Sequence[float], share: float) -> float:
    """The value that a share of all are below; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


@dataclass(slots=True)
class Sample:
    """What went on for a while: seconds that answers and dials took, and who got no answer."""

    answers: list[float] = field(default_factory=list)
    dials: list[float] = field(default_factory=list)
    #: Tunnels and dials that asked in that time and were not answered long after it.
    stuck: int = 0

    def millis(self, kind: str, share: float) -> float:
        """A percentile of ``answers`` or ``dials`` in milliseconds."""
        return percentile(getattr(self, kind), share) * 1000


class Steady:
    """Open tunnels to echoes, each asking every ``pause_s``, and a new dial every ``dial_pause_s``.

    A tunnel that failed does not ask any more; ``lost`` says what failed, whenever it was.
    ``sample`` is what answers are counted in when they come; ``measure`` puts a fresh one in its
    place for a while.
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
        #: Since when somebody waits for an answer, in the order in which they asked.
        self._waiting: dict[object, float] = {}
        self.sample = Sample()
        self.lost: list[str] = []
        #: How long the slowest answer took that was given by now; who measures sets it back.
        self.longest_s = 0.0

    async def open(self, tunnels: int) -> Self:
        """Open the tunnels, through the dialers in turn, and let them ask."""
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
        """Stop asking, and close the tunnels that are left."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        for tunnel in self._tunnels:
            tunnel.abort()

    async def measure(self, seconds: float) -> Sample:
        """What goes on from now for so long, and until all who asked by then have their answers.

        Who waits for longer than STUCK_S is stuck, and counts with the time it has waited.
        """
        self.sample = sample = Sample()
        await asyncio.sleep(seconds)
        left = await self.answered()
        sample.stuck = len(left)
        sample.answers += left
        self.sample = Sample()
        return sample

    async def answered(self) -> list[float]:
        """Wait for what has been asked by now; how long those wait who got nothing in time."""
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
        await asyncio.sleep(phase * self._pause_s)  # not all at the same moment
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
    """Send to a target that may not read, without end or so much; True once it was ended for it."""
    block, sent = bytes(65536), 0
    with suppress(OSError):
        while most_bytes is None or sent < most_bytes:
            connection.write(block)
            sent += len(block)
            await connection.drain()
            await asyncio.sleep(0)
        return False
    return True
