"""KEP-1281 calls, both sides: a call is one connection, and an end.

"The state of TCP connection is exactly the same as the gRPC stream state": one stream is one
connection, and its window is the back-pressure. The events of a tunnel, for the server
(PayloadEnd), whose request names the target, so that the dial starts with it:

- target reached: the response's headers. Target not reached: a status, from the table in
  wire/payload.py, and a text;
- the client's half-close: END_STREAM. The reply still follows, and then trailers with OK;
- the target's half-close: a gRPC server can end its direction only with trailers, which end the
  call. Isthmus clients agree on a message for it (wire/payload.py, END_OF_DATA), and the trailers
  follow when both directions are done. Other clients get the trailers at once, because a client
  that waits for the end of file would otherwise wait for ever; data that it sent before it saw
  them still reaches the target, which sees the end when the client has noticed the trailers;
- the client's reset: RST_STREAM. The target's: trailers with ABORTED, or RST_STREAM if bytes
  wait that the client does not read. Never OK.

For the client (PayloadCall):

- the response's headers are the dial's success; a status before them is its failure;
- our half-close is END_STREAM, our reset RST_STREAM(CANCEL);
- the target's half-close is END_OF_DATA from a server that agreed to it. From any other server it
  is the end of the call with OK: it reads as an end of file, and a later write resets the
  writer, as a kernel would;
- the target's reset is RST_STREAM, or a status other than OK; so is a call that ends inside a
  message.

dial/frontends/grpc_proxy.py dials for a server.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.errors import ProtocolError
from isthmus.tunnel.call_stream import RESPONSE, CallClient, Caller, CallStage, CallStream
from isthmus.tunnel.end import Early, Ending
from isthmus.tunnel.http2_stream import NOBODY, Http2Stream
from isthmus.tunnel.message_reader import PayloadReader, Piece
from isthmus.wire.grpc import (
    MessageTooLarge,
    Refusal,
    Status,
    read_status,
    response_problem,
    status_headers,
)
from isthmus.wire.http2 import ErrorCode, Headers
from isthmus.wire.payload import END_OF_DATA, MOST_DATA, parse, payload_head
from isthmus.wire.request_metadata import HALF_CLOSE

_AGREED: Headers = (*RESPONSE, (HALF_CLOSE, b"1"))
_OK: Headers = tuple(status_headers(Status.OK))


class PayloadStream(CallStream):
    """An end whose bytes are the payloads of one call."""

    __slots__ = ("hears_end", "more_payload", "stage")

    more_payload: Callable[[Piece], None]

    def __init__(self, early: Early | None = None) -> None:
        super().__init__(PayloadReader(), early)
        self.stage = CallStage.DIALING
        #: END_OF_DATA was agreed on.
        self.hears_end = False
        self.more_payload = self.pieces.append  # direct: no extra call for each piece

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

    def got_payload(self, connect_id: int, piece: Piece) -> None:
        if self.saw_end:
            raise ProtocolError("kep1281: data after the end of data")
        self.pieces.append(piece)

    def got_message(self, message: Piece) -> None:
        data, end_of_data = parse(message)
        if data:
            self.got_payload(0, data)
        self.saw_end = self.saw_end or (end_of_data and self.hears_end)


class PayloadEnd(PayloadStream):
    """One connection of one client."""

    __slots__ = ("_half_closes", "client", "named")

    stream: Http2Stream

    def __init__(
        self, stream: Http2Stream, *, half_closes: bool = False, early: Early | None = None
    ) -> None:
        super().__init__(early)
        self.stream = stream
        self.client: CallClient | None = None
        self._half_closes = half_closes
        #: An encoded response header that tells the client the connection id.
        self.named = b""

    def __repr__(self) -> str:
        return f"<PayloadEnd {self.stream.id} {self.stage.value}>"

    # The dial.

    def accept(self) -> None:
        """Tell the client that the target was reached; the tunnel's bytes may follow."""
        if self.stage is CallStage.DIALING:
            self.stage = CallStage.OPEN
            self.stream.answered = True
            response = _AGREED if self._half_closes else RESPONSE
            self.stream.send_headers(response, more=self.named)

    def refuse(self, status: Status, text: str) -> None:
        """Tell the client the reason, and end the call."""
        if self.stage is CallStage.DIALING:
            self.stream.answered = True
            self._end_call(status, text)
            self._over(Ending.CLEAN)

    # Towards the client.

    def write(self, data: bytes) -> bool:
        if self.stage is not CallStage.OPEN or self._eof_out or not data:
            return True
        return self.send(data)

    def write_eof(self) -> None:
        """The target ended: tell the client in a way that it supports."""
        if self.stage is not CallStage.OPEN or self._eof_out:
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
        """Tell the client that the end was not clean."""
        if self.ending is not None:
            return
        stream = self.stream
        if stream.out_bytes:  # it does not read: only a reset overtakes waiting data
            stream.reset(ErrorCode.INTERNAL_ERROR)
        elif stream.local_done:  # OK was sent: nothing can follow
            stream.reset(ErrorCode.CANCEL)
        else:
            dialing = self.stage is CallStage.DIALING
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
            self.stage = CallStage.OVER
            self.pieces.clear()
            self.client = None
            self.finish(ending)
            if self.stream.held:  # nothing will signal room any more
                self.stream.release()

    # From the client.

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """The request's headers were read before; its trailers carry nothing."""

    def got_end(self, stream: Http2Stream) -> None:
        """The client half-closed."""
        if self.stage is CallStage.OVER:
            return
        if not self.reader.at_boundary:
            self.violated(ProtocolError("the call ended inside a message"))
            return
        self._eof_in = True
        self.peer.write_eof()  # before the dial's answer the keeper remembers it
        if self._eof_out and self.ending is None:
            stream.end(_OK)
            self._over(Ending.CLEAN)

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        """The call is gone: unexpectedly, or because the client reacted to our end."""
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
        """End the call and everything joined to it."""
        too_large = isinstance(error, MessageTooLarge)
        if self.client is not None:
            self.client.broke_rules(str(error))
        if self._eof_out and not self._half_closes:  # OK was sent, or waits to be sent
            self.stream.reset(ErrorCode.PROTOCOL_ERROR)
        else:
            status = Status.RESOURCE_EXHAUSTED if too_large else Status.INTERNAL
            self._end_call(status, str(error))
        self._gone(Ending.PROTOCOL)

    def _gone(self, reason: Ending) -> None:
        """The client cannot be reached any more: cancel its dial, or reset its target."""
        client, stage, peer = self.client, self.stage, self.peer
        self._over(reason)
        if stage is CallStage.DIALING and client is not None:
            client.left()
        else:
            peer.abort(reason)


