"""The table of an agent's links, one for each server; it says what is missing, and wakes who waits.

rules_mesh.py says what follows from the links, rules_turns.py whose turn it is to be asked for;
servers.py makes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from isthmus.frame.observe.program import ProgramMetrics
from isthmus.links.agent_side import ServerLink
from isthmus.logs import log
from isthmus.programs.agent import rules_mesh as mesh
from isthmus.programs.agent.rules_turns import AskingTurns
from isthmus.text.pacing import Backoff
from isthmus.values import ServerId

_log = logging.getLogger("isthmus.agent")


class LinkTable:
    """Keeps the links, and whom to ask for next.

    ``asking`` is for servers that are missing, ``asking_anew`` for those whose links may end soon.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        backoff: Callable[[], Backoff],
        metrics: ProgramMetrics,
        count_source: str,
        can_ask: bool,
        changed: Callable[[], None],
    ) -> None:
        """``can_ask``: servers can be asked for by their ids. ``changed()`` hears every change."""
        self._loop = loop
        self._metrics = metrics
        self._count_source = count_source
        self._can_ask = can_ask
        self._changed = changed
        self._leases: int | None = None
        self._change = asyncio.Event()
        self.spare = SpareLinks(loop)
        self.asking = AskingTurns(backoff, most=mesh.MOST_SERVERS)
        self.asking_anew = AskingTurns(backoff, most=mesh.MOST_SERVERS)
        self.draining = False
        self.links: dict[ServerId, ServerLink] = {}

    @property
    def open_links(self) -> list[ServerLink]:
        """Every link that was welcomed and is not over, also those that take no new dials."""
        return [*self.links.values(), *self.spare]

    @property
    def known_count(self) -> int:
        """How many servers there are, as far as they said."""
        return mesh.known_count(self.links, self._leases, self._count_source)

    @property
    def missing(self) -> list[ServerId]:
        """The servers that others named and that are not linked."""
        return mesh.missing(self.links)

    @property
    def unsure(self) -> list[ServerId]:
        """The servers whose links may end soon, and that can be asked for."""
        return mesh.unsure(self.links) if self.spare.may_replace else []

    @property
    def to_ask_for(self) -> list[ServerId]:
        """Those of the missing servers that can be had by asking: all or none."""
        return self.missing if self._can_ask else []

    @property
    def some_unnamed(self) -> bool:
        """There are servers that are not linked and can be met by chance only."""
        return bool(self.links) and self.known_count > len(self.links) + len(self.to_ask_for)

    def counted(self, leases: int) -> None:
        """The servers' Leases were counted."""
        self._leases = leases
        self.tell_change()

    def claim(self, link: ServerLink) -> bool:
        """Take a link that was welcomed; False if its server is there already.

        Which does not count if that one may end soon, and this one may not.
        """
        link.over.add_done_callback(lambda _: self._ended(link))
        linked = self.links.get(link.server_id)
        if linked is not None and not linked.ready:
            self.spare.add(linked)  # it is closing
        elif linked is not None:
            if mesh.may_end_soon(link, self.links) or link.server_id not in self.unsure:
                self.spare.add(link)
                return False
            self.spare.replace(linked)
        self.links[link.server_id] = link
        self.asking.came(link.server_id, now=self._loop.time())
        self.asking_anew.came(link.server_id, now=self._loop.time())
        self._metrics.link_opened()
        log(
            _log, logging.INFO, "linked", server_id=link.server_id, address=link.peer_address,
            servers=f"{len(self.links)}/{self.known_count}",
        )  # fmt: skip
        if self.draining:
            link.drain()
        self.tell_change()
        return True

    def _ended(self, link: ServerLink) -> None:
        if self.links.get(link.server_id) is link:
            del self.links[link.server_id]
            self.asking.lost(link.server_id, now=self._loop.time())
        self.spare.over(link)
        level = logging.DEBUG if link.spare else logging.INFO
        log(_log, level, "link ended", server_id=link.server_id, reason=link.closed_because)
        self.tell_change()

    def tell_change(self) -> None:
        """Wake whoever waits for a change; who waits from now on waits for the next."""
        if self.links:  # without any nobody says who is there: what is known stays
            self.asking.want(self.to_ask_for, now=self._loop.time())
            self.asking_anew.want(self.unsure, now=self._loop.time())
        change, self._change = self._change, asyncio.Event()
        change.set()
        self._changed()

    async def wait_change(self, timeout_s: float | None = None) -> None:
        """Wait until something changes, or so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._change.wait()


_MOST = 16
#: Tunnels may stay open for days, and each link that was replaced with them.
_MOST_REPLACED = 16
_LOOK_S = 0.05


class SpareLinks:
    """An agent's links that are not in use: it has another to the same server, or they close.

    A spare one takes no new dials, and is closed when its server knows that and has asked
    elsewhere. So is one that was in use until another took its place, when the last of its tunnels
    has ended.
    """

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
