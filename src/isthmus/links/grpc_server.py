"""The server's side of a gRPC conversation: any konnectivity agent calls, and is dialed through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.links.grpc import HALF_CLOSE, PATH, GrpcTalk
from isthmus.links.hello import (
    FEATURES,
    NETWORK,
    PROCESS,
    ZONE,
    Unwelcome,
    features_header,
    features_in,
    hello_fault,
    process_in,
)
from isthmus.net.rules_near import ZONE_LABEL
from isthmus.settings.identifiers import Identifiers
from isthmus.text.text_limits import MAX_VERSION_CHARS, cut, plain
from isthmus.tunnel.http2_stream import NOBODY, Handler, Http2Stream
from isthmus.tunnel.packet_link import PacketLink
from isthmus.wire.grpc import CONTENT_TYPE, Refusal, Status, request_problem, status_headers
from isthmus.wire.http2 import ErrorCode, Headers, Http2Error, header

if TYPE_CHECKING:
    from isthmus.links.server_side import AgentLink, Membership

#: Go's agent logs the status and comes again whatever it is; people and other agents can tell.
STATUS = {
    Unwelcome.BAD_HELLO: Status.INVALID_ARGUMENT,
    Unwelcome.NO_PROOF: Status.UNAUTHENTICATED,
    Unwelcome.NOT_ENTITLED: Status.PERMISSION_DENIED,
    Unwelcome.TRY_LATER: Status.UNAVAILABLE,
}


class GrpcServerTalk(GrpcTalk):
    """See talk.Talk."""

    def __init__(self, link: AgentLink) -> None:
        # Go's agent answers pings however often they come; silence is noticed as on our own links.
        super().__init__(
            link,
            client=False,
            process=link.process,
            ping_every_s=link.limits.ping_every_s,
            dead_after_s=link.limits.dead_after_s,
        )
        self._agent_link = link
        self._call: Http2Stream | None = None
        self._half_closes = False
        self._refused = 0
        self.session.on_request = self._request

    def begin(self) -> None:
        """The agent calls."""

    def _request(self, stream: Http2Stream, headers: Headers) -> Handler:
        refusal = request_problem(headers)
        if refusal is None and header(headers, b":path") != PATH:
            path = plain(header(headers, b":path"))
            refusal = _no(Status.UNIMPLEMENTED, f"unknown method {path}")
        if refusal is None and self._call is not None:
            refusal = _no(Status.ALREADY_EXISTS, "this connection has its call")
        if refusal is None:
            refusal = self._greeted(stream, headers)
        if refusal is not None:
            self._refused += 1
            if self._refused > _MOST_REFUSED:
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "too many requests that are no call")
            stream.send_headers(tuple(refusal.to_headers()), end=True)
            bad_hello = refusal.http_status == 200 and refusal.status is Status.INVALID_ARGUMENT
            if bad_hello and self._call is None:
                # An agent that will not do better. Not now: this is called while reading.
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
        # Heard when it is welcome: until then nobody has proved anything, and Go's agent waits for
        # our headers before it says a word.
        self.packets = PacketLink(
            stream,
            self,
            agent=False,
            clock=self.session.clock,
            counts=self._agent_link.packets,
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
        """Say who we are, and how many."""
        assert self._call is not None and self.packets is not None
        self._call.handler = self.packets
        # An agent that can half-close is one of ours.
        process = self._agent_link.process.encode()
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
        """Say why the agent is not welcome."""
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

        Go's drops its tunnels at GOAWAY and opens nothing, so that it is told nothing.
        """
        if self._agent_link.features is not None:
            super().drain()

    def asked(self, protocol: str, address: str, random: int, ours: bytes) -> None:
        """The agent wants a connection: one that is full, or leaves, gives none."""
        if not self.link.ready:
            return  # it hears that the link is gone, and asks elsewhere
        if self.full:
            assert self.packets is not None
            self.packets.refuse(random, _FULL)
            return
        super().asked(protocol, address, random, ours)

    def nonsense(self, asked: str, random: int, ours: bytes, why: str) -> None:
        """Let it be refused by who refuses the rest: it is counted and audited like that."""
        self.take(asked[:_MAX_ASKED_CHARS], random, ours)


_MAX_ASKED_CHARS = 300
#: An agent makes one call; some more are for people with curl.
_MOST_REFUSED = 16
_FULL = "dial tcp: socket: too many open files: this link carries all the connections it may"


def _no(status: Status, message: str) -> Refusal:
    return Refusal(http_status=200, status=status, message=message)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
