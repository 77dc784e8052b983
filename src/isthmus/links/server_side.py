"""The server's side of a link: identifies the agent, and admits or refuses it."""

from __future__ import annotations

import math
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from isthmus import __version__
from isthmus.errors import ProtocolError
from isthmus.links.grpc import HALF_CLOSE, PATH, GrpcTalk
from isthmus.links.link import GOODBYE_S, Link, LinkTerms
from isthmus.links.mux import STREAM_WINDOW_BYTES, MuxTalk
from isthmus.links.resuming import FirstMessage, ResumeKey
from isthmus.links.talk import (
    FEATURES,
    NETWORK,
    PROCESS,
    ZONE,
    Incoming,
    Unwelcome,
    choose,
    features_header,
    features_in,
    features_said,
    hello_fault,
    process_in,
)
from isthmus.net.rules_near import ZONE_LABEL
from isthmus.settings.identifiers import Identifiers
from isthmus.text.text_limits import MAX_VERSION_CHARS, cut, plain
from isthmus.tunnel.http2_stream import NOBODY, Handler, Http2Stream
from isthmus.tunnel.packet_link import PacketLink
from isthmus.tunnel.session import Carried
from isthmus.tunnel.stream import Stream
from isthmus.values import ANONYMOUS, AgentId, ServerId
from isthmus.wire.alpn import RELAY_ALPN, is_resuming
from isthmus.wire.grpc import CONTENT_TYPE, Refusal, Status, request_problem, status_headers
from isthmus.wire.http2 import ErrorCode, Headers, Http2Error, header
from isthmus.wire.link import to_bytes
from isthmus.wire.link_pb2 import Control, Load, Resume, Resumed, Welcome
from isthmus.wire.link_pb2 import Membership as MembershipMessage
from isthmus.wire.link_pb2 import Refusal as RefusalMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a server tells its agents about itself and the set of servers.

    ``servers`` are ids, if known; ``features`` are this server's, sent once, in its welcome.
    """

    server_id: ServerId
    server_count: int = 1
    servers: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


class Decided(Protocol):
    """Takes the decision on an agent: "" or the reason of the refusal."""

    def __call__(self, refusal: str, kind: Unwelcome = Unwelcome.NO_PROOF, /) -> None:
        """Admit or refuse the agent."""


#: Decides whether to admit an agent with this token; answers now or later.
Admit = Callable[["AgentLink", str, Decided], None]


def _any_bytes(source: str, size: int) -> bool:
    return True


def _no_resume(link: AgentLink, message: Resume) -> None:
    link.refuse_resume("this server resumes no links")


def _not_resumed(link: AgentLink, why: str) -> None:
    link.lost(why)


def _unheard(link: AgentLink) -> None:
    pass


def _everybody(link: AgentLink, token: str, decided: Decided) -> None:
    """Admit every agent that passed TLS."""
    decided("")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHooks:
    """Callbacks for the events of links to agents.

    ``on_dial`` receives the agent's requests: the agent is authenticated, but nothing that such a
    dial says about itself is proved. ``may_read`` is called for all bytes from an address before
    its agent is admitted. ``on_resume(link, message)`` decides whether another link continues on
    the connection of this one; ``on_suspended`` and ``on_resumed`` report that a link lost its
    connection, or has another one.
    """

    membership: Callable[[], Membership]
    on_ready: Callable[[AgentLink], None]
    on_dial: Callable[[Incoming], None]
    on_closed: Callable[[Link], None]
    on_resume: Callable[[AgentLink, Resume], None] = _no_resume
    on_suspended: Callable[[AgentLink, str], None] = _not_resumed
    on_resumed: Callable[[AgentLink], None] = _unheard
    admit: Admit = _everybody
    may_read: Callable[[str, int], bool] = _any_bytes


class AgentLink(Link):
    """A link to an agent, as a server sees it.

    ``features`` are the features that the agent announced; None: none announced, as with
    konnectivity's own.
    """

    def __init__(
        self,
        terms: LinkTerms,
        hooks: AgentHooks,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        handshake_s: float | None = None,
    ) -> None:
        self._hooks = hooks
        self.unproven_bytes = 0  # received before it was admitted
        self.agent_id = AgentId("")
        self.identifiers = Identifiers()
        self.labels: dict[str, str] = {}
        self.zone = ""
        self.network = ""  # empty for konnectivity's agents
        self.features: frozenset[str] | None = None
        self.relays = False  # the peer is a server, which opens relayed dials and accepts none
        self.is_extra = False  # this agent already has another link
        self.audited = False  # the refusal was audited
        self.refused_as = Unwelcome.NO_PROOF
        self.key: ResumeKey | None = None  # to resume it
        self.instance = ""  # of the agent's process
        self.gave_way = False  # its connection carries another link now
        super().__init__(
            terms,
            sock,
            context,
            server_hostname=None,
            on_dial=hooks.on_dial,
            on_closed=hooks.on_closed,
            handshake_s=handshake_s,
        )

    @property
    @override
    def peer_kind(self) -> str:
        return "server" if self.relays else "agent"

    @property
    @override
    def peer_id(self) -> str:
        return self.agent_id

    @override
    def choose_talk(self, alpn: str | None) -> MuxServerTalk | GrpcServerTalk:
        """Our own protocol with Isthmus programs, konnectivity's with all others."""
        if alpn == RELAY_ALPN:
            self.relays = self.divides = True
            return MuxServerTalk(self)
        return MuxServerTalk(self) if choose(alpn, self.terms.only) else GrpcServerTalk(self)

    @override
    def secured(self) -> None:
        """Count the agent's bytes until it is admitted."""
        if is_resuming(self.carrier.tls.selected_alpn_protocol()):
            self.identify()
            self.carrier.session = FirstMessage(Resume, self._resume)
        else:
            super().secured()
        session = self.carrier.session
        if session is not None and not self.ready:
            self.carrier.session = Unproven(session, self._hooks.may_read, self.source)

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
        """The agent sent its greeting, within the limits of hello_fault: decide on it."""
        self.agent_id = AgentId(agent_id)
        self.identifiers = identifiers
        self.labels = labels
        self.zone = labels.get(ZONE_LABEL, "")
        self.network = network
        self.version = version
        self.features = features
        self._hooks.admit(self, token, self._decided)

    def _resume(self, message: Resume, rest: bytes) -> None:
        if rest:
            raise ProtocolError("link: more than a Resume, before its answer")
        self._hooks.on_resume(self, message)

    def refuse_resume(self, why: str, *, later: bool = False) -> None:
        """Tell the agent that its link does not continue on this connection, and close it."""
        if not self.closed_because:
            self.carrier.send(to_bytes(Resumed(refusal=why, later=later)))
            self.carrier.say_goodbye()
            self._set_timer(GOODBYE_S, self.lost, f"not resumed: {why}")

    def greet_like(self, link: AgentLink) -> None:
        """Copy what the agent declared on the link that it resumes: it declares nothing new."""
        self.agent_id, self.identifiers, self.labels = link.agent_id, link.identifiers, link.labels
        self.zone, self.network, self.version = link.zone, link.network, link.version
        self.features, self.relays = link.features, link.relays

    def give_way(self, link: AgentLink, message: Resume) -> None:
        """Continue another link on this connection.

        Raises:
            ProtocolError: the offset is impossible; both links are unchanged.
        """
        assert link.key is not None and link.lasting is not None
        if not link.lasting.can_go_on(message.received):
            raise ProtocolError(f"link: cannot resume at {message.received}")
        received = link.detach()
        link.key.turn(message, received)
        carrier = self.carrier
        carrier.session = None
        carrier.send(to_bytes(Resumed(received=received, next_token=link.key.token)))
        self.gave_way = True
        self.lost("it carries another link")
        link.go_on(carrier, message.received)

    @override
    def close_connection(self) -> None:
        if not self.gave_way:
            super().close_connection()

    @override
    def on_suspended(self, why: str) -> None:
        self._hooks.on_suspended(self, why)

    @override
    def on_resumed(self) -> None:
        self._hooks.on_resumed(self)

    def turn_away(self, reason: str, kind: Unwelcome) -> None:
        """Refuse the agent; ``kind`` is for a talk that can express it."""
        self.refused_as = kind
        self.refuse(reason)

    def _decided(self, refusal: str, kind: Unwelcome = Unwelcome.NO_PROOF, /) -> None:
        if self.closed_because or self._closing:
            return  # the agent left before the decision
        if refusal:
            self.turn_away(refusal, kind)
            return
        if self.identity is not ANONYMOUS:
            self.pays_as(self.identity)  # the owner of the token, if a token is the proof
        assert isinstance(self.talk, MuxServerTalk | GrpcServerTalk)
        self.talk.welcome(self._hooks.membership())
        counted = self.carrier.session
        if isinstance(counted, Unproven):
            self.unproven_bytes = counted.read_bytes
            self.carrier.session = counted.session
        self.be_ready()
        self._hooks.on_ready(self)

    def tell_agents(self, number: int) -> None:
        """Tell another server how many agents could serve its dials."""
        if self.ready and isinstance(self.talk, MuxServerTalk):
            self.talk.tell_agents(number)

    def tell_membership(self) -> None:
        """The set of servers changed: tell an agent that supports this."""
        if self.ready and isinstance(self.talk, MuxServerTalk):
            self.talk.tell_membership(self._hooks.membership())


