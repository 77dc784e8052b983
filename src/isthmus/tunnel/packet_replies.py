"""Replies that may still come behind a half-close that the other program cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isthmus.tunnel.linked_end import LinkedEnd

#: How long a reply may pause after its client half-closed. Konnectivity cannot say half-close, and
#: its close loses the reply.
REPLY_PAUSE_S = 10.0


class Replies:
    """The connections of one call whose clients have half-closed."""

    __slots__ = ("_clock", "_seen")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        #: How much of the reply had come when it was last seen to move, and when that was.
        self._seen: dict[LinkedEnd, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, end: LinkedEnd) -> bool:
        return end in self._seen

    def await_(self, end: LinkedEnd) -> None:
        """Wait for the reply of this one."""
        self._seen[end] = (-1, self._clock())

    def forget(self, end: LinkedEnd) -> None:
        """Wait no longer."""
        self._seen.pop(end, None)

    def paused(self) -> list[LinkedEnd]:
        """Look at all of them: those that have paused for too long."""
        now = self._clock()
        late = []
        for end, (seen, since) in self._seen.items():
            moved = end.peer.bytes_written
            if moved != seen:
                self._seen[end] = (moved, now)
            elif now - since > REPLY_PAUSE_S:
                late.append(end)
        return late
