"""Traffic classes: the order of turns when many streams wait for one link.

Each class has a queue, in which streams take turns. The queues are served by deficit round
robin, the most urgent first: in a round each class may send its quantum, and none sends a second
one before every waiting class had its first. A class that joins late in a round need not wait
for the others, and none waits for ever. dial/rules_policy.py assigns the classes.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from isthmus.values import TrafficClass

#: The most that a stream sends before another waiting stream.
TURN_BYTES = 64 * 1024


#: The bytes that a class may send in a round.
QUANTA = tuple(it.weight * TURN_BYTES for it in TrafficClass)


class Waiter(Protocol):
    """A stream or connection that waits for a turn."""

    traffic: TrafficClass


W = TypeVar("W", bound=Waiter)


class ClassTurns(Generic[W]):
    """The waiting streams, by class."""

    __slots__ = ("_left", "_queues", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        # A queue takes 700 bytes, and most links use one class at most.
        self._queues: list[deque[W] | None] = [None] * len(QUANTA)
        self._left = list(QUANTA)

    def __len__(self) -> int:
        return self.waiting

    def __repr__(self) -> str:
        sizes = (f"{it.value} {len(self._queues[it.rank] or ())}" for it in TrafficClass)
        return f"<ClassTurns {', '.join(sizes)}>"

    def add(self, who: W) -> None:
        """Add a waiter, behind all others of its class."""
        rank = who.traffic.rank
        queue = self._queues[rank]
        if queue is None:
            queue = self._queues[rank] = deque()
        queue.append(who)
        self.waiting += 1

    def take(self) -> W:
        """Remove and return the next waiter; call ``sent`` afterwards.

        Raises:
            IndexError: no waiter.
        """
        if not self.waiting:
            raise IndexError("no stream waits for a turn")
        self.waiting -= 1
        while True:
            for queue, left in zip(self._queues, self._left, strict=True):
                if queue and left > 0:
                    return queue.popleft()
            # A new round. A turn may have been longer than the rest, never by a whole quantum;
            # a class does not keep what it did not use for lack of data.
            self._left = [
                min(left, 0) + quantum for left, quantum in zip(self._left, QUANTA, strict=True)
            ]

    def sent(self, traffic: TrafficClass, size: int) -> None:
        """Count the bytes of a turn, TURN_BYTES at most."""
        self._left[traffic.rank] -= size

    def clear(self) -> None:
        """Remove all waiters."""
        self.waiting = 0
        self._queues = [None] * len(QUANTA)
