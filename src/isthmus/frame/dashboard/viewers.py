"""The viewers of a page and their unsent events: bounded; a slow viewer affects no other.

Every event is one bytes object shared by all viewers; a viewer holds references until its
connection has sent them. feed.py and merging.py make the events, routes.py sends them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

MOST_VIEWERS = 32
#: How far a viewer may be behind, without the event being sent: some seconds of a busy program.
MOST_BEHIND_BYTES = 8 * 1024 * 1024


class Viewer:
    """One reader of the stream. ``settled``: it has a full, and can use deltas."""

    __slots__ = ("_behind", "_events", "_news", "over", "settled", "writing")

    def __init__(self) -> None:
        self._events: deque[bytes] = deque()
        self._behind = 0
        self._news = asyncio.Event()
        self.settled = False
        self.over = False
        #: Its connection, while that is blocked.
        self.writing: asyncio.WriteTransport | None = None

    def push(self, event: bytes) -> None:
        """Queue an event; a viewer that is too far behind is disconnected instead."""
        if self.over:
            return
        if self._events and self._behind + len(event) > MOST_BEHIND_BYTES:
            self.end()
            return
        self._events.append(event)
        self._behind += len(event)
        self._news.set()

    def end(self) -> None:
        """Send nothing more; a blocked connection is aborted."""
        self.over = True
        if self.writing is not None:
            self.writing.abort()
        self._events.clear()
        self._news.set()

    async def wait(self) -> bytes | None:
        """Wait for the next event; None at the end."""
        await self._news.wait()
        if self.over:
            return None
        event = self._events.popleft()
        self._behind -= len(event)
        if not self._events:
            self._news.clear()
        return event


class Viewers:
    """All readers of one feed."""

    def __init__(self) -> None:
        self._all: dict[Viewer, None] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Viewer]:
        return iter(list(self._all))

    def add(self) -> Viewer | None:
        """Add a viewer; None if there are too many, or after ``close``."""
        if self._closed or len(self._all) >= MOST_VIEWERS:
            return None
        viewer = Viewer()
        self._all[viewer] = None
        return viewer

    def remove(self, viewer: Viewer) -> None:
        """Remove a viewer."""
        self._all.pop(viewer, None)

    def tell(self, event: bytes) -> None:
        """Send an event to all viewers that have a full."""
        for viewer in self:
            if viewer.settled:
                viewer.push(event)

    def end(self) -> None:
        """End every stream; viewers may reconnect."""
        for viewer in self:
            viewer.end()

    def close(self) -> None:
        """End every stream, and accept no more viewers."""
        self._closed = True
        self.end()
