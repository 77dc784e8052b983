"""One call of /ProxyService/Proxy on the client's side: one dial, and the resulting end.

The server's side is proxy_end.py. A call carries one connection, so the stream's window is
its back-pressure: a full sink withholds credit as long as it needs. (Calls that carry many
connections, where no single one may do that, are packet_link.py.)

How the protocol expresses the events of a tunnel:

- our half-close: END_STREAM. Isthmus servers announce that they pass it on (HALF_CLOSE in the
  response), and the reply still follows. For konnectivity's servers it ends both directions, so
  nothing is sent: when the reply has paused for long, CLOSE_REQ ends the connection;
- the target's half-close: not supported. CLOSE_RSP ends both directions; it reads as an end of
  file, and a later write resets the writer, as a kernel would;
- our reset: RST_STREAM, which servers pass on as a reset;
- the target's reset: CLOSE_RSP with an error, RST_STREAM, or a status other than OK. A call that
  ends without CLOSE_RSP was cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from isthmus.errors import ProtocolError
from isthmus.tunnel.call_stream import Caller, CallStage, CallStream
from isthmus.tunnel.end import Ending
from isthmus.tunnel.http2_stream import NOBODY, Http2Stream
from isthmus.tunnel.message_reader import PacketReader, Piece
from isthmus.wire.grpc import Status, read_status, response_problem
from isthmus.wire.http2 import ErrorCode, Headers
from isthmus.wire.packet import (
    CLOSE_REQ,
    CLOSE_RSP,
    DATA,
    DIAL_CLS,
    DIAL_RSP,
    DataHead,
    close_request,
    dial_request,
    parse,
)
from isthmus.wire.request_metadata import HALF_CLOSE

#: How long a reply may pause after our half-close, if the server does not support half-closes.
REPLY_PAUSE_S = 10.0
_LOOK_S = 1.0
#: Data in one packet; a message may have 4 MiB.
_MOST_PAYLOAD = 1024 * 1024


class ProxyCaller(Caller, Protocol):
    """The maker of a konnectivity call."""

    def refused(self, error: str) -> None:
        """The target was not reached; ``error`` is the server's text. Replaces the other calls."""

    def hang_up(self, stream: Http2Stream) -> None:
        """The call is finished: end the stream if this batch does not end it."""

    def look_later(self, end: ProxyClientCall, delay_s: float) -> None:
        """Call ``end.look`` after ``delay_s``."""


