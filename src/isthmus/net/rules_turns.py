"""Turns at a scarce resource, fair by source: a bounded number at once, sources in rotation.

Pure: who holds a turn does the work, and says when it is over. A *source* is whoever cannot be told
apart any further without proof (rules_places.py).
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Turns(Generic[Job]):
    """Jobs that wait, by source, oldest first; sources take turns.

    At most ``most`` jobs hold a turn at once, and at most ``most_of_one`` of one source, so that a
    source that keeps its turns for long leaves some to the others. At most ``waiting_of_one`` of a
    source wait, and ``waiting`` of all.
    """

    __slots__ = ("_held", "_holding", "_lengths", "_waiting", "most", "most_of_one", "waiting",
                 "waiting_of_one")  # fmt: skip

    def __init__(self, *, most: int, most_of_one: int, waiting: int, waiting_of_one: int) -> None:
        self.most = most
        self.most_of_one = most_of_one
        self.waiting = waiting
        self.waiting_of_one = waiting_of_one
        self._waiting: dict[str, dict[Job, None]] = {}  # whose turn is next comes first
        self._lengths = 0
        self._held: Counter[str] = Counter()
        self._holding = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._lengths

    @property
    def holding(self) -> int:
        """How many hold a turn."""
        return self._holding

    def come(self, source: str, job: Job) -> Job | None:
        """A job waits for a turn; gives the one that has to go for it, perhaps itself.

        When all places are taken, the source that has most of them gives one up: its newest.
        """
        mine = self._waiting.get(source, {})
        if len(mine) >= self.waiting_of_one:
            return job
        gone = None
        if self._lengths >= self.waiting:
            greediest = max(self._waiting, key=lambda it: len(self._waiting[it]))
            if len(self._waiting[greediest]) <= len(mine) + 1:
                return job
            gone = next(reversed(self._waiting[greediest]))
            self.leave(greediest, gone)
        self._waiting.setdefault(source, {})[job] = None
        self._lengths += 1
        return gone

    def leave(self, source: str, job: Job) -> None:
        """Remove a waiting job; do nothing if it does not wait."""
        jobs = self._waiting.get(source, {})
        if job not in jobs:
            return
        del jobs[job]
        self._lengths -= 1
        if not jobs:
            del self._waiting[source]

    def begin(self) -> Job | None:
        """Give a turn to the next job; None: there is none, or no turn."""
        if self._holding >= self.most:
            return None
        # Those that are passed over hold turns, so they are few, however many sources wait.
        source = next((it for it in self._waiting if self._held[it] < self.most_of_one), None)
        if source is None:
            return None
        jobs = self._waiting.pop(source)
        job = next(iter(jobs))
        del jobs[job]
        self._lengths -= 1
        if jobs:
            self._waiting[source] = jobs  # behind all others
        self._held[source] += 1
        self._holding += 1
        return job

    def over(self, source: str) -> None:
        """A turn of this source is over."""
        self._holding -= 1
        self._held[source] -= 1
        if not self._held[source]:
            del self._held[source]
