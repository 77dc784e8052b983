"""How many agents shake hands at the same time, when all of them come at once.

After a restart every agent of a cluster comes within a second or two, and each has ten seconds.
Where the CPU serves them all in turn, thousands get half a handshake each and none is done in time;
they come again, and it begins anew. So only some are served at once, and the others wait unread.
The newest go first: they have the most time left, and the oldest may have given up already.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

#: Enough for agents that are far away: with a round trip of 300 ms these are some 200 a second.
MOST_AT_ONCE = 128
#: Who takes longer does not keep others out: it waits for its network, or for nothing.
PLACE_S = 1.0
_LOOK_S = 0.1


class HeldCarrier(Protocol):
    """The connection of a link."""

    peer_shut: bool

    def pause_reading(self) -> None:
        """Leave what arrives in the kernel."""

    def resume_reading(self) -> None:
        """Read it."""


class Shaking(Protocol):
    """A link that shakes hands."""

    closed_because: str

    @property
    def carrier(self) -> HeldCarrier:
        """Its connection."""

    def lost(self, why: str) -> None:
        """It is over."""


class Handshakes:
    """Lets some links at a time read, until each is ready or gone; who waits is not read."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int = MOST_AT_ONCE) -> None:
        self._loop = loop
        self._most = most
        self._served: dict[Shaking, float] = {}  # since when, the oldest first
        self._waiting: dict[Shaking, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._served) + len(self._waiting)

    def came(self, link: Shaking) -> None:
        """A connection was accepted, and nothing was read from it yet."""
        if len(self._served) < self._most:
            self._served[link] = self._loop.time()
            return
        link.carrier.pause_reading()
        self._waiting[link] = None
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    def over(self, link: Shaking) -> None:
        """It is ready, or gone, or was none of ours; the next may begin."""
        if self._served.pop(link, None) is not None:
            self._serve_next()
        else:
            self._waiting.pop(link, None)

    def close(self) -> None:
        """Nobody else is served."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _serve_next(self) -> None:
        while self._waiting and len(self._served) < self._most:
            link, _ = self._waiting.popitem()
            if link.carrier.peer_shut:
                link.lost("left before its turn")  # a handshake would be work for nothing
            elif not link.closed_because:
                self._served[link] = self._loop.time()
                link.carrier.resume_reading()

    def _look(self) -> None:
        """Take the places of those that have had theirs for long."""
        since = self._loop.time() - PLACE_S
        for link in [it for it, began in self._served.items() if began < since]:
            del self._served[link]
        self._serve_next()
        self._timer = self._loop.call_later(_LOOK_S, self._look) if self._waiting else None
