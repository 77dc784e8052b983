"""The agent's side of a gRPC conversation: calls a konnectivity server, and dials for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus import __version__
from isthmus.errors import LinkStage
from isthmus.links.grpc import HALF_CLOSE, PATH, GrpcTalk
from isthmus.links.hello import (
    FEATURES,
    NETWORK,
    PROCESS,
    ZONE,
    features_header,
    features_in,
    process_in,
)
from isthmus.net.rules_near import ZONE_LABEL
from isthmus.tunnel.http2_stream import NOBODY, Http2Stream
from isthmus.tunnel.packet_link import PacketLink
from isthmus.wire.grpc import CONTENT_TYPE, Status, read_status, response_problem
from isthmus.wire.http2 import Headers

if TYPE_CHECKING:
    from isthmus.links.agent_side import ServerLink

#: Go's server ends connections that ping more often than every 30 s (its enforcement policy).
PING_EVERY_S = 31.0
_PONG_S = 20.0


class CalledPackets(PacketLink):
    """The packets of a call that we made: its headers and trailers are the talk's."""

    talk: GrpcAgentTalk

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """Read the response, or the trailers."""
        self.talk.got_headers(headers, end)


class GrpcAgentTalk(GrpcTalk):
    """See talk.Talk."""

    def __init__(self, link: ServerLink) -> None:
        super().__init__(
            link,
            client=True,
            process=link.greeting.process,
            ping_every_s=PING_EVERY_S,
            dead_after_s=PING_EVERY_S + _PONG_S,
        )
        self._server_link = link

    def begin(self) -> None:
        """Call."""
        link = self._server_link
        stream = self.session.open(NOBODY)
        assert stream is not None  # the first of a new connection
        packets = CalledPackets(
            stream,
            self,
            agent=True,
            clock=self.session.clock,
            counts=link.packets,
            account=link.account,
        )
        packets.talk = self
        stream.handler = packets
        self.packets = packets
        greeting = link.greeting
        token, zone = greeting.token, greeting.labels.get(ZONE_LABEL, "")
        stream.send_headers(
            (
                (b":method", b"POST"),
                (b":scheme", b"https"),
                (b":path", PATH),
                (b":authority", link.authority.encode()),
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
        """Also leave a server that goes away (Go's, when it drains) as soon as nothing is open."""
        if self.session.remote_draining and not self.load:
            self.link.close("the server goes away")
            return True
        return super().tick()

    def got_headers(self, headers: Headers, end: bool) -> None:
        """Read who the server is, or why the call ended."""
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
                link.lost("the server did not say its serverID and serverCount", LinkStage.PROTOCOL)
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
        """Only a server refuses."""
