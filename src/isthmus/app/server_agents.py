"""A server's door for agents: who comes is let in, handed on or refused, and told of the others."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable, Sequence
from functools import partial

from isthmus.app.admission import Admission
from isthmus.app.hand_on import HandingOn
from isthmus.app.node_gates import GateNotes
from isthmus.app.peers import Peers
from isthmus.app.tls_refusals import refusal_of
from isthmus.config.gates import CLUSTER_TO_MASTER
from isthmus.config.server import ServerSettings
from isthmus.core.agents import Agents
from isthmus.errors import LinkStage
from isthmus.frontends.backend import PROCESS
from isthmus.links.link import HANDSHAKE_S, Link, peer_of
from isthmus.links.server_side import AgentLink, Membership
from isthmus.links.talk import Incoming
from isthmus.net.contexts import HotContext
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.poller import Poller
from isthmus.observe.logs import OncePer, log
from isthmus.observe.metrics import ServerMetrics, TlsPort
from isthmus.tunnel.limits import Limits, with_keepalive
from isthmus.tunnel.packets import Packets
from isthmus.values import ServerId
from isthmus.wire.link import alpn_asking_for, is_askable

_log = logging.getLogger("isthmus.server")
MOST_GREETING = 1024
_QUIET_S = 60.0


class AgentDoor:
    """The port that agents connect to, and the links that came of it.

    ``links`` are all, from their first byte; ``agents`` those that may be chosen for dials.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        settings: ServerSettings,
        *,
        server_id: ServerId,
        metrics: ServerMetrics,
        once: OncePer,
        on_dial: Callable[[Incoming], None],
        agents: Agents[AgentLink] | None = None,
    ) -> None:
        self._loop = loop
        self._poller = poller
        self._settings = settings
        self._id = server_id
        self._metrics = metrics
        self._once = once
        self._on_dial = on_dial
        self._limits = with_keepalive(Limits(), settings.keepalive_time_s)
        self._admission: Admission | None = None
        self._bound: list[socket.socket] = []
        self._listeners: list[Listener] = []
        self._draining = False
        self._count: int | None = None
        self._by_id: dict[int, AgentLink] = {}
        self._gates = GateNotes(enabled=settings.enabled(CLUSTER_TO_MASTER))
        self.links: set[AgentLink] = set()
        if agents is None:
            agents = Agents(settings.proxy_strategies, below)
        self.agents = agents
        self.packets = Packets()
        self.port = 0
        self.peers = Peers(server_id, settings.peers)
        self.handing = HandingOn(
            loop, poller, peers=self.peers, metrics=metrics, once=once, lost=self._lost
        )

    @property
    def alpn(self) -> tuple[str, ...]:
        """What agents may ask for: our own protocol by our own id as well."""
        alpn = self._settings.agent_alpn
        by_id = self._settings.link != "grpc" and is_askable(self._id)
        return (alpn_asking_for(self._id), *alpn) if by_id else alpn

    @property
    def listeners(self) -> Sequence[Listener]:
        """What was opened, stopped or not."""
        return self._listeners

    def bind(self) -> None:
        """Bind the port, and accept nothing yet.

        Raises:
            ConfigError: it cannot be bound.
        """
        settings = self._settings
        self._bound = bind_tcp(
            settings.agent_bind_address, settings.agent_port, flag="--agent-port"
        )

    def open(self, context: HotContext, admission: Admission) -> None:
        """Accept agents from now on, as far as they are admitted."""
        self._admission = admission
        accept = partial(self._accept, context)
        bound, self._bound = self._bound, []
        for sock in bound:
            listener = Listener(self._loop, self._poller, sock, accept)
            self._listeners.append(listener)
            self.port = listener.port
            self.handing.listening.append(listener.address)

    def drain(self) -> None:
        """Tell the agents that nothing new is asked of them, and who comes from now on."""
        self._draining = True
        self.handing.drain()
        for link in list(self.links):
            link.drain()

    def shut(self) -> None:
        """Accept nobody more; the links stay."""
        for sock in self._bound:
            sock.close()
        self._bound.clear()
        for listener in self._listeners:
            listener.stop()
        self.handing.close()

    def link_of(self, link_id: int) -> AgentLink | None:
        """The link of this number, while it is there."""
        return self._by_id.get(link_id)

    # Membership.

    def counted(self, count: int) -> None:
        """So many servers were counted; what is counted replaces --server-count."""
        self._count = count
        self.tell_membership()

    def tell_membership(self) -> None:
        """Tell every agent about the set of servers."""
        for link in list(self.links):
            link.tell_membership()

    def _membership(self) -> Membership:
        ids = self.peers.ids
        count = self._settings.announced_count if self._count is None else self._count
        # Never fewer than are named: an agent that believed it would not look for the rest.
        count = max(count, len(ids))
        return Membership(
            server_id=self._id, server_count=count, servers=ids, features=self._settings.features
        )

    # Links.

    def _accept(self, context: HotContext, sock: socket.socket) -> None:
        greeting = len(self.links) - len(self.agents) + self.handing.looking
        if greeting >= MOST_GREETING:
            sock.close()  # nobody has proved anything yet: they may not take every descriptor
            self._metrics.link_failed(LinkStage.REFUSED)
        elif len(self.peers):
            self.handing.accept(sock, partial(self._serve, context))
        else:
            self._serve(context, sock)

    def _serve(
        self,
        context: HotContext,
        sock: socket.socket,
        events: int = 0,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        assert self._admission is not None  # made before the port was opened
        link = AgentLink(
            self._loop,
            self._poller,
            sock,
            context.current,
            membership=self._membership,
            on_ready=self._ready,
            on_dial=self._on_dial,
            on_closed=self._gone,
            admit=self._admission.admit,
            only=self._settings.link,
            packets=self.packets,
            handshake_s=handshake_s,
            limits=self._limits,
            process=PROCESS,
        )
        self.links.add(link)
        self._by_id[link.id] = link
        if events:  # its edges came while its hello was looked at
            link.carrier.on_events(events)

    def _lost(self, sock: socket.socket, late: bool) -> None:
        """A connection ended, or was too slow, before it was a link."""
        stage = LinkStage.TIMED_OUT if late else LinkStage.LOST
        self._metrics.link_failed(stage)
        self._once.log(
            ("link", stage, False), _QUIET_S, _log, logging.WARNING if late else logging.INFO,
            "agent link refused", address=peer_of(sock),
            reason="handshake timed out" if late else "connection lost",
        )  # fmt: skip

    def _ready(self, link: AgentLink) -> None:
        others = [it for it in self.agents if it.agent_id == link.agent_id]
        # An agent that looks for more servers behind one address meets us again: no news.
        link.is_extra = any(it.peer_host == link.peer_host for it in others)
        # Where servers hand agents on, one agent comes by several addresses.
        if others and not link.is_extra and not len(self.peers):
            self._once.log(
                ("one id", link.agent_id), _QUIET_S, _log, logging.WARNING,
                "two agents claim one id", agent_id=link.agent_id, address=link.peer_address,
                other=others[0].peer_address,
            )  # fmt: skip
        self.agents.add(link)
        self._metrics.link_opened()
        if self._draining:
            link.drain()
        log(
            _log, logging.DEBUG if link.is_extra else logging.INFO, "agent linked",
            agent_id=link.agent_id, link=link.id,
            address=link.peer_address, identity=str(link.identity), version=link.version,
            network=link.network or None,
        )  # fmt: skip
        self._gates.linked(link)

    def _gone(self, link: Link) -> None:
        assert isinstance(link, AgentLink)
        self.links.discard(link)
        self._by_id.pop(link.id, None)
        was_ready = link.was_ready
        self.agents.remove(link)
        if link.failure is not None:
            self._metrics.tls_refused(TlsPort.AGENT, refusal_of(link.failure))
        elif not link.orderly:
            self._metrics.link_failed(link.stage)
            if was_ready and link.talk is not None and link.talk.name == "grpc":
                self._metrics.stream_failed("from_agent", "Unavailable")
        log_it = partial(log, _log) if was_ready else partial(
            self._once.log, ("link", link.stage, link.audited), _QUIET_S, _log
        )  # fmt: skip
        log_it(
            # A load balancer that looks whether the port is open connects and leaves: no warning.
            # What the audit has said is not said twice.
            logging.DEBUG if link.is_extra or link.audited
            else logging.INFO if was_ready or link.stage is LinkStage.LOST
            else logging.WARNING,
            "agent link ended" if was_ready else "agent link refused",
            agent_id=link.agent_id or None, link=link.id, address=link.peer_address,
            reason=link.closed_because,
        )  # fmt: skip


def below(number: int) -> int:
    """Pick by chance; random.randrange() takes 0.6 µs, this 0.1 (timeit)."""
    return int(random.random() * number)
