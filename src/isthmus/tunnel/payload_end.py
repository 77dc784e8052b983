"""The server's side of a KEP-1281 call: one connection of one client, an end from the request on.

The request names the target, so the dial begins with it. What of a tunnel's life a call can say:

- the target is reached: the response's headers. It is not: a status, from the table in
  wire/payload.py, and a sentence;
- the client's half-close: END_STREAM. The reply still comes, and trailers with OK behind it;
- the target's half-close: a gRPC server can end its direction only with trailers, which end the
  call. Clients of ours agree on a message for it (wire/payload.py, END_OF_DATA), and the trailers
  come when both directions are done. To others the trailers are said at once, because a client
  that waits for the end of file would otherwise wait for ever; what it had sent before it saw them
  still reaches the target, which hears the end when the client has taken note;
- the client's reset: RST_STREAM. The target's: trailers with ABORTED, or RST_STREAM where bytes
  wait that the client does not read. Never OK.

Who dials is dial/frontends/payload.py.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from isthmus.errors import ProtocolError
from isthmus.tunnel.end import Early, Ending
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.payload_stream import PayloadStream
from isthmus.wire.asking import HALF_CLOSE
from isthmus.wire.grpc import MessageTooLarge, Refusal, Status, status_headers
from isthmus.wire.http2 import ErrorCode, Headers
from isthmus.wire.payload import END_OF_DATA

RESPONSE: Headers = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_AGREED: Headers = (*RESPONSE, (HALF_CLOSE, b"1"))
_OK: Headers = tuple(status_headers(Status.OK))


class Stage(Enum):
    """How far a call is."""

    DIALING = "dialing"
    OPEN = "open"
    OVER = "over"


class Client(Protocol):
    """Who dials for a call."""

    def left(self) -> None:
        """The client gave up before the answer."""

    def broke_rules(self, what: str) -> None:
        """The client sent what it may not; it was told."""


class PayloadEnd(PayloadStream):
    """One connection of one client."""

    __slots__ = ("_half_closes", "client", "named", "stage")

    stream: Http2Stream

    def __init__(
        self, stream: Http2Stream, *, half_closes: bool = False, early: Early | None = None
    ) -> None:
        super().__init__(early)
        self.stream = stream
        self.client: Client | None = None
        self.stage = Stage.DIALING
        self._half_closes = half_closes
        #: A header of the response that tells the client how this connection is called, encoded.
        self.named = b""

    def __repr__(self) -> str:
        return f"<PayloadEnd {self.stream.id} {self.stage.value}>"

    # The dial.

    def accept(self) -> None:
        """Say that the target is reached; the tunnel's bytes may follow."""
        if self.stage is Stage.DIALING:
            self.stage = Stage.OPEN
            self.stream.answered = True
            response = _AGREED if self._half_closes else RESPONSE
            self.stream.send_headers(response, more=self.named)

    def refuse(self, status: Status, text: str) -> None:
        """Say why not, and end the call."""
        if self.stage is Stage.DIALING:
            self.stream.answered = True
            self._end_call(status, text)
            self._over(Ending.CLEAN)

    # Towards the client.

    def write(self, data: bytes) -> bool:
        """Send payloads; see End."""
        if self.stage is not Stage.OPEN or self._eof_out or not data:
            return True
        return self.send(data)

    def write_eof(self) -> None:
        """The target ended: tell the client, in a way that it knows."""
        if self.stage is not Stage.OPEN or self._eof_out:
            return
        self._eof_out = True
        if self._eof_in:
            self.stream.end(_OK)
            self._over(Ending.CLEAN)
        elif self._half_closes:
            self.stream.write(END_OF_DATA, b"")
        else:
            self.stream.patient = True
            self.stream.end(_OK)

    def abort(self, reason: Ending) -> None:
        """Tell the client that it was no clean end; see End."""
        if self.ending is not None:
            return
        stream = self.stream
        if stream.out_bytes:  # it does not read: only a reset gets past what waits
            stream.reset(ErrorCode.INTERNAL_ERROR)
        elif stream.local_done:  # OK was said: there is no more to it than that
            stream.reset(ErrorCode.CANCEL)
        else:
            dialing = self.stage is Stage.DIALING
            self._end_call(Status.CANCELLED if dialing else Status.ABORTED, reason.value)
        self._over(reason)

    def _end_call(self, status: Status, text: str) -> None:
        if self.stream.headers_sent:
            self.stream.end(tuple(status_headers(status, text)))
        else:
            refusal = Refusal(http_status=200, status=status, message=text)
            self.stream.send_headers(tuple(refusal.to_headers()), end=True, more=self.named)

    def _over(self, ending: Ending) -> None:
        if self.ending is None:
            self.stage = Stage.OVER
            self._reader.pieces.clear()
            self.client = None
            self.finish(ending)
            if self.stream.held:  # nobody will say that there is room
                self.stream.release()

    # From the client: see http2_stream.Handler.

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """The request's were read before; trailers of a request say nothing."""

    def got_end(self, stream: Http2Stream) -> None:
        """The client half-closed."""
        if self.stage is Stage.OVER:
            return
        if not self._reader.at_boundary:
            self.violated(ProtocolError("the call ended inside a message"))
            return
        self._eof_in = True
        self.peer.write_eof()  # before the dial's answer it is remembered until there is a peer
        if self._eof_out and self.ending is None:
            stream.end(_OK)
            self._over(Ending.CLEAN)

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        """The call is gone: without a goodbye, or because the client took note of ours."""
        if self._eof_out and stream.local_done and code == ErrorCode.NO_ERROR:
            # "RST_STREAM(NO_ERROR)" is what gRPC's clients send when trailers end a call that
            # they had not half-closed.
            self._eof_in = True
            peer = self.peer
            self._over(Ending.CLEAN)
            peer.write_eof()
        else:
            self._gone(Ending.RESET)

    def violated(self, error: ProtocolError) -> None:
        """End the call and everything that hangs on it."""
        too_large = isinstance(error, MessageTooLarge)
        if self.client is not None:
            self.client.broke_rules(str(error))
        if self._eof_out and not self._half_closes:  # OK is said, or waits to be
            self.stream.reset(ErrorCode.PROTOCOL_ERROR)
        else:
            status = Status.RESOURCE_EXHAUSTED if too_large else Status.INTERNAL
            self._end_call(status, str(error))
        self._gone(Ending.PROTOCOL)

    def _gone(self, reason: Ending) -> None:
        """Nothing can be said to the client any more: take back its dial, or reset its target."""
        client, stage, peer = self.client, self.stage, self.peer
        self._over(reason)
        if stage is Stage.DIALING and client is not None:
            client.left()
        else:
            peer.abort(reason)