class MuxServerTalk(MuxTalk):
    """Waits for Hello and answers Welcome."""

    def __init__(self, link: AgentLink) -> None:
        super().__init__(link, client=False)
        self._agent_link = link
        self._greeted = False

    def begin(self) -> None:
        """Start our streams with small windows; the agent opens the control stream."""
        self.session.first_window = STREAM_WINDOW_BYTES

    def accept_stream(self, stream: Stream) -> None:
        """Treat the first stream as the control stream, every other as a dial."""
        if self.control is None:
            self.attach_control(stream)
        else:
            super().accept_stream(stream)

    def told(self, message: Control) -> None:
        """Handle Hello, once, and common messages."""
        if message.HasField("hello"):
            if self._greeted:
                raise ProtocolError("link: second hello")
            self._greeted = True
            hello = message.hello
            self._agent_link.instance = cut(hello.instance, MAX_VERSION_CHARS)
            if not hello.resumes or self._agent_link.relays:
                self.end_with_connection()
            if hello.relay != self._agent_link.relays:
                raise ProtocolError("link: the kind of hello differs from ALPN")
            labels = dict(hello.labels)
            fault = hello_fault(
                agent_id=hello.agent_id,
                identifiers=hello.identifiers,
                labels=labels,
                network=hello.network,
                token=hello.token,
            )
            if fault:
                self._agent_link.turn_away(fault, Unwelcome.BAD_HELLO)
                return
            try:
                identifiers = Identifiers.read_claim(hello.identifiers)
            except ValueError as exc:
                self._agent_link.turn_away(f"identifiers: {exc}", Unwelcome.BAD_HELLO)
                return
            self._agent_link.greeted(
                agent_id=hello.agent_id,
                identifiers=identifiers,
                labels=labels,
                network=hello.network,
                version=cut(hello.version, MAX_VERSION_CHARS),
                token=hello.token,
                features=features_said(hello.features),
            )
        elif not self._greeted:
            raise ProtocolError("link: hello expected first")
        else:
            super().told(message)

    def welcome(self, membership: Membership) -> None:
        """Send our id, the number of servers, and what resumes the link."""
        key, resume_s = None, self.link.terms.resume_s
        if self.replaceable is not None:
            key = self._agent_link.key = ResumeKey()
            self.agree_to_last(resume_s)
        self.tell(
            Control(
                welcome=Welcome(
                    server_id=membership.server_id,
                    server_count=membership.server_count,
                    servers=membership.servers,
                    stream_window=STREAM_WINDOW_BYTES,
                    max_streams=self.link.limits.max_streams,
                    version=__version__,
                    features=membership.features,
                    link=key.link if key is not None else b"",
                    resume_token=key.token if key is not None else b"",
                    resume_s=math.ceil(resume_s) if key is not None else 0,
                )
            )
        )

    def tell_agents(self, number: int) -> None:
        """Tell another server how many agents could serve its dials."""
        self.tell(Control(load=Load(agents=number)))

    def tell_membership(self, membership: Membership) -> None:
        self.tell(
            Control(
                membership=MembershipMessage(
                    server_count=membership.server_count, servers=membership.servers
                )
            )
        )

    def refuse(self, reason: str) -> None:
        self.tell(Control(refusal=RefusalMessage(reason=reason)))


