"""Runs one thing again and again, neither too often nor too seldom, as kube-proxy's runner does.

``Frequency`` decides, with time as an argument; ``Runner`` is the small loop around it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

#: However quiet it is, rules are looked at this often.
MAX_INTERVAL_S = 3600.0


class Frequency:
    """Says when to run next.

    At least ``min_s`` lie between the end of a run and the beginning of the next; a failed run is
    tried again after ``retry_s``; and nothing ever waits longer than ``max_s``.
    """

    def __init__(
        self, *, min_s: float, retry_s: float, max_s: float = MAX_INTERVAL_S, now: float
    ) -> None:
        """Nothing has run yet: the first request may run at once.

        Raises:
            ValueError: the longest wait is shorter than the shortest.
        """
        if max_s < min_s:
            raise ValueError(f"the longest interval, {max_s:g} s, is shorter than {min_s:g} s")
        self._min_s = min_s
        self._retry_s = retry_s
        self._max_s = max_s
        self._requested = False
        self._earliest = now
        self._latest = now + max_s

    def __repr__(self) -> str:
        asked = "requested, " if self._requested else ""
        return f"<Frequency {asked}due at {self.due_at():g}>"

    def request(self) -> None:
        """Something changed: run as soon as may be."""
        self._requested = True

    def due_at(self) -> float:
        """When to run, as far as is known now."""
        return self._earliest if self._requested else max(self._earliest, self._latest)

    def began(self) -> None:
        """A run begins: what is requested from now on is for the next."""
        self._requested = False

    def ended(self, *, now: float, worked: bool) -> None:
        """A run is over."""
        self._earliest = now + self._min_s
        self._latest = now + (self._max_s if worked else min(self._retry_s, self._max_s))


class Runner:
    """Runs ``work`` by a Frequency while ``run`` runs; ``work`` says whether it worked."""

    def __init__(
        self, work: Callable[[], Awaitable[bool]], *, min_s: float, retry_s: float
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._frequency = Frequency(min_s=min_s, retry_s=retry_s, now=self._loop.time())
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Runner {self._frequency!r}>"

    def request(self) -> None:
        """Run as soon as may be; many requests before that are one."""
        self._frequency.request()
        self._changed.set()

    async def run(self) -> None:
        """Run for ever."""
        while True:
            await self._wait_due()
            self._frequency.began()
            worked = await self._work()
            self._frequency.ended(now=self._loop.time(), worked=worked)

    async def _wait_due(self) -> None:
        while True:
            self._changed.clear()
            due = self._frequency.due_at()
            if due <= self._loop.time():
                return
            try:
                async with asyncio.timeout_at(due):
                    await self._changed.wait()
            except TimeoutError:
                return