class ProxyClientCall(CallStream):
    """The client's end of one call.

    ``half_closes`` tells whether the server preserves half-closes; None: the server announces it.
    """

    __slots__ = (
        "_closing",
        "_connect_id",
        "_head",
        "_random",
        "_reply",
        "_status",
        "caller",
        "clock",
        "half_closes",
        "stage",
    )

    def __init__(
        self,
        caller: ProxyCaller,
        *,
        random: int,
        clock: Callable[[], float],
        half_closes: bool | None = None,
    ) -> None:
        super().__init__(PacketReader())
        self.caller: ProxyCaller | None = caller
        self.clock = clock
        self.half_closes = half_closes
        self.stage = CallStage.DIALING
        self._random = random
        self._connect_id = 0
        self._head: DataHead | None = None
        self._closing = False  # CLOSE_REQ was sent
        self._status: tuple[Status, str] | None = None
        self._reply: tuple[int, float] | None = None  # its size, and when it last grew

    def __repr__(self) -> str:
        return f"<ProxyClientCall {self._connect_id} {self.stage.value}>"

    @property
    def half_closed(self) -> bool:
        """Exactly one direction has ended."""
        return self.ending is None and (self._eof_out or self.stage is CallStage.LEFT)

    def call(
        self, stream: Http2Stream, headers: Headers, address: str, *, secret: bool = False
    ) -> None:
        """Request a connection; ``secret``: the headers must not be cached."""
        self.stream = stream
        stream.handler = self
        stream.send_headers(headers, secret=secret)
        stream.write(dial_request("tcp", address, self._random), b"")

    # Towards the server.

    def write(self, data: bytes) -> bool:
        size = len(data)
        if self.stage is CallStage.LEFT and size:
            self._nobody_reads()
        if self.stage is not CallStage.OPEN or self._eof_out or not size:
            return True
        assert self.stream is not None and self._head is not None
        self.bytes_written += size
        if size <= _MOST_PAYLOAD:
            return self.stream.write(self._head.of(size), data)
        for at in range(0, size, _MOST_PAYLOAD):
            piece = data[at : at + _MOST_PAYLOAD]
            more = self.stream.write(self._head.of(len(piece)), piece)
        return more

    def write_eof(self) -> None:
        """Half-close as far as the server supports it."""
        if self._eof_out or self.ending is not None:
            return
        self._eof_out = True
        if self.stage is CallStage.LEFT:
            self._over(Ending.CLEAN)
        elif self.half_closes:
            assert self.stream is not None
            self.stream.end()
        else:
            self._reply = (-1, self.clock())
            self._look_later()

    def look(self) -> None:
        """Close the connection if the reply has paused for long and is probably complete."""
        if self._reply is None or self.stage is not CallStage.OPEN:
            return
        assert self.stream is not None
        seen, since = self._reply
        moved, now = self.peer.bytes_written, self.clock()
        if moved != seen or self.stream.out_bytes or self.stream.held:
            self._reply = (moved, now)
        elif now - since > REPLY_PAUSE_S:
            if self._closing:
                self._lost(Ending.TIMED_OUT)
                return
            self._ask_to_close(now)
        self._look_later()

    def _look_later(self) -> None:
        if self.caller is not None:
            self.caller.look_later(self, _LOOK_S)

    def let_go(self) -> None:
        """The client no longer reads: stop waiting for a reply."""
        if self._reply is not None and self.stage is CallStage.OPEN and not self._closing:
            self._ask_to_close(self.clock())

    def _ask_to_close(self, now: float) -> None:
        """Request to close both directions; CLOSE_RSP is the answer."""
        assert self.stream is not None
        self._closing = True
        self._reply = (self.peer.bytes_written, now)
        self.stream.write(close_request(self._connect_id), b"")

    def abort(self, reason: Ending) -> None:
        """Cancel the dial, or reset the connection."""
        if self.ending is None:
            self._reset()
            self._over(reason)

    def _reset(self) -> None:
        if self.stream is not None:
            self.stream.reset(ErrorCode.CANCEL)

    def _nobody_reads(self) -> None:
        """Reset a sender that still writes after the server closed."""
        self._lost(Ending.RESET)

    def _lost(self, reason: Ending) -> None:
        if self.ending is None:
            peer = self.peer
            self._over(reason)
            peer.abort(reason)

    def _over(self, ending: Ending) -> None:
        if self.ending is None:
            self.stage = CallStage.OVER
            self._hang_up()
            self.finish(ending)

    def _hang_up(self) -> None:
        self.pieces.clear()
        stream, self.stream = self.stream, None
        caller, self.caller = self.caller, None
        if stream is not None:
            stream.handler = NOBODY
            if stream.open and caller is not None:
                caller.hang_up(stream)

    # From the server.

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """Read the response, or the trailers."""
        if any(name == b":status" for name, _ in headers):
            problem = response_problem(headers)
            if problem is not None:
                self._call_over(*problem)
                return
            if self.half_closes is None:
                self.half_closes = any(name == HALF_CLOSE for name, _ in headers)
        if end:
            self._status = read_status(headers)

    def violated(self, error: ProtocolError) -> None:
        self._reset()
        self._call_over(Status.INTERNAL, str(error), Ending.PROTOCOL)

    def got_payload(self, connect_id: int, piece: Piece) -> None:
        if connect_id == self._connect_id and self.stage is CallStage.OPEN:
            self.pieces.append(piece)

    def more_payload(self, piece: Piece) -> None:
        if self.reader.connect_id == self._connect_id and self.stage is CallStage.OPEN:
            self.pieces.append(piece)

    def got_message(self, message: Piece) -> None:
        packet = parse(message)
        kind = packet.type
        if kind == DATA:
            self.got_payload(packet.data.connectID, packet.data.data)
        elif kind == DIAL_RSP:
            if self.stage is CallStage.DIALING and packet.dialResponse.random == self._random:
                self._answered(packet.dialResponse.connectID, packet.dialResponse.error)
        elif kind == CLOSE_RSP:
            # As in Go's client: there is only one connection, whatever id the packet names.
            self._closed(packet.closeResponse.error)
        elif kind == CLOSE_REQ:
            self._closed("")
        elif kind == DIAL_CLS and self.stage is CallStage.DIALING:
            self._call_over(Status.CANCELLED, "the server cancelled the dial")

    def _answered(self, connect_id: int, error: str) -> None:
        caller = self.caller
        assert caller is not None
        if error or not connect_id:
            self._reset()
            self._over(Ending.CLEAN)
            caller.refused(error or "the server answered without a connection id")
            return
        self.stage = CallStage.OPEN
        self._connect_id = connect_id
        self._head = DataHead(connect_id)
        caller.dialed()

    def _closed(self, error: str) -> None:
        if self.stage is CallStage.DIALING:
            self._call_over(Status.UNKNOWN, error or "closed before the dial was answered")
            return
        self.hand_on()  # data received before the close goes first
        if self.stage is not CallStage.OPEN:
            return  # that reset the peer
        if error:
            self._lost(Ending.RESET)
            return
        peer = self.peer
        if self._eof_out:
            # Unsent data will not be read: our end is not clean.
            self._over(Ending.RESET if self.backlog_bytes else Ending.CLEAN)
            peer.write_eof()
            return
        self.stage = CallStage.LEFT
        self._hang_up()
        peer.write_eof()
        self.peer.resume_reading()  # anything it sends now resets it

    def got_end(self, stream: Http2Stream) -> None:
        """The server ended the call; without CLOSE_RSP before, the end was not clean."""
        status, text = self._status or (Status.UNKNOWN, "no grpc-status")
        self.hand_on()
        self._call_over(status, text)

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        """The call is gone."""
        gone, caller = stream.connection.closed, self.caller
        reason = Ending.LINK_LOST if gone else Ending.RESET
        refused = code == ErrorCode.REFUSED_STREAM
        if self.stage is not CallStage.DIALING or caller is None or not (gone or refused):
            self._call_over(Status.UNAVAILABLE, text, reason)
            return
        self._over(reason)
        if refused:
            caller.not_called(text)
        else:
            caller.connection_lost(text)

    def _call_over(self, status: Status, text: str, reason: Ending = Ending.RESET) -> None:
        if self.stage is CallStage.DIALING:
            caller = self.caller
            self._over(reason)
            if caller is not None:
                caller.call_failed(status, text)
        elif self.stage is CallStage.OPEN:
            self._lost(reason)
