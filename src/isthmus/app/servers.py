"""An agent's links to all its servers: one per server, found by name, count and patience.

Every address that a name resolves to is connected. A server says in its Welcome how many servers
there are; while fewer are linked (they may hide behind one load-balanced address) the addresses
are tried again, and a link to a server that is linked already is closed.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence

from isthmus.config.agent import is_srv_name
from isthmus.core.backoff import Backoff
from isthmus.errors import LinkError
from isthmus.links.agent_side import Greeting, ServerLink, connect
from isthmus.links.dials import IncomingDial
from isthmus.net.connect import Address
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.srv import srv_targets
from isthmus.observe.logs import OncePer, log
from isthmus.observe.program import ProgramMetrics
from isthmus.tunnel.session import Limits
from isthmus.values import HostPort, ServerId

_QUIET_S = 30.0
_RESOLVE_AGAIN_S = 30.0
_log = logging.getLogger("isthmus.agent")

#: A socket address and the name that its certificate must carry.
Place = tuple[Address, str]


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
        greeting: Greeting,
        on_dial: Callable[[IncomingDial], None],
        backoff: Callable[[], Backoff],
        limits: Limits,
        metrics: ProgramMetrics,
        once: OncePer,
    ) -> None:
        self._loop = loop
        self._poller = poller
        self._resolver = resolver
        self._hosts = tuple(hosts)
        self._port = port
        self._context = context
        self._greeting = greeting
        self._on_dial = on_dial
        self._backoff = backoff
        self._limits = limits
        self._metrics = metrics
        self._once = once
        self._draining = False
        self._changed = asyncio.Event()
        self._places: set[Place] = set()
        self.links: dict[ServerId, ServerLink] = {}

    @property
    def known_count(self) -> int:
        """How many servers there are, as far as they said."""
        return max((link.server_count for link in self.links.values()), default=0)

    async def keep_connected(self) -> None:
        """Keep linking, for ever."""
        keepers: dict[tuple[Place, int], asyncio.Task[None]] = {}
        backoff = self._backoff()
        async with asyncio.TaskGroup() as tasks:
            while not self._draining:
                places = await self._find()
                if places:
                    self._places = set(places)
                    backoff.reset()
                # More servers than addresses: they share one, so it is tried several times.
                each = -(-self.known_count // len(places)) if places else 0
                for key in ((place, n) for n in range(max(1, each)) for place in places):
                    if key not in keepers or keepers[key].done():
                        keepers[key] = tasks.create_task(self._keep(*key), name=f"link:{key[0][1]}")
                self._changed.clear()
                wait_s = _RESOLVE_AGAIN_S if places else backoff.next_s()
                try:
                    await asyncio.wait_for(self._changed.wait(), wait_s)
                except TimeoutError:
                    continue

    def drain(self) -> None:
        """Take no new dials from any server."""
        self._draining = True
        for link in list(self.links.values()):
            link.drain()

    def close(self) -> None:
        """End every link."""
        self._draining = True
        for link in list(self.links.values()):
            link.close("agent stops")

    async def _find(self) -> list[Place]:
        """Every address of every host; what does not resolve now is said and tried again."""
        places: list[Place] = []
        for host in self._hosts:
            try:
                targets = (
                    await srv_targets(host) if is_srv_name(host) else [HostPort(host, self._port)]
                )
                for target in targets:
                    for address in await self._resolver.addresses(target):
                        places.append((address, target.host))
            except OSError as exc:
                self._say("server name does not resolve", about=host, reason=str(exc))
        return list(dict.fromkeys(places))

    async def _keep(self, place: Place, number: int) -> None:
        """Keep one link by one address, until the address is gone from the name."""
        backoff = self._backoff()
        while not self._draining and place in self._places:
            if number and len(self.links) >= self.known_count:
                return  # every server is linked: this extra attempt has nothing to find
            try:
                link = await connect(
                    self._loop,
                    self._poller,
                    place[0],
                    self._context(),
                    server_hostname=place[1],
                    greeting=self._greeting,
                    on_dial=self._on_dial,
                    limits=self._limits,
                )
            except LinkError as exc:
                self._metrics.link_failed(exc.stage)
                self._say("cannot link to the server", about=_shown(place[0]), reason=str(exc))
            else:
                if await self._hold(link):
                    backoff.reset()
            await asyncio.sleep(backoff.next_s())

    async def _hold(self, link: ServerLink) -> bool:
        """Keep a link until it is over; False if its server was linked already."""
        if link.server_id in self.links:
            link.close("already linked to this server")
            return False
        self.links[link.server_id] = link
        self._metrics.link_opened()
        self._changed.set()
        log(
            _log, logging.INFO, "linked", server_id=link.server_id, address=link.peer_address,
            servers=f"{len(self.links)}/{self.known_count}",
        )  # fmt: skip
        if self._draining:
            link.drain()
        # Cancelled here, it stays in the table: whoever stops us resets its tunnels first.
        why = await asyncio.shield(link.over)
        del self.links[link.server_id]
        self._changed.set()
        log(_log, logging.INFO, "link ended", server_id=link.server_id, reason=why)
        return True

    def _say(self, message: str, *, about: str, reason: str) -> None:
        self._once.log(
            (message, about, reason), _QUIET_S, _log, logging.WARNING, message,
            server=about, reason=reason,
        )  # fmt: skip


def _shown(address: Address) -> str:
    return str(HostPort(address[1][0].partition("%")[0], address[1][1]))
