"""The agent's side of a link: connects, sends Hello, waits for Welcome, accepts dials."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from typing_extensions import override

from isthmus import __version__
from isthmus.errors import LinkError, LinkStage, ProtocolError
from isthmus.links.grpc import HALF_CLOSE, PATH, GrpcTalk
from isthmus.links.link import Link, LinkTerms
from isthmus.links.mux import MuxTalk
from isthmus.links.talk import (
    FEATURES,
    NETWORK,
    PROCESS,
    ZONE,
    Incoming,
    choose,
    features_header,
    features_in,
    features_said,
    process_in,
)
from isthmus.net.connect import Address, Connecting
from isthmus.net.contexts import offer
from isthmus.net.poller import Poller
from isthmus.net.rules_near import ZONE_LABEL
from isthmus.tunnel.end import Ending
from isthmus.tunnel.http2_stream import NOBODY, Http2Stream
from isthmus.tunnel.packet_link import PacketLink
from isthmus.tunnel.stream import Stream
from isthmus.values import AgentId, ServerId
from isthmus.wire.alpn import RELAY_ALPN, asked_for, is_askable
from isthmus.wire.grpc import CONTENT_TYPE, Status, read_status, response_problem
from isthmus.wire.http2 import Headers
from isthmus.wire.link_pb2 import Control, Hello, Welcome

_CONNECT_S = 10.0
_MAX_IDS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentGreeting:
    """What an agent says about itself; ``process`` is the prefix of its connection ids."""

    agent_id: AgentId
    identifiers: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    network: str = ""
    token: str = field(default="", repr=False)
    features: tuple[str, ...] = ()
    process: str = ""
    instance: str = ""


def _wanted(link: ServerLink) -> bool:
    return True


def _unheard() -> None:
    pass


def _unheard_of(link: ServerLink) -> None:
    pass


def _not_resumed(link: ServerLink, why: str) -> None:
    link.lost(why)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHooks:
    """Callbacks for the events of links to servers.

    ``claim(link)`` is called when the server has sent its id, before any dial is accepted; False
    makes the link ``spare``: it drains from the beginning, and dials that the server sent before it
    knew are reset without an answer, so that the server tries elsewhere; konnectivity's protocol
    cannot express that, so there they are served. ``on_membership()`` is called when
    ``server_count`` or ``servers``, the ids of all servers that this one knows, changed, or when
    the server announced that it drains, at ``drained_at``. ``on_suspended(link, why)`` finds
    another connection for the link; ``on_resumed(link)`` reports that it has one.
    """

    on_dial: Callable[[Incoming], None]
    claim: Callable[[ServerLink], bool] = _wanted
    on_membership: Callable[[], None] = _unheard
    on_suspended: Callable[[ServerLink, str], None] = _not_resumed
    on_resumed: Callable[[ServerLink], None] = _unheard_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOpening:
    """How one connection is opened: the certificate's name, the greeting, and the ALPN names.

    ``alpn`` is the offer for this connection; empty leaves it to the context.
    """

    context: ssl.SSLContext
    server_hostname: str
    greeting: AgentGreeting
    alpn: tuple[str, ...] = ()


class ServerLink(Link):
    """A link to a server, as an agent sees it.

    ``features`` are the features that the server announced; None: none announced, as with
    konnectivity's own, or no welcome yet.
    """

    divides = True

    def __init__(
        self, terms: LinkTerms, hooks: ServerHooks, sock: socket.socket, opening: LinkOpening
    ) -> None:
        self.server_id = ServerId("")
        self.server_count = 1
        self.servers: frozenset[ServerId] = frozenset()
        self.features: frozenset[str] | None = None
        self.spare = False
        self.drained_at: float | None = None
        # What resumes the link: its number at the server, and a secret that changes every time.
        self.resume_link = self.resume_token = b""
        self.resume_epoch = 0
        self.was_asked_for = False  # by id, so another server may have handed the connection on
        self.opening = opening
        self._hooks = hooks
        self.welcomed: asyncio.Future[None] = terms.loop.create_future()
        self.over: asyncio.Future[str] = terms.loop.create_future()
        if opening.alpn:
            offer(opening.context, opening.alpn)
        super().__init__(
            terms,
            sock,
            opening.context,
            server_hostname=opening.server_hostname,
            on_dial=hooks.on_dial,
            on_closed=self._report,
        )
        self.carrier.begin()

    @property
    @override
    def peer_kind(self) -> str:
        return "server"

    @property
    @override
    def peer_id(self) -> str:
        return self.server_id

    @override
    def choose_talk(self, alpn: str | None) -> MuxAgentTalk | GrpcAgentTalk:
        """Our own protocol if the server supports it, otherwise konnectivity's."""
        self.was_asked_for = alpn is not None and bool(asked_for([alpn]))
        return MuxAgentTalk(self) if choose(alpn, self.terms.only) else GrpcAgentTalk(self)

    def welcome(
        self,
        server_id: str,
        server_count: int,
        servers: Iterable[str] = (),
        *,
        features: frozenset[str] | None,
        version: str = "",
    ) -> None:
        """The server sent its id and the number of servers, possibly with their ids."""
        if not server_id:
            raise ProtocolError("link: welcome without a server id")
        self.server_id = ServerId(server_id)
        self.server_count = max(1, server_count)
        self.servers = _askable(servers)
        self.features = features
        self.version = version
        self.spare = not self._hooks.claim(self)
        if self.spare:
            # Before the first ping, so that its answer also means that no further dial follows.
            self.drain(turn_away=True)
        self.be_ready()
        if not self.welcomed.done():
            self.welcomed.set_result(None)

    def members_changed(self, server_count: int, servers: Iterable[str] = ()) -> None:
        """The number or the ids of the servers changed."""
        self.server_count = max(1, server_count)
        self.servers = _askable(servers)
        self._hooks.on_membership()

    @override
    def told_to_drain(self) -> None:
        super().told_to_drain()
        if self.drained_at is None:
            self.drained_at = self.loop.time()
            self._hooks.on_membership()

    @override
    def on_suspended(self, why: str) -> None:
        self._hooks.on_suspended(self, why)

    @override
    def on_resumed(self) -> None:
        self._hooks.on_resumed(self)

    def make_spare(self) -> None:
        """Another link replaces it: accept no new dials; open tunnels continue."""
        self.spare = True
        self.drain(turn_away=True)

    @property
    def unused(self) -> bool:
        """Whether it is a spare link, known as such to its server, with nothing left to serve."""
        told = self.talk is not None and self.talk.round_trip_s > 0.0
        return self.spare and told and not self.load

    def _report(self, link: Link) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(LinkError(self.closed_because, self.stage))
            self.welcomed.exception()  # marks it as retrieved: an unread error is fine
        if not self.over.done():
            self.over.set_result(self.closed_because)


