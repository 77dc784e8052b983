"""An agent's links to all its servers: one per server.

The agent connects to every address that a name resolves to. A server announces in its Welcome how
many servers there are, and may name them. The agent requests named servers that are not linked by
their ids, at every address where a server answers: the server that it reaches hands the connection
on. While servers are missing (they may be behind one load-balanced address), the agent retries the
same addresses. A link to a server that is already linked is spare (``SpareLinks``).

A link that was requested by id may pass through any other server, and ends with that
one. The agent cannot tell which one, so when a server drains the agent makes all such links anew:
first the new link, then the old one closes when its tunnels are done.

linking.py makes one link; rules_servers.py decides which servers are missing and which one
to request next.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from isthmus.frame.observe.program import ProgramMetrics
from isthmus.links.agent_side import ServerHooks, ServerLink
from isthmus.links.link import GOODBYE_S
from isthmus.logs import log
from isthmus.programs.agent import rules_servers as mesh
from isthmus.programs.agent.linking import Linking, ServerAddress, ServerAddresses
from isthmus.programs.agent.resuming import STAND_IN_S, Resuming
from isthmus.programs.agent.rules_servers import AskingTurns
from isthmus.text.pacing import Backoff
from isthmus.values import ServerId

_log = logging.getLogger("isthmus.agent")


class LinkTable:
    """Keeps the links, and the servers to request next.

    ``asking`` is for missing servers, ``asking_anew`` for those whose links may end soon.
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
        """``can_ask``: servers can be requested by id. ``changed()`` is called for every change."""
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
        #: Those that lost their connection, and whose servers are to be linked anew.
        self.waiting: set[ServerLink] = set()

    @property
    def open_links(self) -> list[ServerLink]:
        """Every open, welcomed link, including those that take no new dials."""
        return [*self.links.values(), *self.waiting, *self.spare]

    @property
    def known_count(self) -> int:
        """The number of servers, as announced."""
        return mesh.known_count(self.links, self._leases, self._count_source)

    @property
    def missing(self) -> list[ServerId]:
        """The servers that others named and that are not linked."""
        return mesh.missing(self.links)

    @property
    def unsure(self) -> list[ServerId]:
        """The servers whose links may end soon, and that can be requested."""
        return mesh.unsure(self.links) if self.spare.may_replace else []

    @property
    def to_ask_for(self) -> list[ServerId]:
        """The missing servers that can be requested: all or none."""
        return self.missing if self._can_ask else []

    @property
    def some_unnamed(self) -> bool:
        """Whether there are unlinked servers that can only be reached by chance."""
        return bool(self.links) and self.known_count > len(self.links) + len(self.to_ask_for)

    def counted(self, leases: int) -> None:
        """The servers' Leases were counted."""
        self._leases = leases
        self.tell_change()

    def claim(self, link: ServerLink) -> bool:
        """Take a welcomed link; False if its server is already linked.

        Unless that link may end soon and this one may not.
        """
        link.over.add_done_callback(lambda _: self._ended(link))
        linked = self.links.get(link.server_id)
        if linked is not None and not linked.ready:
            self.spare.add(linked)  # it is closing
        elif linked is not None and linked.suspended:
            self.waiting.add(linked)
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

    def stand_in(self, link: ServerLink) -> None:
        """A link has been without a connection for long: let another one take new dials."""
        if link.suspended and self.links.get(link.server_id) is link:
            del self.links[link.server_id]
            self.waiting.add(link)
            self.asking.lost(link.server_id, now=self._loop.time())
            self.tell_change()

    def resumed(self, link: ServerLink) -> None:
        """A link has a connection again; if another took its place, it only ends its tunnels."""
        self._metrics.link_resumes += 1
        log(
            _log, logging.INFO, "link resumed", server_id=link.server_id,
            address=link.peer_address, tunnels=link.load,
        )  # fmt: skip
        if link in self.waiting:
            self.waiting.discard(link)
            if link.server_id in self.links:
                self.spare.replace(link)
            else:
                self.links[link.server_id] = link
        self.tell_change()

    def _ended(self, link: ServerLink) -> None:
        self.waiting.discard(link)
        if self.links.get(link.server_id) is link:
            del self.links[link.server_id]
            self.asking.lost(link.server_id, now=self._loop.time())
        self.spare.over(link)
        level = logging.DEBUG if link.spare else logging.INFO
        log(_log, level, "link ended", server_id=link.server_id, reason=link.closed_because)
        self.tell_change()

    def tell_change(self) -> None:
        """Wake all waiters; later waiters wait for the next change."""
        if self.links:  # without links, the known servers stay
            self.asking.want(self.to_ask_for, now=self._loop.time())
            self.asking_anew.want(self.unsure, now=self._loop.time())
        change, self._change = self._change, asyncio.Event()
        change.set()
        self._changed()

    async def wait_change(self, timeout_s: float | None = None) -> None:
        """Wait for a change or the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._change.wait()


_MOST = 16
#: Tunnels may stay open for days, and each replaced link with them.
_MOST_REPLACED = 16
_LOOK_S = 0.05


class SpareLinks:
    """An agent's links that are not in use: superseded or closing.

    A spare link takes no new dials, and is closed when its server knows that and has asked
    elsewhere. A link that was in use until another replaced it closes when the last of its tunnels
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
        """Whether there are too many to look for more servers now."""
        return len(self._links) >= _MOST

    @property
    def may_replace(self) -> bool:
        """Whether another link may be replaced now."""
        return len(self._replaced) < _MOST_REPLACED

    def add(self, link: ServerLink) -> None:
        """Keep a link until it ends."""
        self._links.add(link)
        self._loop.call_later(_LOOK_S, self._look, link)

    def replace(self, link: ServerLink) -> None:
        """Another link replaces this one: keep it until it ends."""
        self._replaced.add(link)
        link.make_spare()
        self._loop.call_later(_LOOK_S, self._look, link)

    def over(self, link: ServerLink) -> None:
        """A link has ended; remove it if it was spare."""
        self._links.discard(link)
        self._replaced.discard(link)

    def _look(self, link: ServerLink) -> None:
        if link.unused:
            link.close("already linked to this server")
        elif not link.closed_because:
            self._loop.call_later(_LOOK_S, self._look, link)


