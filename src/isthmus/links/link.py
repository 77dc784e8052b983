"""A mux link: the TLS handshake, hello and welcome, then dials both ways, until it is lost.

What both sides share is here; links/server_side.py and links/agent_side.py add their halves of
the control conversation. Choosing a link is core/agents.py.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import ssl
import time
from collections.abc import Callable

from isthmus.errors import LinkStage, ProtocolError
from isthmus.links.carrier import LinkSocket
from isthmus.links.dials import AnswerReader, DialReader, IncomingDial
from isthmus.net.contexts import peer_identity
from isthmus.net.deadlines import Deadlines
from isthmus.net.poller import Poller
from isthmus.tunnel.end import Early, Ending
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.session import Session
from isthmus.tunnel.stream import Stream
from isthmus.values import ANONYMOUS, DialId, HostPort, Identity
from isthmus.wire.link import ALPN, take_message, to_bytes
from isthmus.wire.link_pb2 import Control, Dial, DialResult, Ended
from isthmus.wire.yamux import GoAwayCode

#: What our own senders begin a stream with (Welcome.stream_window), and when its receiver says
#: that it may go on: at half, or both would wait for the other.
STREAM_WINDOW_BYTES = 64 * 1024
HANDSHAKE_S = 10.0
GOODBYE_S = 2.0
MOST_CONTROL_BYTES = 1024 * 1024
#: With fewer stream ids left than this, a link is replaced when it is idle (2³¹ in all).
FEW_IDS = 2**20
_TICK_S = 1.0
_STUCK_TICKS = 2

_log = logging.getLogger("isthmus.link")
_numbers = itertools.count(1)

REASONS = {
    Ending.CLEAN: Ended.UNKNOWN,
    Ending.RESET: Ended.RESET,
    Ending.LINK_LOST: Ended.LINK_LOST,
    Ending.TIMED_OUT: Ended.TIMED_OUT,
    Ending.STALLED: Ended.STALLED,
    Ending.PROTOCOL: Ended.PROTOCOL,
    Ending.DRAINED: Ended.DRAINED,
    Ending.CANCELLED: Ended.CANCELLED,
    Ending.ADMIN: Ended.ADMIN,
}
ENDINGS = {reason: ending for ending, reason in REASONS.items() if ending is not Ending.CLEAN}


class ControlReader(Early):
    """The peer of the control stream: reads its messages as they become whole."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    def write(self, data: bytes) -> bool:
        """Read messages.

        Raises:
            ProtocolError: what came is no control message; the link catches it.
        """
        self.buffer += data
        while (message := take_message(self.buffer, Control)) is not None:
            self._link.told(message)
        return True

    def write_eof(self) -> None:
        """The end of the control stream is the end of the link."""
        self._link.lost("control stream ended")

    def abort(self, reason: Ending) -> None:
        """The end of the control stream is the end of the link."""
        self._link.lost("control stream reset")


