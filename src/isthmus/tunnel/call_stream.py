"""The common part of ends that are one gRPC call: messages in and out of one HTTP/2 stream.

One stream is one connection, so the stream's window provides the back-pressure: a full sink
withholds credit as long as it needs. How a call begins and ends differs by protocol and side:
payload.py is KEP-1281's, proxy_call.py (client) and proxy_end.py (server) are konnectivity's.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from isthmus.errors import ProtocolError
from isthmus.tunnel.end import END_SLOTS, BaseEnd, Early
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.message_reader import MessageReader, Piece
from isthmus.wire.grpc import Status
from isthmus.wire.http2 import Headers

#: The headers of a response that may carry messages.
RESPONSE: Headers = ((b":status", b"200"), (b"content-type", b"application/grpc"))
#: An incomplete message is counted above this size.
SMALL_MESSAGE = 4096


class CallStage(Enum):
    """The state of a call."""

    NEW = "no dial yet"
    DIALING = "dialing"
    OPEN = "open"
    LEFT = "closed by the peer"
    OVER = "over"


class Caller(Protocol):
    """The maker of a call. Exactly one method is called, once."""

    def dialed(self) -> None:
        """The target was reached; the end may be joined."""

    def call_failed(self, status: Status, text: str) -> None:
        """The call ended before its answer; ``text`` is the server's reason."""

    def not_called(self, text: str) -> None:
        """The server refused the stream without processing it: the call may be repeated."""

    def connection_lost(self, text: str) -> None:
        """The connection was lost before the answer."""


class CallClient(Protocol):
    """The dialing side of a call."""

    def left(self) -> None:
        """The client gave up before the answer."""

    def broke_rules(self, what: str) -> None:
        """The client violated the protocol and was told."""


class CallStream(BaseEnd):
    """An end whose bytes are the payloads of one call; a handler of its stream."""

    __slots__ = (*END_SLOTS, "_eof_in", "_eof_out", "pieces", "reader", "saw_end", "stream")

    def __init__(self, reader: MessageReader, early: Early | None = None) -> None:
        self.init_end(early)
        self.stream: Http2Stream | None = None
        self.reader = reader
        #: Views of the read buffer, handed on before the next read.
        self.pieces: list[Piece] = []
        self.saw_end = False  # a message announced the end of data
        self._eof_in = False  # the other program sends nothing more
        self._eof_out = False  # we send nothing more

    @property
    def backlog_bytes(self) -> int:
        """The bytes waiting to be sent, or that waited when the call was reset; heads included."""
        stream = self.stream
        return stream.out_bytes + stream.lost_bytes if stream is not None else 0

    @property
    def half_closed(self) -> bool:
        """Exactly one direction has ended."""
        return self.ending is None and self._eof_in != self._eof_out

    def pause_reading(self) -> None:
        """Do nothing: False returned by the sink already withholds credit."""

    def resume_reading(self) -> None:
        """Return the withheld credit."""
        if self.stream is not None:
            self.stream.release()

    # A handler of its stream: see http2_stream.Handler.

    def can_write(self, stream: Http2Stream) -> None:
        self.peer.resume_reading()

    def got_data(self, stream: Http2Stream, view: memoryview) -> None:
        """Gather payloads, so that one read causes one write."""
        if self.ending is None:
            try:
                self.reader.feed(view, self)
            except ProtocolError as exc:
                self.violated(exc)

    def batch_over(self, stream: Http2Stream) -> None:
        """Hand the gathered bytes to the peer, and give credit if it can take more."""
        reader = self.reader
        more = self.hand_on() if self.pieces else True
        if reader.kept is not None or stream.kept:
            kept = reader.kept_bytes
            stream.keep(kept if kept > SMALL_MESSAGE and self.ending is None else 0)
        if self.ending is None and (not more or stream.held):
            stream.hold()
        else:
            stream.consumed(stream.unconsumed)
        if self.saw_end and not self._eof_in:
            self.data_ended()

    def hand_on(self) -> bool:
        """Write the gathered bytes to the peer; False when it is full."""
        pieces = self.pieces
        if not pieces:
            return True
        data = b"".join(pieces) if len(pieces) > 1 else bytes(pieces[0])
        pieces.clear()
        return self.peer.write(data) if data else True

    # Implemented by each kind of call.

    def got_payload(self, connect_id: int, piece: Piece) -> None:
        raise NotImplementedError

    @property
    def more_payload(self) -> Callable[[Piece], None]:
        raise NotImplementedError

    def got_message(self, message: Piece) -> None:
        raise NotImplementedError

    def violated(self, error: ProtocolError) -> None:
        """The received bytes are not valid messages."""
        raise NotImplementedError

    def data_ended(self) -> None:
        """A message announced the end of data, and everything before it was handed on."""
        raise NotImplementedError