def _askable(servers: Iterable[str]) -> frozenset[ServerId]:
    """The ids that can be requested by ALPN, at most as many as an agent looks for."""
    return frozenset(ServerId(each) for each in islice(filter(is_askable, servers), _MAX_IDS))


async def connect(
    terms: LinkTerms,
    hooks: ServerHooks,
    opening: LinkOpening,
    address: Address,
    *,
    through: Callable[[], Awaitable[socket.socket]] | None = None,
    kind: Callable[..., ServerLink] = ServerLink,
) -> ServerLink:
    """Connect to one address of a server and wait for its Welcome.

    ``through`` makes the connection instead, through a proxy; ``kind`` creates the link.

    Raises:
        LinkError: the server could not be reached, is not an Isthmus or konnectivity server, or
            refused the agent.
    """
    poller = terms.poller
    sock = await (through() if through is not None else reach(terms.loop, poller, address))
    try:
        link = kind(terms, hooks, sock, opening)
    except BaseException:
        poller.close(sock)
        raise
    link.carrier.read_again()  # data that arrived before registration will not trigger another edge
    try:
        await asyncio.shield(link.welcomed)
    except asyncio.CancelledError:
        link.close("cancelled")
        raise
    return link


async def reach(loop: asyncio.AbstractEventLoop, poller: Poller, address: Address) -> socket.socket:
    reached: asyncio.Future[socket.socket] = loop.create_future()

    def connected(sock: socket.socket, events: int) -> None:
        if reached.cancelled():
            poller.close(sock)
        else:
            reached.set_result(sock)

    def failed(failure: object, detail: str) -> None:
        if not reached.done():
            reached.set_exception(LinkError(detail, LinkStage.CONNECT))

    attempt = Connecting(
        loop, poller, [address], timeout_s=_CONNECT_S, connected=connected, failed=failed,
        for_peer=False,
    )  # fmt: skip
    try:
        return await reached
    except asyncio.CancelledError:
        attempt.cancel()
        if reached.done() and not reached.cancelled() and reached.exception() is None:
            poller.close(reached.result())  # connected, but cancelled before the callback
        raise