class Link:
    """One side of a link; ``on_closed`` is called exactly once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None,
        on_dial: Callable[[IncomingDial], None],
        on_closed: Callable[[Link], None],
        limits: Limits = Limits(),
    ) -> None:
        self.id = next(_numbers)
        self.loop = loop
        self.peer_address = _peer_of(sock)
        self.identity: Identity = ANONYMOUS
        self.opened_at = loop.time()
        self.ready = False
        self.draining = False
        self.stuck_ticks = 0
        self.closed_because = ""
        self._closing = ""
        self.stage = LinkStage.LOST
        self.failure: ssl.SSLError | None = None
        self.session: Session | None = None
        self._limits = limits
        self._client = server_hostname is not None
        self._on_dial = on_dial
        self._on_closed = on_closed
        self._control: Stream | None = None
        self._progress = -1
        self._undialed: Deadlines[DialReader] = Deadlines(loop, HANDSHAKE_S, DialReader.too_late)
        self._timer: asyncio.TimerHandle | None = loop.call_later(
            HANDSHAKE_S, self.lost, "handshake timed out", LinkStage.TIMED_OUT
        )
        self.carrier = LinkSocket(self, sock, poller, context, server_hostname=server_hostname)

    def __repr__(self) -> str:
        state = self.closed_because or ("ready" if self.ready else "opening")
        return f"<{type(self).__name__} #{self.id} {self.peer_address} {state}>"

    # The carrier reports.

    def secured(self) -> None:
        """The TLS handshake is done: start the session if the peer speaks our protocol."""
        tls = self.carrier.tls
        if tls.selected_alpn_protocol() != ALPN:
            self.lost(
                f"peer does not speak {ALPN} (ALPN {tls.selected_alpn_protocol()!r})", LinkStage.TLS
            )
            return
        self.identity = peer_identity(tls)
        session = Session(
            self.carrier,
            client=self._client,
            clock=time.monotonic,  # the loop counts milliseconds, a round trip takes less
            on_stream=self._accept,
            limits=self._limits,
            explain_reset=self._explain,
        )
        session.first_update_bytes = STREAM_WINDOW_BYTES // 2
        self.session = session
        self.carrier.carry(session)
        self.begin()

    def insecure(self, error: ssl.SSLError) -> None:
        """The TLS handshake failed."""
        self.failure = error
        self.lost(f"TLS handshake failed: {error.reason or error}", LinkStage.TLS)

    def violated(self, error: ProtocolError) -> None:
        """The peer broke the protocol: say so, close this link, go on with the others."""
        if not self.closed_because and self.session is not None:
            self.session.go_away(GoAwayCode.PROTOCOL_ERROR)
            self.session.flush()
            self.lost(str(error), LinkStage.PROTOCOL, Ending.PROTOCOL)

    def lost(
        self, why: str, stage: LinkStage = LinkStage.LOST, reason: Ending = Ending.LINK_LOST
    ) -> None:
        """The link is over: reset its streams, close the connection, report once."""
        if self.closed_because:
            return
        self.closed_because = self._closing or why
        self.stage = stage
        self.ready = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._undialed.take_all()
        if self.session is not None:
            self.session.lost(reason)
        self.carrier.close()
        self._on_closed(self)

    # The control stream.

    def begin(self) -> None:
        """The session is up: start the control conversation."""
        raise NotImplementedError

    def told(self, message: Control) -> None:
        """Take one control message that both sides know."""
        kind = message.WhichOneof("message")
        if kind == "ended" and self.session is not None:
            if message.ended.stream in self.session.streams:
                reason = ENDINGS.get(message.ended.reason, Ending.RESET)
                self.session.reasons[message.ended.stream] = reason
        elif kind == "drain":
            self.draining = True

    def tell(self, message: Control) -> None:
        """Send one control message."""
        if self._control is not None:
            self._control.write(to_bytes(message))
            if self._control.backlog_bytes > MOST_CONTROL_BYTES:
                self.lost("peer does not read the control stream", LinkStage.PROTOCOL)

    def attach_control(self, stream: Stream) -> None:
        """This stream is the control stream."""
        self._control = stream
        reader = ControlReader(self)
        reader.peer = stream
        stream.peer = reader
        stream.start()

    def be_ready(self) -> None:
        """Hello and welcome are exchanged: dials may flow, and silence is watched."""
        self.ready = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(_TICK_S, self._tick)
        assert self.session is not None
        self.session.ping()

    def drain(self) -> None:
        """Take no new dials; what is open goes on."""
        if self.session is not None and not self.closed_because:
            self.tell(Control(drain={}))
            self.session.go_away()

    def close(self, why: str) -> None:
        """End the link from our side in good order: what is unsent goes first, then the peer ends.

        It is over when ``on_closed`` is called, at the latest after GOODBYE_S.
        """
        if self.session is None or self.carrier.closed or not self.ready:
            self.lost(why)
        elif not self._closing:
            self._closing = why
            self.ready = False
            self.session.go_away()
            self.session.flush()
            self.carrier.say_goodbye()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_later(GOODBYE_S, self.lost, why)

    @property
    def orderly(self) -> bool:
        """One of the two sides meant it to end."""
        drained = self.session is not None and self.session.remote_draining
        return bool(self._closing) or drained

    @property
    def unsent(self) -> bool:
        """Something that we said has not gone into the kernel yet."""
        return self.carrier.out_bytes > 0 or (self.session is not None and self.session.unsent)

    def _explain(self, stream: Stream, reason: Ending) -> None:
        if stream is not self._control:
            self.tell(Control(ended=Ended(stream=stream.id, reason=REASONS[reason])))

    # Dials.

    def open_dial(
        self,
        target: HostPort,
        *,
        dial_id: DialId,
        timeout_s: float,
        requester: Identity,
        told: Callable[[DialResult | None], None],
    ) -> Stream | None:
        """Ask the peer to dial; None when the link cannot take one more stream."""
        if self.session is None or not self.ready:
            return None
        dial = Dial(
            host=target.host,
            port=target.port,
            dial_id=dial_id,
            timeout_ms=int(timeout_s * 1000),
            requester=requester.name,
            requester_groups=requester.groups,
        )
        return self.session.open(AnswerReader(told), to_bytes(dial))

    def accept_stream(self, stream: Stream) -> None:
        """Read a dial from a stream that the peer opened."""
        if not self.ready:
            stream.abort(Ending.PROTOCOL)
            return
        reader = DialReader(stream, self.id, self._dialed)
        join_early(stream, reader)
        self._undialed.add(reader)

    def _dialed(self, reader: DialReader, incoming: IncomingDial) -> None:
        self._undialed.remove(reader)
        self._on_dial(incoming)

    def _accept(self, stream: Stream) -> None:
        self.accept_stream(stream)

    # Liveness.

    @property
    def can_open(self) -> bool:
        """A dial can be sent over this link."""
        return self.ready and self.session is not None and self.session.can_open

    @property
    def full(self) -> bool:
        """It carries all the streams it can."""
        session = self.session
        return (
            self.ready
            and session is not None
            and not (session.can_open or session.closed or session.remote_draining)
        )

    @property
    def takes_dials(self) -> bool:
        """A dial should be sent over this link."""
        return self.can_open and not self.draining and self.stuck_ticks < _STUCK_TICKS

    @property
    def load(self) -> int:
        """How many streams it carries."""
        return len(self.session.streams) if self.session is not None else 0

    def _tick(self) -> None:
        session = self.session
        assert session is not None
        self._timer = self.loop.call_later(_TICK_S, self._tick)
        if not session.tick():
            self.lost("no byte heard for too long")
            return
        if session.ids_left < FEW_IDS:
            self.draining = True
            if self.load <= 1 or session.ids_left <= 0:  # the control stream is one
                self.close("stream ids are used up")
                return
        # Liveness is also progress: a link whose unsent bytes do not move is not chosen.
        progress = self.carrier.bytes_out - self.carrier.out_bytes
        if self.carrier.out_bytes and progress == self._progress:
            self.stuck_ticks += 1
        else:
            self.stuck_ticks = 0
        self._progress = progress


def join_early(stream: Stream, reader: Early) -> None:
    """Put a handshake reader in the place of the plain keeper of a stream."""
    stream._early = stream.peer = reader
    reader.peer = stream


def _peer_of(sock: socket.socket) -> str:
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return "unknown"
    host = str(host).removeprefix("::ffff:")  # an IPv4 peer of a dual-stack listener
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
