"""An agent's links that are not in use: it has a link to the same server besides, or they close.

A spare one takes no new dials, and is closed when its server knows that and has asked elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from isthmus.links.agent_side import ServerLink

_MOST = 16
_LOOK_S = 0.05


class SpareLinks:
    """Closes each as soon as nothing is open on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._links: set[ServerLink] = set()

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[ServerLink]:
        return iter(self._links)

    @property
    def are_many(self) -> bool:
        """Who looks for servers makes no more of them now."""
        return len(self._links) >= _MOST

    def add(self, link: ServerLink) -> None:
        """Keep one until it is over."""
        self._links.add(link)
        self._loop.call_later(_LOOK_S, self._look, link)

    def over(self, link: ServerLink) -> None:
        """One has ended, if it was one."""
        self._links.discard(link)

    def _look(self, link: ServerLink) -> None:
        if link.unused:
            link.close("already linked to this server")
        elif not link.closed_because:
            self._loop.call_later(_LOOK_S, self._look, link)