class MuxAgentTalk(MuxTalk):
    """Sends Hello and waits for Welcome."""

    def __init__(self, link: ServerLink) -> None:
        super().__init__(link, client=True)
        self._server_link = link

    def begin(self) -> None:
        """Open the control stream and send Hello."""
        stream = self.session.open()
        assert stream is not None  # the first stream of a new session
        self.attach_control(stream)
        greeting = self._server_link.opening.greeting
        self.tell(
            Control(
                hello=Hello(
                    agent_id=greeting.agent_id,
                    identifiers=greeting.identifiers,
                    labels=greeting.labels,
                    network=greeting.network,
                    token=greeting.token,
                    version=__version__,
                    features=greeting.features,
                    relay=self.relays,
                    resumes=self.replaceable is not None,
                    instance=greeting.instance,
                )
            )
        )

    def told(self, message: Control) -> None:
        """Handle Welcome, once; a refusal; a change of membership; and common messages."""
        link = self._server_link
        kind = message.WhichOneof("message")
        if kind == "welcome":
            if link.ready:
                raise ProtocolError("link: second welcome")
            self._welcome(message.welcome)
        elif kind == "refusal":
            link.lost(f"refused by the server: {message.refusal.reason}", LinkStage.REFUSED)
        elif kind == "membership":
            link.members_changed(message.membership.server_count, message.membership.servers)
        else:
            super().told(message)

    def _welcome(self, welcome: Welcome) -> None:
        if welcome.stream_window:
            self.session.first_window = min(self.session.first_window, welcome.stream_window)
        if self.replaceable is not None and welcome.link and welcome.resume_s:
            self._server_link.resume_link = welcome.link
            self._server_link.resume_token = welcome.resume_token
            self.agree_to_last(float(welcome.resume_s))
        else:
            self.end_with_connection()
        self._server_link.welcome(
            welcome.server_id,
            welcome.server_count,
            welcome.servers,
            features=features_said(welcome.features),
            version=welcome.version,
        )


#: Go's server ends connections that ping more often than every 30 s (its enforcement policy).
PING_EVERY_S = 31.0
_PONG_S = 20.0


class CalledPackets(PacketLink):
    """The packets of a call that we made; the talk handles its headers and trailers."""

    talk: GrpcAgentTalk

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """Pass on the response, or the trailers."""
        self.talk.got_headers(headers, end)


