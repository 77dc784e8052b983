"""A server's port for agents: admits, hands on or refuses connections, and keeps the links.

After a restart every agent of a cluster connects within a second or two, and each has ten seconds
for its handshake. If the CPU served them all in turn, thousands would get half a handshake each and
none would finish in time. ``Handshakes`` therefore serves some at once, the newest first, and
leaves the others unread: the newest have the most time left, and the oldest may have given up.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from isthmus.dial.frontends.backend import PROCESS
from isthmus.dial.rules_agents import Agents
from isthmus.errors import DialFailure, LinkStage
from isthmus.frame.gate_state import GateState, Known, state_of
from isthmus.frame.part import Ground
from isthmus.frame.resources import places
from isthmus.links.link import Link, LinkTerms, peer_of
from isthmus.links.server_side import AgentHooks, AgentLink, Decided, Membership
from isthmus.links.talk import Incoming, Unwelcome
from isthmus.logs import log
from isthmus.net.connection_gate import ConnectionGate, reset, source_of
from isthmus.net.contexts import HotContext
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.peek import HelloPeek
from isthmus.net.rules_slots import (
    STRANGER_BYTE_S,
    STRANGER_S,
    AdmissionRefusal,
    Allowance,
    ConnectionSlots,
    Strangers,
    stranger_refusal,
)
from isthmus.programs.server.admission import Admission
from isthmus.programs.server.hand_on import HandingOn, Peers
from isthmus.programs.server.metrics import ServerMetrics, TlsPort
from isthmus.programs.server.resuming import ResumableLinks
from isthmus.programs.server.settings import ServerSettings
from isthmus.programs.server.tls import refusal_of
from isthmus.settings.gates import CLUSTER_TO_MASTER, FLAG
from isthmus.tunnel.limits import Limits, with_keepalive
from isthmus.values import AgentId, ServerId
from isthmus.wire.alpn import RELAY_ALPN, alpn_asking_for, alpn_resuming, is_askable

_log = logging.getLogger("isthmus.server")
_audit = logging.getLogger("isthmus.audit")
MOST_GREETING = 1024
AGENT_FLAG = "--agent-port"
_QUIET_S = 60.0
#: The part of the descriptors for agents; the rest is for clients, nodes' connections, files.
_SHARE = 4

#: Log messages when an agent links and the gate of KEP-2025 is on at one side only.
_SAID_OF_GATES = {
    GateState.THERE_ONLY: (
        logging.WARNING,
        f"{CLUSTER_TO_MASTER} is on at this agent and off at this server: requests from its nodes"
        f" are denied until {FLAG}={CLUSTER_TO_MASTER}=true is set here, too",
    ),
    GateState.HERE_ONLY: (
        logging.INFO,
        f"{CLUSTER_TO_MASTER} is on at this server and off at this agent: no node reaches the"
        f" control plane through it until {FLAG}={CLUSTER_TO_MASTER}=true is set there, too",
    ),
    GateState.SILENT: (
        logging.DEBUG,  # normal for konnectivity's agents
        f"{CLUSTER_TO_MASTER} is on at this server, and this agent is konnectivity's or older than"
        " the gate: no node reaches the control plane through it",
    ),
}


class GateNotes:
    """Logs each message once for each agent, and again when the state changes."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._known = Known()

    def linked(self, link: AgentLink) -> None:
        """An agent has linked, for the first time or again."""
        state = state_of(here=self._enabled, there=link.features)
        if self._known.is_news(link.agent_id, state):
            level, sentence = _SAID_OF_GATES[state]
            log(
                _log, level, sentence, agent_id=link.agent_id, link=link.id,
                address=link.peer_address,
            )  # fmt: skip


