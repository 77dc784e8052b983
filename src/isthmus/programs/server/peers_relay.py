"""Keeps a link to every other server, so that dials can go through their agents (--peer-relay).

There is one task for each server known by flags or Leases: it connects to that server's agent
port, waits until the link ends, and starts again. dial/dialers/through_agent.py decides when to
use a link; relayed.py is the other side.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from typing_extensions import override

from isthmus.dial.dialers.through_agent import AgentDialer, PeerLinks
from isthmus.errors import DialFailure, LinkError, LinkStage
from isthmus.frame.model.snapshot import RelayView
from isthmus.frame.part import Ground, LongTask, Part
from isthmus.frame.views import round_trip_s, state_of
from isthmus.links.agent_side import (
    AgentGreeting,
    LinkOpening,
    PeerLink,
    ServerHooks,
    connect,
)
from isthmus.links.link import GOODBYE_S, Link, LinkTerms
from isthmus.links.talk import Incoming
from isthmus.logs import OncePer, log
from isthmus.net.connect import Address
from isthmus.net.contexts import HotContext, TlsFiles, client_context
from isthmus.net.resolver import Resolver
from isthmus.net.revocation import Revocations
from isthmus.programs.server.agents import AgentDoor
from isthmus.programs.server.hand_on import Peers
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.server.tls import ServerTls
from isthmus.text.pacing import Backoff
from isthmus.values import AgentId, HostPort, ServerId
from isthmus.wire.alpn import RELAY_ALPN

#: How often to check for a changed set of servers.
_LOOK_S = 1.0
_FIRST_S, _CAP_S = 0.1, 10.0
_QUIET_S = 30.0
_STEP_S = 0.05
_log = logging.getLogger("isthmus.server")


def peer_files(settings: ServerSettings) -> TlsFiles:
    """The client certificate for other servers, and their authority."""
    own = bool(settings.relay.peer_cert)
    return TlsFiles(
        cert=settings.relay.peer_cert or settings.cluster_cert,
        key=settings.relay.peer_key or settings.cluster_key,
        ca=settings.relay.peer_ca_cert or settings.cluster_ca_cert,
        labels=(
            "--peer-cert" if own else "--cluster-cert, the client certificate for other servers,",
            "--peer-key" if own else "--cluster-key",
            "--peer-ca-cert" if settings.relay.peer_ca_cert else "--cluster-ca-cert",
        ),
    )


def peer_context(settings: ServerSettings, revocations: Revocations | None = None) -> HotContext:
    """The context of links to other servers, which refuses revoked certificates.

    Raises:
        ConfigError: a file cannot be used for this.
    """
    build = partial(
        client_context,
        alpn=(RELAY_ALPN,),
        min_version=settings.tls_min_version or "VersionTLS12",
        cipher_suites=settings.cipher_suites,
        revocations=revocations,
    )
    return HotContext(peer_files(settings), build, purpose="client")


def _takes_nothing(incoming: Incoming) -> None:
    """Refuse a dial: the other server has its own agents."""
    incoming.refuse(DialFailure.DENIED, "a relaying server accepts no dials")


_HOOKS = ServerHooks(on_dial=_takes_nothing)


class Relays(Part):
    """The links to other servers for relaying, and those from other servers."""

    def __init__(
        self,
        ground: Ground[ServerSettings, ServerMetrics],
        door: AgentDoor,
        tls: ServerTls,
        dialer: AgentDialer,
    ) -> None:
        self._ground = ground
        self._door = door
        self._tls = tls
        self._dialer = dialer
        #: None without --peer-relay.
        self.keeper: RelayKeeper | None = None

    @property
    def open_links(self) -> tuple[PeerLink, ...]:
        """All open links to other servers."""
        return self.keeper.open if self.keeper is not None else ()

    @property
    def ready_links(self) -> bool:
        """Whether another server has agents that could serve a dial."""
        return self.keeper is not None and self.keeper.links.ready

    @override
    async def prepare(self) -> None:
        ground = self._ground
        if not ground.settings.relay.peer_relay:
            return
        context = peer_context(ground.settings, self._tls.revoked_agents())
        ground.contexts.append(context)
        self.keeper = RelayKeeper(
            self._door.terms, own=ServerId(ground.id), peers=self._door.peers, context=context,
            server_name=ground.settings.relay.peer_server_name, metrics=ground.metrics,
            once=ground.once,
        )  # fmt: skip
        self._dialer.relays = self.keeper.links

    @override
    def start(self) -> None:
        self._ground.metrics.relays.links = self._count

    def _count(self) -> tuple[int, int]:
        to = len(self.keeper.links) if self.keeper is not None else 0
        return to, len(self._door.relays)

    @override
    def tasks(self) -> Iterable[LongTask]:
        if self.keeper is not None:
            yield "relays", self.keeper.run()

    @override
    def busy(self) -> bool:
        return self.keeper is not None and self.keeper.unsent

    @override
    def close(self) -> None:
        if self.keeper is not None:
            self.keeper.close()

    @override
    async def wait_closed(self) -> None:
        if self.keeper is not None:
            await self.keeper.wait_closed()

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        now = self._ground.now()
        to = self.keeper.links if self.keeper is not None else ()
        return {
            "relays": (
                *(_shown(it, it.server_id, "to", agents=it.agents, now=now) for it in to),
                *(_shown(it, it.agent_id, "from", agents=0, now=now) for it in self._door.relays),
            )
        }


def _shown(
    link: Link, server_id: str, direction: Literal["to", "from"], *, agents: int, now: float
) -> RelayView:
    return RelayView(
        server_id=ServerId(server_id),
        direction=direction,
        address=link.peer_address,
        identity=str(link.identity),
        state=state_of(link),
        agents=agents > 0,
        agent_count=agents,
        streams=link.load,
        age_s=now - link.opened_at,
        rtt_s=round_trip_s(link),
    )


class RelayKeeper:
    """Keeps ``links`` to every server in ``peers``."""

    def __init__(
        self,
        terms: LinkTerms,
        *,
        own: ServerId,
        peers: Peers,
        context: HotContext,
        server_name: str,
        metrics: ServerMetrics,
        once: OncePer,
    ) -> None:
        """``server_name`` must be in every server's certificate; empty: its host."""
        self._terms = replace(terms, only="mux")
        self._name = server_name
        self._own = own
        self._peers = peers
        self._context = context
        self._metrics = metrics
        self._once = once
        self._resolver = Resolver(terms.loop, for_peers=False)
        self._stopped = False
        self._open: dict[PeerLink, tuple[ServerId, HostPort]] = {}
        self.links = PeerLinks()

    async def run(self) -> None:
        """Keep linking until cancelled."""
        keepers: dict[tuple[ServerId, HostPort], asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while not self._stopped:
                wanted = set(self._peers.addresses.items())
                for key in keepers.keys() - wanted:
                    keepers.pop(key).cancel()
                self._let_go()
                for key in wanted - keepers.keys():
                    keepers[key] = tasks.create_task(self._keep(*key), name=f"relay:{key[0]}")
                await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        """Close every link; they are closed after ``wait_closed``."""
        self._stopped = True
        for link in list(self._open):
            link.close("server is stopping")
        self._resolver.close()

    async def wait_closed(self) -> None:
        """Wait until no link is left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * GOODBYE_S):
                while self._open:
                    await asyncio.sleep(_STEP_S)

    @property
    def open(self) -> tuple[PeerLink, ...]:
        """All open links, including those that are no longer used."""
        return tuple(self._open)

    @property
    def unsent(self) -> bool:
        """Whether data of a tunnel waits in a link."""
        return any(link.unsent for link in self._open)

    def _let_go(self) -> None:
        """Stop using links to removed servers; their tunnels may finish."""
        known = self._peers.addresses
        for link, (peer_id, address) in list(self._open.items()):
            if known.get(peer_id) != address:
                self.links.remove(link)
                if not link.load:
                    link.close("no longer a peer")

    async def _keep(self, peer_id: ServerId, address: HostPort) -> None:
        backoff = Backoff(first_s=_FIRST_S, cap_s=_CAP_S, chance=random.random)
        while not self._stopped:
            link = await self._link(peer_id, address)
            if link is not None:
                backoff.reset()
                # If cancelled here, the link stays open: the shutdown, or _let_go, closes it.
                reason = await asyncio.shield(link.over)
                log(
                    _log, logging.INFO, "link to another server ended", server_id=link.server_id,
                    address=str(address), reason=reason,
                )  # fmt: skip
            await asyncio.sleep(backoff.next_s())

    async def _link(self, peer_id: ServerId, address: HostPort) -> PeerLink | None:
        """One attempt, at all addresses of the name until one answers."""
        why = "its name has no address"
        try:
            for place in await self._resolver.addresses(address):
                try:
                    return await self._connect(place, peer_id, address)
                except LinkError as exc:
                    self._metrics.link_failed(exc.stage)
                    why = str(exc)
        except OSError as exc:
            why = str(exc)
        self._once.log(
            ("relay", peer_id, why), _QUIET_S, _log, logging.WARNING,
            "cannot link to another server", server_id=peer_id,
            address=str(address), reason=why,
        )  # fmt: skip
        return None

    async def _connect(self, place: Address, peer_id: ServerId, address: HostPort) -> PeerLink:
        link = await connect(
            self._terms,
            _HOOKS,
            LinkOpening(
                context=self._context.current,
                server_hostname=self._name or address.host,
                greeting=AgentGreeting(agent_id=AgentId(self._own)),
            ),
            place,
            kind=PeerLink,
        )
        assert isinstance(link, PeerLink)
        if link.server_id == self._own or self.links.has(link.server_id):
            link.close("already linked")
            whose = "ourselves" if link.server_id == self._own else link.server_id
            raise LinkError(f"its address leads to {whose}", LinkStage.REFUSED)
        self._open[link] = (peer_id, address)
        self.links.add(link)
        link.over.add_done_callback(lambda _: self._over(link))
        log(
            _log, logging.INFO, "linked to another server",
            server_id=link.server_id, address=str(address), version=link.version,
        )  # fmt: skip
        return link

    def _over(self, link: PeerLink) -> None:
        self.links.remove(link)
        self._open.pop(link, None)
