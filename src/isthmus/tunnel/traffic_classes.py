"""Classes of traffic: whose turn it is when many streams wait for one link.

Each class has a queue, in which streams take turns as ever. The queues are served by deficit round
robin, the most urgent first: in a round each class may send its quantum, and none has a second
one before every class that waits had its first. So a class that comes late in a round need not wait
for the others, and none waits for ever. Who is in which class is dial/rules_policy.py.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from isthmus.values import TrafficClass

#: What a stream sends at most before another one that waits.
TURN_BYTES = 64 * 1024


#: What a class may send in a round.
QUANTA = tuple(it.weight * TURN_BYTES for it in TrafficClass)


class Waiter(Protocol):
    """Something that waits for a turn."""

    traffic: TrafficClass


W = TypeVar("W", bound=Waiter)


class ClassTurns(Generic[W]):
    """Everybody who waits, by class."""

    __slots__ = ("_left", "_queues", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        # A queue takes 700 bytes, and most links have one class at most.
        self._queues: list[deque[W] | None] = [None] * len(QUANTA)
        self._left = list(QUANTA)

    def __len__(self) -> int:
        return self.waiting

    def __repr__(self) -> str:
        sizes = (f"{it.value} {len(self._queues[it.rank] or ())}" for it in TrafficClass)
        return f"<ClassTurns {', '.join(sizes)}>"

    def add(self, who: W) -> None:
        """Let it wait, behind all others of its class."""
        rank = who.traffic.rank
        queue = self._queues[rank]
        if queue is None:
            queue = self._queues[rank] = deque()
        queue.append(who)
        self.waiting += 1

    def take(self) -> W:
        """Say whose turn it is; somebody has to be waiting. Say afterwards what it ``sent``.

        Raises:
            IndexError: nobody waits.
        """
        if not self.waiting:
            raise IndexError("nobody waits for a turn")
        self.waiting -= 1
        while True:
            for queue, left in zip(self._queues, self._left, strict=True):
                if queue and left > 0:
                    return queue.popleft()
            # A new round. A turn may have been longer than what was left, never by a whole quantum;
            # what a class did not use, because it had nothing to send, it does not keep.
            self._left = [
                min(left, 0) + quantum for left, quantum in zip(self._left, QUANTA, strict=True)
            ]

    def sent(self, traffic: TrafficClass, size: int) -> None:
        """Count what a turn was used for, TURN_BYTES at most."""
        self._left[traffic.rank] -= size

    def clear(self) -> None:
        """Nobody waits any more."""
        self.waiting = 0
        self._queues = [None] * len(QUANTA)