#: Go's agent logs the status and retries whatever it is; people and other agents can use it.
STATUS = {
    Unwelcome.BAD_HELLO: Status.INVALID_ARGUMENT,
    Unwelcome.NO_PROOF: Status.UNAUTHENTICATED,
    Unwelcome.NOT_ENTITLED: Status.PERMISSION_DENIED,
    Unwelcome.TRY_LATER: Status.UNAVAILABLE,
}


class GrpcServerTalk(GrpcTalk):
    """The server's side of a call from a konnectivity agent."""

    def __init__(self, link: AgentLink) -> None:
        # Go's agent answers pings at any rate; liveness is checked as on our own links.
        super().__init__(
            link,
            client=False,
            process=link.terms.process,
            ping_every_s=link.limits.ping_every_s,
            dead_after_s=link.limits.dead_after_s,
        )
        self._agent_link = link
        self._call: Http2Stream | None = None
        self._half_closes = False
        self._refused = 0
        self.session.on_request = self._request

    def begin(self) -> None:
        """Do nothing: the agent calls."""

    def _request(self, stream: Http2Stream, headers: Headers) -> Handler:
        refusal = request_problem(headers)
        if refusal is None and header(headers, b":path") != PATH:
            path = plain(header(headers, b":path"))
            refusal = _no(Status.UNIMPLEMENTED, f"unknown method {path}")
        if refusal is None and self._call is not None:
            refusal = _no(Status.ALREADY_EXISTS, "this connection already has a call")
        if refusal is None:
            refusal = self._greeted(stream, headers)
        if refusal is not None:
            self._refused += 1
            if self._refused > _MOST_REFUSED:
                raise Http2Error(
                    ErrorCode.ENHANCE_YOUR_CALM, "too many requests other than the call"
                )
            stream.send_headers(tuple(refusal.to_headers()), end=True)
            bad_hello = refusal.http_status == 200 and refusal.status is Status.INVALID_ARGUMENT
            if bad_hello and self._call is None:
                # The agent will not improve. Close later: this is called while reading.
                self.link.loop.call_soon(self.link.refuse, refusal.message)
            return NOBODY
        return self.packets if self._agent_link.ready and self.packets is not None else NOBODY

    def _greeted(self, stream: Http2Stream, headers: Headers) -> Refusal | None:
        fields: dict[bytes, list[bytes]] = {}
        for name, value in headers:
            fields.setdefault(name, []).append(value)
        ids = fields.get(b"agentid", [])
        if len(ids) != 1 or not ids[0]:
            return _no(Status.INVALID_ARGUMENT, f"expected one agentID, got {len(ids)}")
        claims = fields.get(b"agentidentifiers", [])
        if len(claims) > 1:
            return _no(Status.INVALID_ARGUMENT, f"expected one agentIdentifiers, got {len(claims)}")
        networks = fields.get(NETWORK, [b""])
        if len(networks) > 1:
            return _no(Status.INVALID_ARGUMENT, f"expected one network, got {len(networks)}")
        agent_id, claim = _text(ids[0]), _text(claims[0]) if claims else ""
        authorization = _text(fields.get(b"authorization", [b""])[0])
        token = authorization.removeprefix("Bearer ").strip()
        zone = _text(fields.get(ZONE, [b""])[0])
        labels = {ZONE_LABEL: zone} if zone else {}
        network = _text(networks[0])
        fault = hello_fault(
            agent_id=agent_id, identifiers=claim, labels=labels, network=network, token=token
        )
        if fault:
            return _no(Status.INVALID_ARGUMENT, fault)
        try:
            identifiers = Identifiers.read_claim(claim)
        except ValueError as exc:
            return _no(Status.INVALID_ARGUMENT, f"agentIdentifiers: {exc}")
        self._call = stream
        self._half_closes = HALF_CLOSE in fields
        self.peer_process = process_in(fields.get(PROCESS, ()))
        # Answered only after admission: before, the agent is unauthenticated, and Go's agent waits
        # for our headers before it sends anything.
        self.packets = PacketLink(
            stream,
            self,
            agent=False,
            clock=self.session.clock,
            counts=self._agent_link.terms.packets,
            half_closes=self._half_closes,
            account=self.link.account,
        )
        self._agent_link.greeted(
            agent_id=agent_id,
            identifiers=identifiers,
            labels=labels,
            network=network,
            version=cut(_text(header(headers, b"user-agent")), MAX_VERSION_CHARS),
            token=token,
            features=features_in(fields.get(FEATURES, ())),
        )
        return None

    def welcome(self, membership: Membership) -> None:
        """Send our id and the number of servers."""
        assert self._call is not None and self.packets is not None
        self._call.handler = self.packets
        # An agent that supports half-closes is an Isthmus agent.
        process = self._agent_link.terms.process.encode()
        features = features_header(membership.features)
        extra = ((HALF_CLOSE, b"1"), (PROCESS, process), features) if self._half_closes else ()
        self._call.send_headers(
            (
                (b":status", b"200"),
                (b"content-type", CONTENT_TYPE),
                (b"serverid", membership.server_id.encode()),
                (b"servercount", b"%d" % membership.server_count),
                *extra,
            )
        )

    def refuse(self, reason: str) -> None:
        if self._call is not None:
            self._call.send_headers(
                (
                    (b":status", b"200"),
                    (b"content-type", CONTENT_TYPE),
                    *status_headers(STATUS[self._agent_link.refused_as], reason),
                ),
                end=True,
            )

    def drain(self, *, turn_away: bool = False) -> None:
        """Ask an Isthmus agent to open nothing more.

        Go's agent drops its tunnels at GOAWAY and opens nothing itself, so it is not told.
        """
        if self._agent_link.features is not None:
            super().drain()

    def asked(self, protocol: str, address: str, random: int, ours: bytes) -> None:
        """The agent requests a connection; a full or closing link refuses."""
        if not self.link.ready:
            return  # the agent will see the link end, and ask elsewhere
        if self.full:
            assert self.packets is not None
            self.packets.refuse(random, _FULL)
            return
        super().asked(protocol, address, random, ours)

    def nonsense(self, asked: str, random: int, ours: bytes, why: str) -> None:
        """Hand on an invalid request, so that its refusal is counted and audited."""
        self.take(asked[:_MAX_ASKED_CHARS], random, ours)


