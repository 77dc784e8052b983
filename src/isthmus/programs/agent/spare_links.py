"""An agent's links that are not in use: it has a link to the same server besides, or they close.

A spare one takes no new dials, and is closed when its server knows that and has asked elsewhere. So
is one that was in use until another took its place, when the last of its tunnels has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from isthmus.links.agent_side import ServerLink

_MOST = 16
#: Tunnels may stay open for days, and each link that was replaced with them.
_MOST_REPLACED = 16
_LOOK_S = 0.05


class SpareLinks:
    """Closes each as soon as nothing is open on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._links: set[ServerLink] = set()
        self._replaced: set[ServerLink] = set()

    def __iter__(self) -> Iterator[ServerLink]:
        yield from self._links
        yield from self._replaced

    @property
    def are_many(self) -> bool:
        """Who looks for servers makes no more of them now."""
        return len(self._links) >= _MOST

    @property
    def may_replace(self) -> bool:
        """One more that is in use may be replaced now."""
        return len(self._replaced) < _MOST_REPLACED

    def add(self, link: ServerLink) -> None:
        """Keep one until it is over."""
        self._links.add(link)
        self._loop.call_later(_LOOK_S, self._look, link)

    def replace(self, link: ServerLink) -> None:
        """Another link takes the place of this one: keep it until it is over."""
        self._replaced.add(link)
        link.make_spare()
        self._loop.call_later(_LOOK_S, self._look, link)

    def over(self, link: ServerLink) -> None:
        """One has ended, if it was one."""
        self._links.discard(link)
        self._replaced.discard(link)

    def _look(self, link: ServerLink) -> None:
        if link.unused:
            link.close("already linked to this server")
        elif not link.closed_because:
            self._loop.call_later(_LOOK_S, self._look, link)
