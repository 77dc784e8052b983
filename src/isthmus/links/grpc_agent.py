"""The agent's side of a gRPC conversation: calls a konnectivity server, and dials for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from isthmus import __version__
from isthmus.errors import DialFailure, LinkStage
from isthmus.links.go_errors import go_text
from isthmus.links.grpc import HALF_CLOSE, PATH, PROCESS, GrpcTalk
from isthmus.links.hello import NETWORK
from isthmus.links.talk import Told
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.tunnel.http2_calls import NOBODY
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.packet_link import LinkedEnd, PacketLink
from isthmus.values import ANONYMOUS, DialId, HostPort, Identity
from isthmus.wire.asking import NOTHING, Asking
from isthmus.wire.grpc import CONTENT_TYPE, Status, read_status, response_problem
from isthmus.wire.http2 import Headers

if TYPE_CHECKING:
    from isthmus.links.agent_side import ServerLink

#: Go's server ends connections that ping more often than every 30 s (its enforcement policy).
PING_EVERY_S = 31.0
_PONG_S = 20.0


class IncomingPacketDial:
    """A dial that a server asked for by DIAL_REQ; see talk.Incoming."""

    __slots__ = (
        "_random",
        "_talk",
        "answered",
        "connection_id",
        "host",
        "link_id",
        "on_cancelled",
        "port",
        "timeout_s",
    )

    def __init__(self, talk: GrpcAgentTalk, target: HostPort, random: int) -> None:
        self._talk = talk
        self._random = random
        self.host = target.host
        self.port = target.port
        self.timeout_s = 0.0
        self.link_id = talk.link.id
        self.connection_id = talk.connection_id(random)
        self.answered = False
        self.on_cancelled: Callable[[], None] | None = None

    @property
    def requester(self) -> Identity:
        """Konnectivity does not say who wants it."""
        return ANONYMOUS

    @property
    def asking(self) -> Asking:
        """Nor anything else."""
        return NOTHING

    def accept(self, address: str) -> BaseEnd:
        """Say that the target is reached; gives the end to join to it."""
        return self._talk.accepted(self, self._random)

    def refuse(self, failure: DialFailure, detail: str) -> None:
        """Say why not."""
        self.answered = True
        self._talk.refused(self._random, go_text(failure, HostPort(self.host, self.port), detail))

    def cancel(self) -> None:
        """The server does not want it any more."""
        if self.on_cancelled is not None:
            cancelled, self.on_cancelled = self.on_cancelled, None
            cancelled()


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
            link, client=True, ping_every_s=PING_EVERY_S, dead_after_s=PING_EVERY_S + _PONG_S
        )
        self._server_link = link
        self._dials: dict[int, IncomingPacketDial] = {}
        self._process = ""

    @property
    def load(self) -> int:
        """How many dials and connections it carries."""
        return super().load + len(self._dials)

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
            received=link.packets.received,
            sent=link.packets.sent,
        )
        packets.talk = self
        stream.handler = packets
        self.packets = packets
        greeting = link.greeting
        token = greeting.token
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
            processes = [value for name, value in headers if name == PROCESS]
            self._process = processes[0].decode("ascii", "replace")[:64] if processes else ""
            link.welcome(ids[0].decode("utf-8", "replace"), int(counts[0][:9]))

    def _refused(self, status: Status, text: str) -> None:
        link = self._server_link
        stage = LinkStage.LOST if link.was_ready else LinkStage.REFUSED
        link.lost(f"the server ended the call: {status.go_name} {text}".rstrip(), stage)

    def refuse(self, reason: str) -> None:
        """Only a server refuses."""

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
        """Konnectivity's servers do not dial for agents."""
        return None

    # Dials.

    def connection_id(self, random: int) -> str:
        """What a server of ours calls a dial, and by which number Go's server logs it."""
        return f"{self._process}-{random:x}" if self._process else f"dial-{random}"

    def asked(self, protocol: str, address: str, random: int) -> None:
        """The server wants a connection."""
        assert self.packets is not None
        if protocol not in ("tcp", "tcp4", "tcp6", ""):
            self.packets.refuse(random, f"dial {protocol}: unknown network {protocol}")
            return
        try:
            target = HostPort.parse(address)
        except ValueError as exc:
            self.packets.refuse(random, f"dial tcp: address {address}: {exc}")
            return
        # Also over a spare link: konnectivity cannot give a dial back, only fail it.
        if random in self._dials:
            self.packets.refuse(random, "dial tcp: this number is in use")
            return
        incoming = self._dials[random] = IncomingPacketDial(self, target, random)
        self.link.on_dial(incoming)

    def taken_back(self, random: int) -> None:
        """The server does not want it any more."""
        incoming = self._dials.pop(random, None)
        if incoming is not None:
            incoming.cancel()

    def accepted(self, incoming: IncomingPacketDial, random: int) -> LinkedEnd:
        """The target is reached."""
        incoming.answered = True
        incoming.on_cancelled = None
        self._dials.pop(random, None)
        packets = self.packets
        assert packets is not None  # or the dial would have been cancelled with the link
        return packets.accept(random)

    def refused(self, random: int, text: str) -> None:
        """The target is not reached."""
        self._dials.pop(random, None)
        if self.packets is not None:
            self.packets.refuse(random, text)

    def lost(self, reason: Ending) -> None:
        """The carrier is gone: so are the dials."""
        dials, self._dials = self._dials, {}
        for incoming in dials.values():
            incoming.cancel()
        super().lost(reason)
