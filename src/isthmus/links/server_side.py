"""The server's side of a link: learns who the agent is, and whether it is welcome."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from isthmus.links.grpc_server import GrpcServerTalk
from isthmus.links.hello import Unwelcome
from isthmus.links.link import HANDSHAKE_S, Link
from isthmus.links.mux_server import MuxServerTalk
from isthmus.links.talk import Incoming, choose
from isthmus.links.unproven import MayRead, Unproven
from isthmus.net.poller import Poller
from isthmus.net.rules_near import ZONE_LABEL
from isthmus.settings.identifiers import Identifiers
from isthmus.tunnel.budget import UNBOUNDED, Budget
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.message_reader import PacketCounts
from isthmus.values import ANONYMOUS, AgentId, ServerId
from isthmus.wire.link import RELAY_ALPN


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a server tells its agents about itself and the set of servers.

    ``servers`` are ids, if known; ``features`` are this one's, said once, in its welcome.
    """

    server_id: ServerId
    server_count: int = 1
    servers: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


class Decided(Protocol):
    """Takes the verdict on an agent: "" or why it is not welcome."""

    def __call__(self, refusal: str, kind: Unwelcome = Unwelcome.NO_PROOF, /) -> None:
        """Let the agent in, or turn it away."""


#: Asks whether an agent with this token is welcome; answers now or later.
Admit = Callable[["AgentLink", str, Decided], None]


def _any_bytes(size: int) -> bool:
    """Read whatever fits into a greeting."""
    return True


def _everybody(link: AgentLink, token: str, decided: Decided) -> None:
    """Admit every agent that TLS admitted."""
    decided("")


class AgentLink(Link):
    """A link to an agent, as a server sees it.

    ``features`` is what the agent says that it can do; None: it says nothing, as konnectivity's own
    does. ``on_dial`` hears what the agent asks for: nothing that such a dial says of itself is
    proved, only who the agent is. ``may_read`` is asked about everything that comes before it is
    welcome.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        membership: Callable[[], Membership],
        on_ready: Callable[[AgentLink], None],
        on_dial: Callable[[Incoming], None],
        on_closed: Callable[[Link], None],
        admit: Admit = _everybody,
        only: str = "auto",
        packets: PacketCounts | None = None,
        handshake_s: float = HANDSHAKE_S,
        limits: Limits = Limits(),
        budget: Budget = UNBOUNDED,
        process: str = "",
        may_read: MayRead = _any_bytes,
    ) -> None:
        self._may_read = may_read
        self.unproven_bytes = 0  # that it said before it was welcome
        self.agent_id = AgentId("")
        self.identifiers = Identifiers()
        self.labels: dict[str, str] = {}
        self.zone = ""
        self.network = ""  # konnectivity's agents name none
        self.features: frozenset[str] | None = None
        self.relays = False  # it is another server, which opens relayed dials and takes none
        self.is_extra = False  # this agent has another link already
        self.audited = False  # why it was refused has been said
        self.refused_as = Unwelcome.NO_PROOF
        self.packets = packets if packets is not None else PacketCounts()
        self.process = process  # what connection ids begin with
        self._membership = membership
        self._on_ready = on_ready
        self._admit = admit
        self._only = only
        super().__init__(
            loop,
            poller,
            sock,
            context,
            server_hostname=None,
            on_dial=on_dial,
            on_closed=on_closed,
            handshake_s=handshake_s,
            limits=limits,
            budget=budget,
        )

    @property
    def peer_kind(self) -> str:
        """See Link."""
        return "server" if self.relays else "agent"

    @property
    def peer_id(self) -> str:
        """See Link."""
        return self.agent_id

    def choose_talk(self, alpn: str | None) -> MuxServerTalk | GrpcServerTalk:
        """Our own protocol with our own agents and servers, konnectivity's with every other."""
        if alpn == RELAY_ALPN:
            self.relays = self.divides = True
            return MuxServerTalk(self)
        return MuxServerTalk(self) if choose(alpn, self._only) else GrpcServerTalk(self)

    def secured(self) -> None:
        """See Link; until the agent is welcome, what it says is counted."""
        super().secured()
        session = self.carrier.session
        if session is not None and not self.ready:
            self.carrier.session = Unproven(session, self._may_read)

    def greeted(
        self,
        *,
        agent_id: str,
        identifiers: Identifiers,
        labels: dict[str, str],
        network: str,
        version: str,
        token: str,
        features: frozenset[str] | None = None,
    ) -> None:
        """The agent said who it is, within the bounds of hello_fault: see whether it is welcome."""
        self.agent_id = AgentId(agent_id)
        self.identifiers = identifiers
        self.labels = labels
        self.zone = labels.get(ZONE_LABEL, "")
        self.network = network
        self.version = version
        self.features = features
        self._admit(self, token, self._decided)

    def turn_away(self, reason: str, kind: Unwelcome) -> None:
        """Refuse the agent; the kind is for a talk that can say it."""
        self.refused_as = kind
        self.refuse(reason)

    def _decided(self, refusal: str, kind: Unwelcome = Unwelcome.NO_PROOF, /) -> None:
        if self.closed_because or self._closing:
            return  # it did not wait for the verdict
        if refusal:
            self.turn_away(refusal, kind)
            return
        if self.identity is not ANONYMOUS:
            self.pays_as(self.identity)  # whose token it is, where that is the proof
        assert isinstance(self.talk, MuxServerTalk | GrpcServerTalk)
        self.talk.welcome(self._membership())
        counted = self.carrier.session
        if isinstance(counted, Unproven):
            self.unproven_bytes = counted.read_bytes
            self.carrier.session = counted.session
        self.be_ready()
        self._on_ready(self)

    def tell_agents(self, number: int) -> None:
        """Tell another server how many agents could take its dials."""
        if self.ready and isinstance(self.talk, MuxServerTalk):
            self.talk.tell_agents(number)

    def tell_membership(self) -> None:
        """The set of servers changed: tell an agent that can hear it."""
        if self.ready and isinstance(self.talk, MuxServerTalk):
            self.talk.tell_membership(self._membership())
