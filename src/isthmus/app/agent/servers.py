"""An agent's links to all its servers: one per server, found by name, count and patience.

Every address that a name resolves to is connected. A server says in its Welcome how many servers
there are; while fewer are linked (they may hide behind one load-balanced address), or one that was
named is not, the addresses where somebody answers are tried again, and where ids are known, those
that are missing are asked for in turn: whichever server is met hands the connection on. A link to a
server that is linked already is spare: see spare_links.py.

A link that was asked for by its server's id may pass through any other server, and ends with that
one. Which one it is nobody says, so that all of them are made anew when a server says that it
drains: first the new link, then the old one goes, when its tunnels are done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeVar

from isthmus.app.agent.places import Place, Places
from isthmus.app.agent.spare_links import SpareLinks
from isthmus.core.backoff import Backoff
from isthmus.core.leases import server_count
from isthmus.core.proxies import ProxyRules
from isthmus.errors import LinkError
from isthmus.links.agent_side import Greeting, ServerLink, connect
from isthmus.links.link import GOODBYE_S
from isthmus.links.talk import Incoming
from isthmus.net.connect import Address
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.observe.logs import OncePer, log
from isthmus.observe.program import ProgramMetrics
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.packets import Packets
from isthmus.values import HostPort, ServerId
from isthmus.wire.link import alpn_asking_for

_QUIET_S = 30.0
_RESOLVE_AGAIN_S = 30.0
_MAX_SERVERS = 128  # what a server says of their number is believed up to here
_log = logging.getLogger("isthmus.agent")
T = TypeVar("T")


def _unheard() -> None:
    """Nobody asked to hear it."""


class Work(Enum):
    """What there is to do at an address."""

    KEEP = "keep one link by it"
    PROBE = "find servers that hide behind it"
    REPLACE = "make links anew that may pass through a server that drains"


class Servers:
    """Keeps one link to each server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        resolver: Resolver,
        *,
        hosts: Sequence[str],
        port: int,
        context: Callable[[], ssl.SSLContext],
        greeting: Callable[[], Greeting],
        on_dial: Callable[[Incoming], None],
        backoff: Callable[[], Backoff],
        limits: Limits,
        metrics: ProgramMetrics,
        once: OncePer,
        packets: Packets,
        proxies: ProxyRules,
        only: str = "auto",
        alpn: Sequence[str] = (),
        count_source: str = "default",
        server_name: str = "",
        changed: Callable[[], None] = _unheard,
    ) -> None:
        """``alpn`` is what the context offers; without it no server is asked for by its id.

        ``server_name`` is what every server's certificate must carry and what is asked for by
        SNI; empty means the host. ``changed()`` hears that a link came or went.
        """
        self._loop = loop
        self._poller = poller
        self._where = Places(
            loop, poller, resolver, hosts=hosts, port=port, proxies=proxies,
            server_name=server_name, unresolved=self._unresolved,
        )  # fmt: skip
        self._context = context
        self._greeting = greeting
        self._on_dial = on_dial
        self._backoff = backoff
        self._limits = limits
        self._metrics = metrics
        self._once = once
        self._draining = False
        self._change = asyncio.Event()
        self._places: set[Place] = set()
        self._answering: set[Place] = set()  # where the last attempt met a server
        self._spare = SpareLinks(loop)
        self._leases: int | None = None
        self._count_source = count_source
        self._packets = packets
        self._only = only
        self._alpn = tuple(alpn)
        self._turn = 0
        self._changed = changed
        self.links: dict[ServerId, ServerLink] = {}

    @property
    def open_links(self) -> list[ServerLink]:
        """Every link that was welcomed and is not over, also those that take no new dials."""
        return [*self.links.values(), *self._spare]

    @property
    def known_count(self) -> int:
        """How many servers there are, as far as they said."""
        said = max((link.server_count for link in self.links.values()), default=0)
        if self._leases is not None and self.links:
            said = server_count(said, self._leases, self._count_source)
        return min(said, _MAX_SERVERS)

    def counted(self, leases: int) -> None:
        """The servers' Leases were counted."""
        self._leases = leases
        self._tell_change()

    @property
    def _complete(self) -> bool:
        # By the ids as well: one that nobody names is not one that is missing.
        return 0 < self.known_count <= len(self.links) and not self.missing

    @property
    def missing(self) -> list[ServerId]:
        """The servers that others named and that are not linked."""
        return sorted(self._named - self.links.keys())[:_MAX_SERVERS]

    @property
    def unsure(self) -> list[ServerId]:
        """The servers whose links may end soon, and that can be asked for."""
        if not self._spare.may_replace:
            return []
        unsure = {each for each, link in self.links.items() if self._may_end_soon(link)}
        return sorted(unsure & self._named)

    @property
    def _named(self) -> set[ServerId]:
        named: set[ServerId] = set()
        for link in self.links.values():
            named |= link.servers
        return named

    def _may_end_soon(self, link: ServerLink) -> bool:
        """A link may pass through a server that drains: it was asked for before that was said."""
        if not link.was_asked_for or link.drained_at is not None:
            return False
        drained = (other.drained_at for other in self.links.values())
        return any(at is not None and link.opened_at <= at for at in drained)

    def _next_to_ask_for(self) -> ServerId | None:
        """The next of the missing servers; all that look take turns. None: take what comes."""
        missing: list[ServerId | None] = [*self.missing]
        if not missing or self._only == "grpc" or not self._alpn:
            return None
        if self.known_count > len(self.links) + len(missing):
            missing.append(None)  # there are some that nobody can name
        return self._in_turn(missing)

    def _in_turn(self, servers: Sequence[T]) -> T:
        self._turn += 1
        return servers[self._turn % len(servers)]

    async def keep_connected(self) -> None:
        """Keep linking, for ever."""
        does = {Work.KEEP: self._keep, Work.PROBE: self._probe, Work.REPLACE: self._replace}
        keepers: dict[tuple[Place, Work], asyncio.Task[None]] = {}
        backoff = self._backoff()
        async with asyncio.TaskGroup() as tasks:
            while not self._draining:
                places = await self._where.find()
                if set(places) != self._places:
                    self._places = set(places)
                    self._answering &= self._places
                    self._tell_change()  # who waits at an address that is gone has to hear it
                change = self._change
                keepers = {key: task for key, task in keepers.items() if not task.done()}
                for place, work in self._wanted(places):
                    if (place, work) not in keepers:
                        keepers[place, work] = tasks.create_task(
                            does[work](place), name=f"link:{place[1]}"
                        )
                if places:
                    backoff.reset()
                wait_s = _RESOLVE_AGAIN_S if places else backoff.next_s()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await change.wait()

    def _wanted(self, places: Sequence[Place]) -> list[tuple[Place, Work]]:
        """One keeper for each address, one that probes it while servers hide behind it.

        However many addresses there are: some may be dead, and others lead to one server. And one
        that replaces links, while there are some to be replaced.
        """
        wanted = [(place, Work.KEEP) for place in places]
        if self.links and not self._complete:
            wanted += [(place, Work.PROBE) for place in places if place in self._answering]
        if self.unsure:
            wanted += [(place, Work.REPLACE) for place in places]
        return wanted

    def drain(self) -> None:
        """Take no new dials from any server."""
        self._draining = True
        for link in list(self.links.values()):
            link.drain()
        self._tell_change()

    def close(self) -> None:
        """End every link; they are gone after ``wait_closed``."""
        self._draining = True
        for link in self.open_links:
            link.close("agent stops")

    async def wait_closed(self) -> None:
        """Wait until no link is left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * GOODBYE_S):
                while self.open_links:
                    await self._change.wait()

    @property
    def unsent(self) -> bool:
        """Something that a tunnel said waits in a link."""
        return any(link.unsent for link in self.open_links)

    async def _keep(self, place: Place) -> None:
        """Keep one link by one address, until the address is gone from the name.

        Who finds that it leads to a server that is linked already looks for those that are not;
        who finds nobody does so every other time, since it may be only the one that was asked for
        who is not there.
        """
        backoff = self._backoff()
        looking = False
        while self._is_current(place):
            link = await self._try(place, self._next_to_ask_for() if looking else None)
            looking = not looking if link is None else link.spare
            if link is not None and not link.spare:
                backoff.reset()
                # Cancelled here, it stays in the table: whoever stops us resets its tunnels.
                while self.links.get(link.server_id) is link:
                    await self._change.wait()
            elif link is not None and await self._wait_incomplete(place):
                backoff.reset()
            await self._pause(place, backoff)

    async def _probe(self, place: Place) -> None:
        """Look by one address for servers that are not linked yet, until all are."""
        backoff = self._backoff()
        found: set[ServerId] = set()
        if self._answering != self._places:
            await asyncio.sleep(backoff.next_s())  # most others are being linked just now
        while self._is_current(place) and not self._is_enough(place):
            link = await self._try(place, self._next_to_ask_for())
            if link is not None and not link.spare:
                backoff.reset()
                if not self._complete and link.server_id not in found:
                    found.add(link.server_id)
                    continue  # with the next: only those that come and go have to wait
            await self._pause(place, backoff)

    async def _replace(self, place: Place) -> None:
        """Make links anew by one address, until none may pass through a server that drains."""
        backoff = self._backoff()
        while self._is_current(place) and (unsure := self.unsure):
            link = await self._try(place, self._in_turn(unsure))
            if link is None or link.spare:
                await self._pause(place, backoff)

    async def _pause(self, place: Place, backoff: Backoff) -> None:
        """Wait before the next attempt; for longer while there are many spare links."""
        while self._spare.are_many and self._is_current(place):
            await self._change.wait()
        await asyncio.sleep(backoff.next_s())

    def _heard(self, place: Place, answers: bool) -> None:
        """Somebody answered at an address, or nobody: whether to probe it depends on that."""
        if answers != (place in self._answering):
            self._answering ^= {place}
            self._tell_change()

    def _is_enough(self, place: Place) -> bool:
        """Nothing is left to be found by probing this address."""
        return self._complete or place not in self._answering

    def _is_current(self, place: Place) -> bool:
        return not self._draining and place in self._places

    async def _wait_incomplete(self, place: Place) -> bool:
        """Wait while every server is linked; False if there was nothing to wait for."""
        waited = False
        while self._complete and self._is_current(place):
            waited = True
            await self._change.wait()
        return waited

    async def _try(self, place: Place, asked: ServerId | None) -> ServerLink | None:
        """Make one link by one address, to the server that is asked for or to any."""
        link = await self._connect(place, asked)
        if link is not None or asked is None:
            self._heard(place, link is not None)
        return link

    async def _connect(self, place: Place, asked: ServerId | None) -> ServerLink | None:
        alpn = self._alpn if asked is None else (alpn_asking_for(asked), *self._alpn)
        try:
            return await connect(
                self._loop,
                self._poller,
                place[0],
                self._context(),
                server_hostname=place[1],
                greeting=self._greeting(),
                on_dial=self._on_dial,
                claim=self._claim,
                on_membership=self._tell_change,
                only=self._only,
                alpn=alpn,
                packets=self._packets,
                through=self._where.through(place),
                limits=self._limits,
            )
        except LinkError as exc:
            self._metrics.link_failed(exc.stage)
            self._say("cannot link to the server", about=_shown(place[0], asked), reason=str(exc))
        except Exception as exc:  # whatever it is, the other links go on and this one is retried
            self._say("cannot link to the server", about=_shown(place[0], asked), reason=repr(exc))
        return None

    def _claim(self, link: ServerLink) -> bool:
        """Take a link that was welcomed into the table; False if its server is there already.

        Which does not count if that one may end soon, and this one may not.
        """
        link.over.add_done_callback(lambda _: self._ended(link))
        linked = self.links.get(link.server_id)
        if linked is not None and not linked.ready:
            self._spare.add(linked)  # it is closing
        elif linked is not None:
            if self._may_end_soon(link) or link.server_id not in self.unsure:
                self._spare.add(link)
                return False
            self._spare.replace(linked)
        self.links[link.server_id] = link
        self._metrics.link_opened()
        log(
            _log, logging.INFO, "linked", server_id=link.server_id, address=link.peer_address,
            servers=f"{len(self.links)}/{self.known_count}",
        )  # fmt: skip
        if self._draining:
            link.drain()
        self._tell_change()
        return True

    def _ended(self, link: ServerLink) -> None:
        if self.links.get(link.server_id) is link:
            del self.links[link.server_id]
        self._spare.over(link)
        level = logging.DEBUG if link.spare else logging.INFO
        log(_log, level, "link ended", server_id=link.server_id, reason=link.closed_because)
        self._tell_change()

    def _tell_change(self) -> None:
        """Wake whoever waits for a change; who waits from now on waits for the next."""
        change, self._change = self._change, asyncio.Event()
        change.set()
        self._changed()

    def _unresolved(self, host: str, reason: str) -> None:
        self._say("server name does not resolve", about=host, reason=reason)

    def _say(self, message: str, *, about: str, reason: str) -> None:
        self._once.log(
            (message, about, reason), _QUIET_S, _log, logging.WARNING, message,
            server=about, reason=reason,
        )  # fmt: skip


def _shown(address: Address, asked: ServerId | None) -> str:
    shown = str(HostPort(address[1][0].partition("%")[0], address[1][1]))
    return shown if asked is None else f"{asked} by {shown}"