_RESOLVE_AGAIN_S = 30.0
#: After this time a pending request no longer delays the next one.
_PATIENCE_S = 0.5
_MOST_AT_ONCE = 8


def _unheard() -> None:
    """Do nothing: the default callback."""


class Work(Enum):
    """The kinds of work at an address."""

    KEEP = "keep one link at it"
    ASK = "request missing servers at it"
    PROBE = "find unnamed servers behind it"
    REPLACE = "remake links that may pass through a draining server"


class Servers:
    """Keeps one link to each server."""

    def __init__(
        self,
        linking: Linking,
        addresses: ServerAddresses,
        *,
        backoff: Callable[[], Backoff],
        count_source: str = "default",
        changed: Callable[[], None] = _unheard,
    ) -> None:
        """``changed()`` is called when a link is added or lost."""
        self._loop = linking.loop
        self._backoff = backoff
        self._linking = linking
        self._addresses = addresses
        self._table = LinkTable(
            linking.loop, backoff=backoff, metrics=linking.metrics, count_source=count_source,
            can_ask=linking.can_ask, changed=changed,
        )  # fmt: skip
        self._current: set[ServerAddress] = set()
        # Addresses where the last attempt reached a server, or one is linked.
        self._answering: set[ServerAddress] = set()
        self._kept: set[ServerAddress] = set()  # where the keeper has its link
        self._turn = 0
        self._hooks = ServerHooks(
            on_dial=linking.on_dial,
            claim=self._table.claim,
            on_membership=self._table.tell_change,
            on_suspended=self._suspended,
            on_resumed=self._table.resumed,
        )
        self._resuming = Resuming(
            linking, addresses, known=lambda: sorted(self._current), metrics=linking.metrics
        )
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def links(self) -> dict[ServerId, ServerLink]:
        """The link to each server."""
        return self._table.links

    @property
    def open_links(self) -> list[ServerLink]:
        """Every open, welcomed link, including those that take no new dials."""
        return self._table.open_links

    @property
    def known_count(self) -> int:
        """The number of servers, as announced."""
        return self._table.known_count

    @property
    def missing(self) -> list[ServerId]:
        """The servers that others named and that are not linked."""
        return self._table.missing

    def counted(self, leases: int) -> None:
        """The servers' Leases were counted."""
        self._table.counted(leases)

    async def keep_connected(self) -> None:
        """Keep linking until cancelled."""
        does = {
            Work.KEEP: self._keep,
            Work.ASK: self._ask,
            Work.PROBE: self._probe,
            Work.REPLACE: self._replace,
        }
        keepers: dict[tuple[ServerAddress, Work], asyncio.Task[None]] = {}
        backoff = self._backoff()
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            while not self._table.draining:
                addresses = await self._addresses.find()
                if set(addresses) != self._current:
                    self._current = set(addresses)
                    self._answering &= self._current
                    # Tasks waiting at a removed address have to be notified.
                    self._table.tell_change()
                keepers = {key: task for key, task in keepers.items() if not task.done()}
                for address, work in self._wanted(addresses):
                    if (address, work) not in keepers:
                        keepers[address, work] = tasks.create_task(
                            does[work](address), name=f"link:{address[1]}"
                        )
                if addresses:
                    backoff.reset()
                await self._table.wait_change(_RESOLVE_AGAIN_S if addresses else backoff.next_s())

    def _suspended(self, link: ServerLink, why: str) -> None:
        """A link lost its connection: find it another one."""
        if self._tasks is None or self._table.draining:
            link.lost(why)
            return
        self._tasks.create_task(self._resuming.resume(link, why), name=f"resume:{link.server_id}")
        self._loop.call_later(STAND_IN_S, self._table.stand_in, link)
        self._table.tell_change()

    def _wanted(self, addresses: Sequence[ServerAddress]) -> list[tuple[ServerAddress, Work]]:
        """One keeper for each address; others while servers are missing that may be behind it.

        For every address: some may be dead, and others may lead to one server. And one task
        that replaces links, while there are some to be replaced.
        """
        wanted = [(address, Work.KEEP) for address in addresses]
        for address in addresses:
            if address in self._answering and self._table.to_ask_for:
                wanted.append((address, Work.ASK))
            if address in self._answering and self._table.some_unnamed:
                wanted.append((address, Work.PROBE))
            if self._table.unsure:
                wanted.append((address, Work.REPLACE))
        return wanted

    def drain(self) -> None:
        """Take no new dials from any server."""
        self._table.draining = True
        for link in list(self.links.values()):
            link.drain()
        self._table.tell_change()

    def take_no_more(self) -> None:
        """The drain is over: later dials are for the next agent."""
        for link in self.open_links:
            link.ignore_dials()

    def close(self) -> None:
        """Close every link; they are closed after ``wait_closed``."""
        self._table.draining = True
        for link in self.open_links:
            link.close("agent is stopping")

    async def wait_closed(self) -> None:
        """Wait until no link is left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * GOODBYE_S):
                while self.open_links:
                    await self._table.wait_change()

    @property
    def unsent(self) -> bool:
        """Whether data of a tunnel waits in a link."""
        return any(link.unsent for link in self.open_links)

    async def _keep(self, address: ServerAddress) -> None:
        """Keep one link at one address, until the name no longer has the address.

        If it leads to a linked server, the rest is left to the tasks that
        request and probe; if no server answers, every other attempt requests a missing one, because
        only that one may be reachable.
        """
        backoff = self._backoff()
        looking = False
        while self._is_current(address):
            link = await self._try(address, self._in_turn() if looking else None)
            looking = link is None and not looking
            if link is not None and not link.spare:
                backoff.reset()
                self._kept.add(address)
                # If cancelled here, the link stays in the table: the shutdown resets its tunnels.
                while self.links.get(link.server_id) is link:
                    await self._table.wait_change()
                self._kept.discard(address)
            elif link is not None:
                while self.links and address in self._answering and self._is_current(address):
                    await self._table.wait_change()
                    backoff.reset()
            await self._pause(address, backoff)

    def _in_turn(self) -> ServerId | None:
        """One of the missing servers; whether it or the address is dead is unknown."""
        missing = self._table.to_ask_for
        self._turn += 1
        return missing[self._turn % len(missing)] if missing else None

    async def _probe(self, address: ServerAddress) -> None:
        """Look at one address for unnamed servers, until all are linked."""
        backoff = self._backoff()
        found: set[ServerId] = set()
        await self._let_others_link(backoff)
        while self._is_current(address) and address in self._answering and self._table.some_unnamed:
            link = await self._try(address, None)
            if link is not None and not link.spare:
                backoff.reset()
                if self._table.some_unnamed and link.server_id not in found:
                    found.add(link.server_id)
                    continue  # with the next: only those that come and go have to wait
            await self._pause(address, backoff)

    async def _ask(self, address: ServerAddress) -> None:
        """Request missing servers at one address, until all are linked."""
        await self._let_others_link(self._backoff())
        await self._ask_while(
            address,
            self._table.asking,
            lambda: address in self._answering and bool(self._table.to_ask_for),
        )

    async def _replace(self, address: ServerAddress) -> None:
        """Make links anew at one address, until none may pass through a draining server."""
        await self._ask_while(address, self._table.asking_anew, lambda: bool(self._table.unsure))

    async def _ask_while(
        self, address: ServerAddress, asking: AskingTurns, some_are_wanted: Callable[[], bool]
    ) -> None:
        """Request each server that is due; one that does not answer delays others only briefly."""
        under_way: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as tries:
            while self._is_current(address) and (some_are_wanted() or under_way):
                asked = None
                full = len(under_way) >= _MOST_AT_ONCE or self._table.spare.are_many
                if some_are_wanted() and not full:
                    asked = asking.take(now=self._loop.time())
                if asked is not None:
                    task = tries.create_task(self._try_turn(address, asking, asked))
                    under_way.add(task)
                    await asyncio.wait({task}, timeout=_PATIENCE_S)
                else:
                    # A pending request does not signal its failure: check periodically.
                    now = self._loop.time()
                    wait_s = _PATIENCE_S if under_way else asking.next_in_s(now=now)
                    await self._table.wait_change(None if full and not under_way else wait_s)
                under_way = {each for each in under_way if not each.done()}

    async def _try_turn(self, address: ServerAddress, asking: AskingTurns, asked: ServerId) -> None:
        linked = False
        try:
            link = await self._try(address, asked)
            linked = link is not None and not link.spare and link.server_id == asked
        finally:
            if not linked:
                asking.failed(asked, now=self._loop.time())

    async def _let_others_link(self, backoff: Backoff) -> None:
        """Wait a moment if there are several addresses: most are just being linked."""
        if self._answering != self._current:
            await asyncio.sleep(backoff.next_s())

    async def _pause(self, address: ServerAddress, backoff: Backoff) -> None:
        """Wait before the next attempt, longer while there are many spare links."""
        while self._table.spare.are_many and self._is_current(address):
            await self._table.wait_change()
        await asyncio.sleep(backoff.next_s())

    def _is_current(self, address: ServerAddress) -> bool:
        return not self._table.draining and address in self._current

    async def _try(self, address: ServerAddress, asked: ServerId | None) -> ServerLink | None:
        """Make one link at one address, to the requested server or to any.

        The result decides whether other tasks use the address as well. A refusal
        does not count as unreachable while the keeper has its link and would not retry.
        """
        link = await self._linking.link(self._addresses, address, asked, self._hooks)
        answers = link is not None
        gone = not answers and asked is None and address not in self._kept
        if (answers or gone) and answers != (address in self._answering):
            self._answering ^= {address}
            self._table.tell_change()
        return link