class AgentDoor:
    """The port that agents connect to, and its links.

    ``links`` are all links, from their first byte; ``agents`` those that may be chosen for dials.
    """

    def __init__(
        self,
        ground: Ground[ServerSettings, ServerMetrics],
        agents: Agents[AgentLink] | None = None,
    ) -> None:
        loop, poller, settings = ground.loop, ground.poller, ground.settings
        handed, metrics, once = ground.handed, ground.metrics, ground.once
        server_id = ServerId(ground.id)
        self._handed = handed
        self._budget = ground.budget
        self._loop = loop
        self._poller = poller
        self._settings = settings
        self._id = server_id
        self._metrics = metrics
        self._once = once
        self._on_relayed: Callable[[Incoming], None] = refuse_dial
        self.terms = LinkTerms(
            loop=loop,
            poller=poller,
            limits=with_keepalive(Limits(), settings.keepalive_time_s),
            budget=ground.budget,
            only=settings.link,
            process=PROCESS,
            resume_s=settings.link_resume_timeout_s,
        )
        self.resumable = ResumableLinks(
            loop,
            admit=self._admit,
            moved=self._moved,
            budget=ground.budget,
            metrics=metrics,
            once=once,
        )
        self._hooks = AgentHooks(
            membership=self._membership,
            on_ready=self._ready,
            on_resume=self.resumable.resume,
            on_suspended=self.resumable.suspended,
            on_resumed=self.resumable.resumed,
            on_dial=refuse_dial,
            on_closed=self._gone,
            admit=self._admit,
            may_read=self._may_read,
        )
        self._admission: Admission | None = None
        self._bound: list[socket.socket] = []
        self._listeners: list[Listener] = []
        self._draining = False
        self._count: int | None = None
        self._by_id: dict[int, AgentLink] = {}
        self._same_agent: dict[AgentId, list[AgentLink]] = {}  # the links in ``agents`` by id
        self._gates = GateNotes(enabled=settings.gates.enabled(CLUSTER_TO_MASTER))
        self.links: set[AgentLink] = set()
        #: Links from other servers, which relay dials to our agents.
        self.relays: set[AgentLink] = set()
        self._told_agents = 0
        if agents is None:
            agents = Agents(settings.proxy_strategies, below, settings.near.nearness)
        self.agents = agents
        self.packets = self.terms.packets
        self.port = 0
        siblings = handed.slot.siblings if handed is not None else ()
        self.peers = Peers(server_id, settings.peers, siblings)
        self.places = ConnectionSlots(
            places(settings.max_connections, _SHARE), settings.max_connections_per_source
        )
        #: Links that are not welcomed yet.
        self.strangers: Strangers[AgentLink | HelloPeek] = Strangers(MOST_GREETING)
        self.allowance = Allowance(loop.time)
        self.handshakes = Handshakes(loop)
        self.handing = HandingOn(
            loop, poller, peers=self.peers, metrics=metrics, once=once, lost=self._lost,
            strangers=self.strangers,
        )  # fmt: skip

    @property
    def alpn(self) -> tuple[str, ...]:
        """The accepted ALPN names: our own protocol with our own id as well."""
        alpn = self._settings.agent_alpn
        if self._settings.relay.peer_relay_name:
            alpn = (*alpn, RELAY_ALPN)  # last: a relaying server offers nothing else
        if self._settings.link == "grpc" or not is_askable(self._id):
            return alpn
        if self.terms.resume_s:
            alpn = (alpn_resuming(self._id), *alpn)
        return alpn_asking_for(self._id), *alpn

    @property
    def listeners(self) -> Sequence[Listener]:
        """The opened listeners, stopped or not."""
        return self._listeners

    def take_dials(
        self, of_agents: Callable[[Incoming], None], of_servers: Callable[[Incoming], None]
    ) -> None:
        """Set the handlers for dials of nodes, and for dials relayed by other servers."""
        self._hooks = replace(self._hooks, on_dial=of_agents)
        self._on_relayed = of_servers

    def bind(self) -> None:
        """Bind the port without accepting.

        Raises:
            ConfigError: the port cannot be bound.
        """
        if self._handed is None:
            self._bound = bind_agents(self._settings)

    def open(self, context: HotContext, admission: Admission) -> None:
        """Start accepting agents, subject to admission."""
        self._admission = admission
        accept = ConnectionGate(self.places, partial(self._accept, context), self._refuse)
        if self._handed is not None:
            self._handed.open(AGENT_FLAG, accept, bound=self._listens_at)
        bound, self._bound = self._bound, []
        for sock in bound:
            listener = Listener(self._loop, self._poller, sock, accept)
            self._listeners.append(listener)
            self._listens_at(*listener.address)

    def _listens_at(self, host: str, port: int) -> None:
        self.port = port
        self.handing.listening.append((host, port))

    def drain(self) -> None:
        """Tell current and later agents that they get no new dials.

        With other servers the port closes: a balancer then chooses those.
        """
        self._draining = True
        self.handing.drain()
        if self.peers.ids:
            # Behind one address, an agent that looks for another server would reach this one again
            # and again while it drains, without being handed on.
            for listener in self._listeners:
                listener.stop()
        for link in list(self.links):
            link.drain()

    def take_no_more(self) -> None:
        """The drain is over: later dials are for the next server."""
        for link in self.links:
            link.ignore_dials()

    def shut(self) -> None:
        """Stop accepting; the links stay."""
        for sock in self._bound:
            sock.close()
        self._bound.clear()
        for listener in self._listeners:
            listener.stop()
        self.handing.close()
        self.handshakes.close()

    def link_of(self, link_id: int) -> AgentLink | None:
        """The link with this id, while it exists."""
        return self._by_id.get(link_id)

    # Membership.

    def counted(self, count: int) -> None:
        """Set the counted number of servers, which replaces --server-count."""
        self._count = count
        self.tell_membership()

    def tell_membership(self) -> None:
        """Send every agent the set of servers."""
        for link in list(self.links):
            link.tell_membership()

    @property
    def server_count(self) -> int:
        """The number of servers, as announced to agents."""
        count = self._settings.announced_count if self._count is None else self._count
        # Never fewer than the named ones: an agent would not look for the rest.
        return max(count, len(self.peers.ids))

    def _membership(self) -> Membership:
        return Membership(
            server_id=self._id,
            server_count=self.server_count,
            servers=self.peers.ids,
            features=self._settings.gates.features,
        )

    # Links.

    def _accept(self, context: HotContext, sock: socket.socket) -> None:
        source = source_of(sock)
        # Unauthenticated: these may take neither every descriptor nor all of our time.
        full = stranger_refusal(source, self.strangers, self.allowance, self._budget)
        if full is not None:
            with sock:
                self._refuse(sock, full, source)
            return
        crowded_out = self.strangers.must_leave()
        if crowded_out is not None:
            self._crowd_out(crowded_out)
        if len(self.peers):
            self.handing.accept(sock, partial(self._serve, context))
        else:
            self._serve(context, sock)

    def _crowd_out(self, stranger: AgentLink | HelloPeek) -> None:
        """Drop an unauthenticated connection of the source with the most of them."""
        self.strangers.remove(stranger)
        if isinstance(stranger, HelloPeek):
            self.no_place(TlsPort.AGENT, AdmissionRefusal.CROWD, source_of(stranger.sock))
            self.handing.forget(stranger)
        else:
            self.no_place(TlsPort.AGENT, AdmissionRefusal.CROWD, source_of(stranger.carrier.sock))
            stranger.lost("crowded out", LinkStage.REFUSED)

    def _refuse(self, sock: socket.socket, why: AdmissionRefusal, source: str) -> None:
        """Reset: before a handshake there is no other answer; see connection_gate.Refuse."""
        self.no_place(TlsPort.AGENT, why, source)
        self._metrics.link_failed(LinkStage.REFUSED)
        reset(sock)

    def no_place(self, port: TlsPort, why: AdmissionRefusal, source: str) -> None:
        """Count a refused connection, and log it at a limited rate."""
        self._metrics.connection_refused(port, why)
        self._once.log(
            ("no place", port, why), _QUIET_S, _log, logging.WARNING, "connection refused",
            port=port.value, source=source, reason=why.value,
        )  # fmt: skip

    def _serve(
        self,
        context: HotContext,
        sock: socket.socket,
        events: int = 0,
        handshake_s: float | None = None,
    ) -> None:
        assert self._admission is not None  # set before the port was opened
        source = source_of(sock)
        link = AgentLink(self.terms, self._hooks, sock, context.current, handshake_s=handshake_s)
        self.links.add(link)
        self.strangers.add(link, source)
        self._by_id[link.id] = link
        self.handshakes.came(link)
        if events:  # its edges occurred while its hello was read
            link.carrier.on_events(events)

    def _may_read(self, source: str, size: int) -> bool:
        return self.allowance.spend(source, size * STRANGER_BYTE_S)

    def _admit(self, link: AgentLink, token: str, decided: Decided) -> None:
        assert self._admission is not None
        if not link.relays:
            self._admission.admit(link, token, decided)
            return
        refusal = relay_refusal(link, self._settings.relay.peer_relay_name)
        if refusal:
            self._once.log(
                ("no relay", link.peer_host, link.agent_id), _QUIET_S, _audit, logging.WARNING,
                "relaying server refused", server_id=link.agent_id,
                address=link.peer_address, identity=str(link.identity), reason=refusal,
            )  # fmt: skip
        decided(refusal, Unwelcome.NOT_ENTITLED)

    def _moved(self, connection: AgentLink, link: AgentLink) -> None:
        assert self._admission is not None
        self._admission.moved(connection, link)

    def _lost(self, sock: socket.socket, late: bool) -> None:
        """A connection ended or timed out before it became a link."""
        stage = LinkStage.TIMED_OUT if late else LinkStage.LOST
        self._metrics.link_failed(stage)
        self._once.log(
            ("link", stage, False), _QUIET_S, _log, logging.WARNING if late else logging.INFO,
            "agent link refused", address=peer_of(sock),
            reason="handshake timed out" if late else "connection lost",
        )  # fmt: skip

    def _relay_ready(self, link: AgentLink) -> None:
        """Another server may relay dials to our agents; none are sent to it."""
        link.on_dial = self._on_relayed
        self.relays.add(link)
        link.tell_agents(self._told_agents)
        if self._draining:
            link.drain()
        log(
            _log, logging.INFO, "another server relays dials to our agents",
            server_id=link.agent_id, link=link.id, address=link.peer_address,
            identity=str(link.identity), version=link.version,
        )  # fmt: skip

    def _count_agents(self) -> None:
        """Tell other servers when the first agent is linked or the last one lost."""
        number = len(self.agents)
        before, self._told_agents = self._told_agents, number
        if bool(number) != bool(before):
            for link in list(self.relays):
                link.tell_agents(number)

    def _ready(self, link: AgentLink) -> None:
        source = self.strangers.remove(link)
        self.allowance.give_back(source, STRANGER_S + link.unproven_bytes * STRANGER_BYTE_S)
        self.handshakes.over(link)
        if link.relays:
            self._relay_ready(link)
            return
        others = self._same_agent.setdefault(link.agent_id, [])
        # An agent that looks for more servers behind one address reaches us again: not logged.
        link.is_extra = any(it.peer_host == link.peer_host for it in others)
        # If servers hand agents on, one agent may have several addresses.
        if others and not link.is_extra and not len(self.peers):
            self._once.log(
                ("one id", link.agent_id), _QUIET_S, _log, logging.WARNING,
                "two agents claim one id", agent_id=link.agent_id, address=link.peer_address,
                other=others[0].peer_address,
            )  # fmt: skip
        others.append(link)
        self.resumable.add(link)
        self.agents.add(link)
        self._count_agents()
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

    def _no_longer_agent(self, link: AgentLink) -> None:
        self.agents.remove(link)
        of_agent = self._same_agent.get(link.agent_id, [])
        if link in of_agent:
            of_agent.remove(link)
            if not of_agent:
                del self._same_agent[link.agent_id]
        self._count_agents()

    def _gone(self, link: Link) -> None:
        assert isinstance(link, AgentLink)
        self.links.discard(link)
        self.strangers.remove(link)
        self.handshakes.over(link)
        if self._admission is not None:
            self._admission.left(link)
        self._by_id.pop(link.id, None)
        was_ready = link.was_ready
        self.resumable.gone(link)
        if link.gave_way:
            self.allowance.give_back(link.source, STRANGER_S)
            return
        self.relays.discard(link)
        self._no_longer_agent(link)
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
            # A load balancer's port check connects and leaves: not a warning.
            # What was audited is not logged again.
            logging.DEBUG if link.is_extra or link.audited
            else logging.INFO if was_ready or link.stage is LinkStage.LOST
            else logging.WARNING,
            f"{'relay' if link.relays else 'agent'} link {'ended' if was_ready else 'refused'}",
            agent_id=link.agent_id or None, link=link.id, address=link.peer_address,
            reason=link.closed_because,
        )  # fmt: skip


