"""Traffic in the background: attempts made over and over by a few clients, and counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from isthmus.lab import attempts
from isthmus.lab.outcome import Outcome, TrafficCount
from isthmus.lab.topology import Attempt

#: Ways to fail that are told apart; all others are one.
MOST_KINDS = 20
OTHER = "other"
_MOST_CLIENTS = 1000


class Background:
    """Some clients at work, from when it is made until ``end``."""

    def __init__(
        self, asked: Sequence[tuple[Attempt, attempts.Means]], *, clients: int, pause_s: float
    ) -> None:
        if not 0 < clients * len(asked) <= _MOST_CLIENTS:
            raise ValueError(f"not 1 to {_MOST_CLIENTS} clients: {clients * len(asked)}")
        self._pause_s = max(pause_s, 0.0)
        self._ending = asyncio.Event()
        self._worked = 0
        self._failed: Counter[str] = Counter()
        self._slowest_s = 0.0
        self.tasks = [
            asyncio.create_task(self._client(attempt, means), name=f"traffic:{attempt.target}")
            for attempt, means in asked
            for _ in range(clients)
        ]

    async def _client(self, attempt: Attempt, means: attempts.Means) -> None:
        while not self._ending.is_set():
            self.count(await attempts.make(attempt, means))
            try:
                async with asyncio.timeout(self._pause_s):
                    await self._ending.wait()
            except TimeoutError:
                continue

    def count(self, outcome: Outcome) -> None:
        """Count what came of an attempt."""
        self._slowest_s = max(self._slowest_s, outcome.took_s)
        if outcome.failing is None:
            self._worked += 1
            return
        said = f"{outcome.failing.value}: {outcome.said}"
        if said not in self._failed and len(self._failed) >= MOST_KINDS:
            said = OTHER
        self._failed[said] += 1

    async def end(self) -> TrafficCount:
        """Let what is under way finish, and say what became of it all."""
        # Not cut short: what hangs at this moment would be neither worked nor failed.
        self._ending.set()
        await asyncio.gather(*self.tasks)
        return TrafficCount(
            worked=self._worked, failed=dict(self._failed), slowest_s=self._slowest_s
        )