class GrpcAgentTalk(GrpcTalk):
    """Calls a konnectivity server and dials on its behalf."""

    def __init__(self, link: ServerLink) -> None:
        super().__init__(
            link,
            client=True,
            process=link.opening.greeting.process,
            ping_every_s=PING_EVERY_S,
            dead_after_s=PING_EVERY_S + _PONG_S,
        )
        self._server_link = link

    def begin(self) -> None:
        """Call."""
        link = self._server_link
        stream = self.session.open(NOBODY)
        assert stream is not None  # the first stream of a new connection
        packets = CalledPackets(
            stream,
            self,
            agent=True,
            clock=self.session.clock,
            counts=link.terms.packets,
            account=link.account,
        )
        packets.talk = self
        stream.handler = packets
        self.packets = packets
        greeting = link.opening.greeting
        token, zone = greeting.token, greeting.labels.get(ZONE_LABEL, "")
        stream.send_headers(
            (
                (b":method", b"POST"),
                (b":scheme", b"https"),
                (b":path", PATH),
                (b":authority", link.opening.server_hostname.encode()),
                (b"content-type", CONTENT_TYPE),
                (b"user-agent", f"isthmus/{__version__}".encode()),
                (b"te", b"trailers"),
                (b"agentid", greeting.agent_id.encode()),
                (b"agentidentifiers", greeting.identifiers.encode()),
                (HALF_CLOSE, b"1"),
                features_header(greeting.features),
                *(((PROCESS, greeting.process.encode()),) if greeting.process else ()),
                *(((ZONE, zone.encode()),) if zone else ()),
                *(((NETWORK, greeting.network.encode()),) if greeting.network else ()),
                *(((b"authorization", b"Bearer " + token.encode()),) if token else ()),
            ),
            secret=bool(token),
        )

    def tick(self) -> bool:
        """Also leave a server that is going away (Go's, when it drains) once no tunnel is open."""
        if self.session.remote_draining and not self.load:
            self.link.close("the server is going away")
            return True
        return super().tick()

    def got_headers(self, headers: Headers, end: bool) -> None:
        """Read the server's id, or why the call ended."""
        link = self._server_link
        problem = None if link.was_ready else response_problem(headers)  # trailers have no :status
        if problem is None and end:
            problem = read_status(headers)
        if problem is not None:
            self._refused(*problem)
        elif not link.was_ready:
            ids = [value for name, value in headers if name == b"serverid"]
            counts = [value for name, value in headers if name == b"servercount"]
            if len(ids) != 1 or len(counts) != 1 or not counts[0].isdigit():
                link.lost("the server did not send serverID and serverCount", LinkStage.PROTOCOL)
                return
            assert self.packets is not None
            self.packets.half_closes = any(name == HALF_CLOSE for name, _ in headers)
            self.peer_process = process_in(value for name, value in headers if name == PROCESS)
            link.welcome(
                ids[0].decode("utf-8", "replace"),
                int(counts[0][:9]),
                features=features_in(value for name, value in headers if name == FEATURES),
            )

    def _refused(self, status: Status, text: str) -> None:
        link = self._server_link
        stage = LinkStage.LOST if link.was_ready else LinkStage.REFUSED
        link.lost(f"the server ended the call: {status.go_name} {text}".rstrip(), stage)

    def refuse(self, reason: str) -> None:
        """Do nothing: only a server refuses."""


class PeerLink(ServerLink):
    """A link to another server that relays dials to its agents: this side opens them.

    The connection is made as an agent makes it, to the same port, under a separate ALPN name.
    One hop at most: dials on such a link are for the other server's own agents, and it opens
    nothing here. dial/dialers/through_agent.py chooses when to use which link.
    ``agents`` is how many agents the other server reported.
    """

    agents = 0

    def choose_talk(self, alpn: str | None) -> MuxAgentTalk:
        """Our own protocol, and only with a server that relays.

        Raises:
            ProtocolError: the server does not relay, or no longer.
        """
        if alpn != RELAY_ALPN:
            raise ProtocolError("the server does not relay: set --peer-relay-name there")
        return MuxPeerTalk(self)

    @property
    def can_relay(self) -> bool:
        """Whether the other server could relay a dial now, as far as known."""
        return self.agents > 0 and self.takes_dials


class MuxPeerTalk(MuxAgentTalk):
    """Dials of this side are relayed; none are accepted from the other side."""

    relays = True

    def __init__(self, link: PeerLink) -> None:
        super().__init__(link)
        self._peer_link = link

    def told(self, message: Control) -> None:
        """Also handle the number of the other server's agents."""
        if message.HasField("load"):
            self._peer_link.agents = message.load.agents
        else:
            super().told(message)

    def accept_stream(self, stream: Stream) -> None:
        """Accept nothing: the other server has its own agents to dial through."""
        stream.abort(Ending.PROTOCOL)