def relay_refusal(link: AgentLink, names: Collection[str]) -> str:
    """Why a program may not relay; empty if it may."""
    identity = link.identity
    if identity.kind == "certificate" and not {identity.name, *identity.sans}.isdisjoint(names):
        return ""
    return f"{identity} is not allowed to relay (--peer-relay-name)"


def refuse_dial(incoming: Incoming) -> None:
    """Refuse dials until handlers are set."""
    incoming.refuse(DialFailure.DENIED, "this server accepts no dials")


def bind_agents(settings: ServerSettings) -> list[socket.socket]:
    """Bind the port of agents.

    Raises:
        ConfigError: the port cannot be bound.
    """
    return bind_tcp(settings.agent_bind_address, settings.agent_port, flag=AGENT_FLAG)


def below(number: int) -> int:
    """A random number; random.randrange() takes 0.6 µs, this 0.1 (timeit)."""
    return int(random.random() * number)


#: Enough for distant agents: with a round trip of 300 ms about 200 per second.
MOST_AT_ONCE = 128
#: A handshake that takes longer gives up its slot: it waits for its network, or is dead.
PLACE_S = 1.0
_LOOK_S = 0.1


class HeldCarrier(Protocol):
    """The connection of a link."""

    peer_shut: bool

    def pause_reading(self) -> None:
        """Leave what arrives in the kernel."""

    def resume_reading(self) -> None:
        """Read it."""


