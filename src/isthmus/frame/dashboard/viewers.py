"""Who looks at a page, and what each still has to be sent: bounded, one slow reader hurts no other.

Every event is one bytes object that all viewers share; a viewer keeps references until its
connection has taken them. Making the events is feed.py's and merging.py's part, sending them
stream.py's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

MOST_VIEWERS = 32
#: What a viewer may be behind, apart from the event it is reading: some seconds of a busy program.
MOST_BEHIND_BYTES = 8 * 1024 * 1024


class Viewer:
    """One reader of the stream. ``settled``: it has had a full, and deltas make sense to it."""

    __slots__ = ("_behind", "_events", "_news", "over", "settled", "writing")

    def __init__(self) -> None:
        self._events: deque[bytes] = deque()
        self._behind = 0
        self._news = asyncio.Event()
        self.settled = False
        self.over = False
        #: Its connection, while that takes no more.
        self.writing: asyncio.WriteTransport | None = None

    def push(self, event: bytes) -> None:
        """Have it sent; a viewer that is too far behind is cut instead."""
        if self.over:
            return
        if self._events and self._behind + len(event) > MOST_BEHIND_BYTES:
            self.end()
            return
        self._events.append(event)
        self._behind += len(event)
        self._news.set()

    def end(self) -> None:
        """Send it nothing more; a connection that takes nothing is not waited for, but cut."""
        self.over = True
        if self.writing is not None:
            self.writing.abort()
        self._events.clear()
        self._news.set()

    async def wait(self) -> bytes | None:
        """Wait for the next event; None when it is over."""
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
        """One more; None when there are as many as there may be, or it is closing time."""
        if self._closed or len(self._all) >= MOST_VIEWERS:
            return None
        viewer = Viewer()
        self._all[viewer] = None
        return viewer

    def remove(self, viewer: Viewer) -> None:
        """This one has left."""
        self._all.pop(viewer, None)

    def tell(self, event: bytes) -> None:
        """Send it to all that have had a full."""
        for viewer in self:
            if viewer.settled:
                viewer.push(event)

    def end(self) -> None:
        """End every stream; readers may come again."""
        for viewer in self:
            viewer.end()

    def close(self) -> None:
        """End every stream, and let nobody in any more."""
        self._closed = True
        self.end()
