"""Several programs on one page: their feeds, each with its own id.

They are followed while there are viewers. New viewers get a full of every source that is
reachable; its Picture holds its current state. No tunnels run in this process, so nothing is done
in steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import web

from isthmus.frame.dashboard.delta import Json, at_once, event
from isthmus.frame.dashboard.feed import hello
from isthmus.frame.dashboard.routes import PAGE_HEADERS, say
from isthmus.frame.dashboard.source import FeedSource, Remote
from isthmus.frame.dashboard.viewers import Viewer, Viewers
from isthmus.values import TunnelId

#: How long a page waits until all its sources are reached or lost; then it begins without the rest.
INTRODUCE_S = 2.0


class MergedFeed:
    """The feed of several programs. The order of the sources is that of the page."""

    def __init__(self, remotes: Sequence[Remote]) -> None:
        self._sources = {
            str(number): FeedSource(str(number), remote, self)
            for number, remote in enumerate(remotes)
        }
        self._viewers = Viewers()
        self._following: list[asyncio.Task[None]] = []
        self._waiting: asyncio.TimerHandle | None = None

    # For viewers.

    def enter(self) -> Viewer | None:
        """Add a viewer; the first starts to follow the sources."""
        viewer = self._viewers.add()
        if viewer is None:
            return None
        if not self._following:
            self._start()
        self._introduce()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer; the last one stops following the sources."""
        self._viewers.remove(viewer)
        if not len(self._viewers):
            self._stop()

    def close(self) -> None:
        """End every stream, and accept no more viewers."""
        self._viewers.close()

    async def end(self, request: web.BaseRequest, source_id: str, tunnel: TunnelId) -> web.Response:
        """Pass the request on to the source, with this command's credentials."""
        source = self._sources.get(source_id)
        if source is None:
            return say(404, "unknown source")
        status, body = await source.end(tunnel)
        kind = "application/json" if status == 200 else "text/plain; charset=utf-8"
        return web.Response(
            status=status, body=body, headers={**PAGE_HEADERS, "Content-Type": kind}
        )

    # For sources.

    def full(self, source: FeedSource, *, renamed: bool) -> None:
        """A source has a new picture; if it is another program, all viewers get a new hello."""
        if renamed:
            for viewer in self._viewers:
                viewer.settled = False
        else:
            self._viewers.tell(_picture(source))
        self._introduce()

    def delta(self, source: FeedSource, data: Json) -> None:
        """A picture changed."""
        self._viewers.tell(at_once(event("delta", data)))

    def lost(self, source: FeedSource) -> None:
        """A source cannot be reached."""
        self._viewers.tell(_lost(source))
        self._introduce()

    # Beginning and ending.

    def _start(self) -> None:
        for source in self._sources.values():
            source.picture, source.why = None, ""
            task = asyncio.create_task(source.follow(), name=f"source:{source.remote.address}")
            task.add_done_callback(self._ended)
            self._following.append(task)
        loop = asyncio.get_running_loop()
        self._waiting = loop.call_later(INTRODUCE_S, self._waited)

    def _stop(self) -> None:
        for task in self._following:
            task.cancel()
        self._following.clear()
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        # A bug; pages reconnect by themselves, which starts everything again.
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a source is no longer followed", "exception": task.exception()}
        )
        self._stop()
        self._viewers.end()

    def _waited(self) -> None:
        self._waiting = None
        self._introduce()

    def _introduce(self) -> None:
        """Send everything to new viewers, once the sources are known."""
        sources = self._sources.values()
        if self._waiting is not None:
            if not all(source.picture is not None or source.why for source in sources):
                return
            self._waiting.cancel()
            self._waiting = None
        new = [viewer for viewer in self._viewers if not viewer.settled]
        if not new:
            return
        events = [hello([source.named() for source in sources])]
        events += [_picture(source) for source in sources if source.picture is not None]
        events += [_lost(source) for source in sources if source.why]
        # As one event: the first data of a new viewer does not count as being behind.
        everything = b"".join(events)
        for viewer in new:
            viewer.settled = True
            viewer.push(everything)


def _picture(source: FeedSource) -> bytes:
    assert source.picture is not None
    return at_once(event("full", source.picture.full()))


def _lost(source: FeedSource) -> bytes:
    return at_once(event("lost", {"source": source.id, "why": source.why}))
