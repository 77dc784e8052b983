"""The server's side of a gRPC conversation: any konnectivity agent calls, and is dialed through."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.config.identifiers import Identifiers
from isthmus.links.go_errors import failure_in
from isthmus.links.grpc import HALF_CLOSE, PATH, PROCESS, GrpcTalk
from isthmus.links.hello import NETWORK, Unwelcome
from isthmus.links.talk import Told
from isthmus.tunnel.http2_calls import NOBODY
from isthmus.tunnel.http2_stream import Handler, Http2Stream
from isthmus.tunnel.packet_link import LinkedEnd, PacketLink
from isthmus.values import DialId, HostPort, Identity
from isthmus.wire.asking import NOTHING, Asking
from isthmus.wire.grpc import CONTENT_TYPE, Refusal, Status, request_problem, status_headers
from isthmus.wire.http2 import Headers, header
from isthmus.wire.link import TO_WIRE
from isthmus.wire.link_pb2 import DialResult

if TYPE_CHECKING:
    from isthmus.links.server_side import AgentLink, Membership

_MAX_DETAIL_CHARS = 1000
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
            ping_every_s=link.limits.ping_every_s,
            dead_after_s=link.limits.dead_after_s,
        )
        self._agent_link = link
        self._call: Http2Stream | None = None
        self._half_closes = False
        self.session.on_request = self._request

    def begin(self) -> None:
        """The agent calls."""

    def _request(self, stream: Http2Stream, headers: Headers) -> Handler:
        refusal = request_problem(headers)
        if refusal is None and header(headers, b":path") != PATH:
            path = header(headers, b":path").decode("ascii", "replace")
            refusal = _no(Status.UNIMPLEMENTED, f"unknown method {path}")
        if refusal is None and self._call is not None:
            refusal = _no(Status.ALREADY_EXISTS, "this connection has its call")
        if refusal is None:
            refusal = self._greeted(stream, headers)
        if refusal is not None:
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
        try:
            identifiers = Identifiers.read_claim(_text(claims[0]) if claims else "")
        except ValueError as exc:
            return _no(Status.INVALID_ARGUMENT, f"agentIdentifiers: {exc}")
        self._call = stream
        self._half_closes = HALF_CLOSE in fields
        # Heard when it is welcome: until then nobody has proved anything, and Go's agent waits for
        # our headers before it says a word.
        self.packets = PacketLink(
            stream,
            self,
            agent=False,
            clock=self.session.clock,
            received=self._agent_link.packets.received,
            sent=self._agent_link.packets.sent,
            half_closes=self._half_closes,
        )
        authorization = _text(fields.get(b"authorization", [b""])[0])
        self._agent_link.greeted(
            agent_id=_text(ids[0]),
            identifiers=identifiers,
            labels={},
            network=_text(networks[0]),
            version=_text(header(headers, b"user-agent")),
            token=authorization.removeprefix("Bearer ").strip(),
        )
        return None

    def welcome(self, membership: Membership) -> None:
        """Say who we are, and how many."""
        assert self._call is not None and self.packets is not None
        self._call.handler = self.packets
        # An agent that can half-close is one of ours.
        process = self._agent_link.process.encode()
        extra = ((HALF_CLOSE, b"1"), (PROCESS, process)) if self._half_closes else ()
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

    def drain(self) -> None:
        """Go's agent drops its tunnels at GOAWAY, so that it is told nothing; nobody dials."""

    def open_dial(
        self,
        target: HostPort,
        *,
        dial_id: DialId,
        timeout_s: float,
        requester: Identity,
        told: Told,
        connection_id: str = "",
        asking: Asking = NOTHING,
    ) -> LinkedEnd | None:
        """Ask the agent to dial."""
        packets = self.packets
        if packets is None or not self.can_open:
            return None

        def answered(error: str | None) -> None:
            if error is None:
                told(_REACHED)
            elif not error:
                told(None)  # the link was lost: nothing is known, so another may be asked
            else:
                failure = TO_WIRE[failure_in(error)]
                told(DialResult(failure=failure, detail=error[:_MAX_DETAIL_CHARS]))

        # Like Go's: a number that nobody can guess is not needed, only one that is not used. A
        # connection has one dial in a link at most, so that the number of its id will do.
        number = int(connection_id.rpartition("-")[2], 16) if connection_id else int(dial_id)
        return packets.dial(str(target), number, answered)


_REACHED = DialResult()


def _no(status: Status, message: str) -> Refusal:
    return Refusal(http_status=200, status=status, message=message)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
