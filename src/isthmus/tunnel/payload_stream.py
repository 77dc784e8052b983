"""What both ends of a KEP-1281 call share: payloads in and out of one HTTP/2 stream.

"The state of TCP connection is exactly the same as the gRPC stream state": one stream is one
connection, its window is the back-pressure. How a call begins and ends differs by side and is
payload_end.py (the server's) and payload_call.py (the client's).
"""

from __future__ import annotations

from isthmus.errors import ProtocolError
from isthmus.tunnel.end import END_SLOTS, BaseEnd, Early
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.payload_reader import PayloadReader
from isthmus.wire.payload import MOST_DATA, payload_head

#: A message that is not whole is worth counting above this.
_SMALL_MESSAGE = 4096


class PayloadStream(BaseEnd):
    """An end whose bytes are the payloads of one call; a handler of its stream."""

    __slots__ = (*END_SLOTS, "_eof_in", "_eof_out", "_reader", "stream")

    def __init__(self, early: Early | None = None) -> None:
        self.init_end(early)
        self.stream: Http2Stream | None = None
        self._reader = PayloadReader()
        self._eof_in = False  # whoever is behind the stream sends nothing more
        self._eof_out = False  # nor do we

    @property
    def backlog_bytes(self) -> int:
        """How much waits to be sent, or did when the call was reset; heads included."""
        stream = self.stream
        return stream.out_bytes + stream.lost_bytes if stream is not None else 0

    @property
    def half_closed(self) -> bool:
        """Exactly one direction has ended."""
        return self.ending is None and self._eof_in != self._eof_out

    # Into the stream.

    def send(self, data: bytes) -> bool:
        """Send payloads; False: wait for can_write."""
        stream = self.stream
        assert stream is not None
        size = len(data)
        self.bytes_written += size
        if size <= MOST_DATA:
            return stream.write(payload_head(size), data)
        for at in range(0, size, MOST_DATA):
            piece = data[at : at + MOST_DATA]
            more = stream.write(payload_head(len(piece)), piece)
        return more

    def pause_reading(self) -> None:
        """The sink's False answers do the work."""

    def resume_reading(self) -> None:
        """Give the credit of what was held back."""
        if self.stream is not None:
            self.stream.release()

    def can_write(self, stream: Http2Stream) -> None:
        """What waited has been sent."""
        self.peer.resume_reading()

    # Out of it.

    def got_data(self, stream: Http2Stream, view: memoryview) -> None:
        """Gather payloads, so that one read makes one write."""
        if self.ending is None:
            try:
                self._reader.feed(view)
            except ProtocolError as exc:
                self.violated(exc)

    def batch_over(self, stream: Http2Stream) -> None:
        """Hand the gathered bytes to the peer, and give credit if it can take more."""
        reader = self._reader
        more = self.hand_on() if reader.pieces else True
        if reader.kept is not None or stream.kept:
            kept = reader.kept_bytes
            stream.keep(kept if kept > _SMALL_MESSAGE and self.ending is None else 0)
        if self.ending is None and (not more or stream.held):
            stream.hold()
        else:
            stream.consumed(stream.unconsumed)
        if reader.ended and not self._eof_in:
            self.data_ended()

    def hand_on(self) -> bool:
        """Give the peer what was gathered; False when it is full."""
        pieces = self._reader.pieces
        if not pieces:
            return True
        data = b"".join(pieces) if len(pieces) > 1 else bytes(pieces[0])
        pieces.clear()
        return self.peer.write(data) if data else True

    # Given by each side.

    def violated(self, error: ProtocolError) -> None:
        """What came is no stream of payloads."""
        raise NotImplementedError

    def data_ended(self) -> None:
        """END_OF_DATA came, and everything before it was handed on."""
