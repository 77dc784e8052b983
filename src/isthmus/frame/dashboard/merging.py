"""Several programs as one page: their feeds, each under an id of its own.

They are followed while somebody looks. Newcomers get a full of every source that is there; what
each source is now is kept in its Picture. Here no tunnels wait, so nothing is done in steps.
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

#: So long a page waits for all of its sources to be reached or lost; then it begins without.
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
        """One more viewer; the first has the sources followed."""
        viewer = self._viewers.add()
        if viewer is None:
            return None
        if not self._following:
            self._start()
        self._introduce()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """A viewer has gone; with the last one the sources rest."""
        self._viewers.remove(viewer)
        if not len(self._viewers):
            self._stop()

    def close(self) -> None:
        """End every stream, and let nobody in any more."""
        self._viewers.close()

    async def end(self, request: web.BaseRequest, source_id: str, tunnel: TunnelId) -> web.Response:
        """Pass it on to the source, with our credentials."""
        source = self._sources.get(source_id)
        if source is None:
            return say(404, "there is no such source here")
        status, body = await source.end(tunnel)
        kind = "application/json" if status == 200 else "text/plain; charset=utf-8"
        return web.Response(
            status=status, body=body, headers={**PAGE_HEADERS, "Content-Type": kind}
        )

    # For sources.

    def full(self, source: FeedSource, *, renamed: bool) -> None:
        """A source has a new picture; one that is another program is introduced to all again."""
        if renamed:
            for viewer in self._viewers:
                viewer.settled = False
        else:
            self._viewers.tell(_picture(source))
        self._introduce()

    def delta(self, source: FeedSource, data: Json) -> None:
        """A picture has changed."""
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
        # A mistake of ours; pages come again by themselves, and everything begins anew.
        asyncio.get_running_loop().call_exception_handler(
            {"message": "a source is not followed any more", "exception": task.exception()}
        )
        self._stop()
        self._viewers.end()

    def _waited(self) -> None:
        self._waiting = None
        self._introduce()

    def _introduce(self) -> None:
        """Give everything to those who have nothing, once it is known who there is."""
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
        # As one: what a newcomer has to get first does not count as being behind.
        everything = b"".join(events)
        for viewer in new:
            viewer.settled = True
            viewer.push(everything)


def _picture(source: FeedSource) -> bytes:
    assert source.picture is not None
    return at_once(event("full", source.picture.full()))


def _lost(source: FeedSource) -> bytes:
    return at_once(event("lost", {"source": source.id, "why": source.why}))