class PayloadCall(PayloadStream):
    """The client's end of one call."""

    __slots__ = ("_caller", "_cut", "_status")

    def __init__(self, caller: Caller, *, early: Early | None = None) -> None:
        super().__init__(early)
        self._caller: Caller | None = caller
        self._status: tuple[Status, str] | None = None
        self._cut = False  # the server ended before it had taken everything

    def __repr__(self) -> str:
        return f"<PayloadCall {self.stage.value}>"

    def call(self, stream: Http2Stream, headers: Headers, *, secret: bool = False) -> None:
        """Request a connection; the headers name the target."""
        self.stream = stream
        stream.handler = self
        stream.send_headers(headers, secret=secret)

    def open_unheard(self) -> None:
        """Treat the call as answered: its server sends nothing before the target does."""
        if self.stage is CallStage.DIALING:
            self._opened()

    def _opened(self) -> None:
        caller, self._caller = self._caller, None
        self.stage = CallStage.OPEN
        if caller is not None:
            caller.dialed()

    # Towards the server.

    def write(self, data: bytes) -> bool:
        if not data or self._eof_out:
            return True
        if self.stage is CallStage.OPEN:
            return self.send(data)
        if self.stage is CallStage.LEFT:  # the server no longer reads: reset the writer
            self._lost(Ending.RESET)
        return True

    def write_eof(self) -> None:
        if self._eof_out or self.stage not in (CallStage.OPEN, CallStage.LEFT):
            return
        self._eof_out = True
        if self.stage is CallStage.LEFT:
            self._both_ended()
        else:
            assert self.stream is not None
            self.stream.end()

    def abort(self, reason: Ending) -> None:
        """Cancel the dial, or reset the connection."""
        if self.ending is None:
            self._caller = None
            self._let_go(ErrorCode.CANCEL)
            self._over(reason)

    def _let_go(self, code: ErrorCode) -> None:
        """End the stream, discarding waiting data."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.handler = NOBODY
            if not stream.remote_done:
                stream.reset(code)
            elif not stream.local_done:
                # As gRPC clients do when trailers end a call that they had not half-closed.
                stream.reset(ErrorCode.NO_ERROR)

    def _over(self, ending: Ending) -> None:
        self.stage = CallStage.OVER
        self.pieces.clear()
        self.finish(ending)

    def _lost(self, reason: Ending) -> None:
        if self.ending is None:
            peer = self.peer
            self._let_go(ErrorCode.CANCEL)
            self._over(reason)
            peer.abort(reason)

    def _both_ended(self) -> None:
        """The server sent OK and we are done, too: clean, if it took what we sent."""
        self._over(Ending.RESET if self._cut else Ending.CLEAN)

    # From the server.

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """Read the response, or the trailers."""
        if any(name == b":status" for name, _ in headers):
            problem = response_problem(headers)
            if problem is not None:
                self._call_over(*problem)
                return
            if not end:
                self.hears_end = any(name == HALF_CLOSE for name, _ in headers)
                if self.stage is CallStage.DIALING:
                    self._opened()
                return
        if end:
            self._status = read_status(headers)

    def data_ended(self) -> None:
        """The target sends nothing more; we may continue."""
        self._eof_in = True
        self.peer.write_eof()

    def got_end(self, stream: Http2Stream) -> None:
        """The server ended the call."""
        status, text = self._status or (Status.UNKNOWN, "no grpc-status")
        self.hand_on()
        if self.ending is not None:
            return  # the received data reset the peer
        if self.stage is CallStage.DIALING and status is Status.OK:
            self._call_over(Status.UNKNOWN, "the call ended without an answer")
        elif status is not Status.OK:
            self._call_over(status, text)
        elif not self.reader.at_boundary:
            self._call_over(Status.INTERNAL, "the call ended inside a message")
        else:
            self._closed(stream)

    def _closed(self, stream: Http2Stream) -> None:
        """The call ended with OK: an end of file, and the server no longer reads."""
        self._cut = bool(stream.out_bytes)
        was_ended, self._eof_in = self._eof_in, True
        self._let_go(ErrorCode.NO_ERROR)
        self.stage = CallStage.LEFT
        if not was_ended:
            self.peer.write_eof()
        if self.ending is not None:
            return  # answered from inside
        if self._eof_out:
            self._both_ended()
        else:
            self.peer.resume_reading()  # anything it sends now resets it

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        """The call is gone."""
        gone = stream.connection.closed
        caller, self._caller = self._caller, None
        if self.stage is CallStage.DIALING and caller is not None:
            self._over(Ending.LINK_LOST if gone else Ending.RESET)
            if code == ErrorCode.REFUSED_STREAM:
                caller.not_called(text)
            elif gone:
                caller.connection_lost(text)
            else:
                caller.call_failed(Status.UNAVAILABLE, text)
        else:
            self._lost(Ending.LINK_LOST if gone else Ending.RESET)

    def violated(self, error: ProtocolError) -> None:
        """The received bytes are not payloads: reset the call."""
        self._call_over(Status.INTERNAL, str(error), Ending.PROTOCOL)

    def _call_over(self, status: Status, text: str, reason: Ending = Ending.RESET) -> None:
        caller, self._caller = self._caller, None
        if caller is None:
            self._lost(reason)
            return
        self._let_go(ErrorCode.CANCEL)
        self._over(reason)
        caller.call_failed(status, text)