class Shaking(Protocol):
    """A link in its handshake."""

    closed_because: str

    @property
    def carrier(self) -> HeldCarrier:
        """Its connection."""

    def lost(self, why: str) -> None:
        """End it."""


class Handshakes:
    """Reads a limited number of links at a time, until each is ready or gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int = MOST_AT_ONCE) -> None:
        self._loop = loop
        self._most = most
        self._served: dict[Shaking, float] = {}  # since when, oldest first
        self._waiting: dict[Shaking, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._served) + len(self._waiting)

    def came(self, link: Shaking) -> None:
        """Add an accepted connection from which nothing was read."""
        if len(self._served) < self._most:
            self._served[link] = self._loop.time()
            return
        link.carrier.pause_reading()
        self._waiting[link] = None
        if self._timer is None:
            self._timer = self._loop.call_later(_LOOK_S, self._look)

    def over(self, link: Shaking) -> None:
        """Remove a link that is ready or gone; the next one may start."""
        if self._served.pop(link, None) is not None:
            self._serve_next()
        else:
            self._waiting.pop(link, None)

    def close(self) -> None:
        """Stop serving."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _serve_next(self) -> None:
        while self._waiting and len(self._served) < self._most:
            link, _ = self._waiting.popitem()
            if link.carrier.peer_shut:
                link.lost("left before its turn")  # a handshake would be wasted
            elif not link.closed_because:
                self._served[link] = self._loop.time()
                link.carrier.resume_reading()

    def _look(self) -> None:
        """Free the slots of links that have held theirs for too long."""
        since = self._loop.time() - PLACE_S
        for link in [it for it, began in self._served.items() if began < since]:
            del self._served[link]
        self._serve_next()
        self._timer = self._loop.call_later(_LOOK_S, self._look) if self._waiting else None