_MAX_ASKED_CHARS = 300
#: An agent makes one call; the rest allows for people who try curl.
_MOST_REFUSED = 16
_FULL = "dial tcp: socket: too many open files: this link is at its limit of connections"


def _no(status: Status, message: str) -> Refusal:
    return Refusal(http_status=200, status=status, message=message)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


#: A Hello has at most 64 KiB, konnectivity's call about as much; with room for frames.
MAX_UNPROVEN_BYTES = 128 * 1024


class Unproven:
    """Counts what is read from an agent before it is admitted: never more than a greeting needs.

    Stands between the carrier and the session until then; an admitted link pays nothing for it.
    """

    __slots__ = ("_may_read", "_source", "read_bytes", "session")

    def __init__(self, session: Carried, may_read: Callable[[str, int], bool], source: str) -> None:
        self.session = session
        self._source = source
        self.read_bytes = 0
        self._may_read = may_read

    def heard(self) -> None:
        self.session.heard()

    def receive(self, view: memoryview) -> None:
        """Count and pass on received bytes.

        Raises:
            ProtocolError: too many bytes before authentication.
        """
        self.read_bytes += len(view)
        if self.read_bytes > MAX_UNPROVEN_BYTES or not self._may_read(self._source, len(view)):
            raise ProtocolError(
                f"link: the peer sent {self.read_bytes} bytes before authentication"
            )
        self.session.receive(view)

    def flush(self) -> None:
        self.session.flush()

    def resume(self) -> None:
        self.session.resume()
