"""The client's side of a KEP-1281 call: one dial, and the end that comes of it.

The other side is payload_end.py, which says what a call can say. In short, here:

- the response's headers are the dial's success; a status before them is its failure;
- our half-close is END_STREAM, our reset RST_STREAM(CANCEL);
- the target's half-close is END_OF_DATA from a server that agreed to it. From another one it is
  the end of the call with OK: it reads as an end of file, and what is written after it resets the
  writer, as a kernel would;
- the target's reset is RST_STREAM, or a status that is not OK; so is a call that ends inside a
  message.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from isthmus.errors import ProtocolError
from isthmus.tunnel.end import Early, Ending
from isthmus.tunnel.http2_calls import NOBODY
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.payload_stream import PayloadStream
from isthmus.wire.asking import HALF_CLOSE
from isthmus.wire.grpc import Status, read_status, response_problem
from isthmus.wire.http2 import ErrorCode, Headers


class Stage(Enum):
    """How far a call is."""

    DIALING = "dialing"
    OPEN = "open"
    LEFT = "closed by the server"
    OVER = "over"


class Caller(Protocol):
    """Who makes a call. One of these is told, once."""

    def dialed(self) -> None:
        """The target is reached; the end may be joined."""

    def call_failed(self, status: Status, text: str) -> None:
        """It is not, in the server's words."""

    def not_called(self, text: str) -> None:
        """The server refused the stream unseen: nothing was done, and the call may be repeated."""

    def connection_lost(self, text: str) -> None:
        """The connection went, and the answer with it."""


class PayloadCall(PayloadStream):
    """The end at the client's side of one call."""

    __slots__ = ("_caller", "_cut", "_status", "stage")

    def __init__(self, caller: Caller, *, early: Early | None = None) -> None:
        super().__init__(early)
        self._caller: Caller | None = caller
        self.stage = Stage.DIALING
        self._status: tuple[Status, str] | None = None
        self._cut = False  # the server ended before it had taken everything

    def __repr__(self) -> str:
        return f"<PayloadCall {self.stage.value}>"

    def call(self, stream: Http2Stream, headers: Headers, *, secret: bool = False) -> None:
        """Ask for a connection; the headers name the target."""
        self.stream = stream
        stream.handler = self
        stream.send_headers(headers, secret=secret)

    def open_unheard(self) -> None:
        """Take the call for answered: its server says nothing before the target does."""
        if self.stage is Stage.DIALING:
            self._opened()

    def _opened(self) -> None:
        caller, self._caller = self._caller, None
        self.stage = Stage.OPEN
        if caller is not None:
            caller.dialed()

    # Towards the server.

    def write(self, data: bytes) -> bool:
        """Send payloads; see End."""
        if not data or self._eof_out:
            return True
        if self.stage is Stage.OPEN:
            return self.send(data)
        if self.stage is Stage.LEFT:  # nobody reads there any more: reset the writer
            self._lost(Ending.RESET)
        return True

    def write_eof(self) -> None:
        """Half-close; see End."""
        if self._eof_out or self.stage not in (Stage.OPEN, Stage.LEFT):
            return
        self._eof_out = True
        if self.stage is Stage.LEFT:
            self._both_ended()
        else:
            assert self.stream is not None
            self.stream.end()

    def abort(self, reason: Ending) -> None:
        """Take the dial back, or reset the connection; see End."""
        if self.ending is None:
            self._caller = None
            self._let_go(ErrorCode.CANCEL)
            self._over(reason)

    def _let_go(self, code: ErrorCode) -> None:
        """End the stream, whatever it still had to say."""
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.handler = NOBODY
            if not stream.remote_done:
                stream.reset(code)
            elif not stream.local_done:
                # What gRPC's clients do when trailers end a call that they had not half-closed.
                stream.reset(ErrorCode.NO_ERROR)

    def _over(self, ending: Ending) -> None:
        self.stage = Stage.OVER
        self._reader.pieces.clear()
        self.finish(ending)

    def _lost(self, reason: Ending) -> None:
        if self.ending is None:
            peer = self.peer
            self._let_go(ErrorCode.CANCEL)
            self._over(reason)
            peer.abort(reason)

    def _both_ended(self) -> None:
        """The server said OK and we are done, too: clean, if it took what we sent."""
        self._over(Ending.RESET if self._cut else Ending.CLEAN)

    # From the server: see http2_stream.Handler.

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """Read the response, or the trailers."""
        if any(name == b":status" for name, _ in headers):
            problem = response_problem(headers)
            if problem is not None:
                self._call_over(*problem)
                return
            if not end:
                self._reader.hears_end = any(name == HALF_CLOSE for name, _ in headers)
                if self.stage is Stage.DIALING:
                    self._opened()
                return
        if end:
            self._status = read_status(headers)

    def data_ended(self) -> None:
        """The target sends nothing more; we still may."""
        self._eof_in = True
        self.peer.write_eof()

    def got_end(self, stream: Http2Stream) -> None:
        """The server ended the call."""
        status, text = self._status or (Status.UNKNOWN, "no grpc-status")
        self.hand_on()
        if self.ending is not None:
            return  # the peer was reset by what came
        if self.stage is Stage.DIALING and status is Status.OK:
            self._call_over(Status.UNKNOWN, "the call ended without an answer")
        elif status is not Status.OK:
            self._call_over(status, text)
        elif not self._reader.at_boundary:
            self._call_over(Status.INTERNAL, "the call ended inside a message")
        else:
            self._closed(stream)

    def _closed(self, stream: Http2Stream) -> None:
        """The call ended with OK: the end of file, and nobody there to send to."""
        self._cut = bool(stream.out_bytes)
        was_ended, self._eof_in = self._eof_in, True
        self._let_go(ErrorCode.NO_ERROR)
        self.stage = Stage.LEFT
        if not was_ended:
            self.peer.write_eof()
        if self.ending is not None:
            return  # it was answered from inside
        if self._eof_out:
            self._both_ended()
        else:
            self.peer.resume_reading()  # what it sends now resets it

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        """The call is gone."""
        gone = stream.connection.closed
        caller, self._caller = self._caller, None
        if self.stage is Stage.DIALING and caller is not None:
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
        """What came is no stream of payloads: reset it."""
        self._call_over(Status.INTERNAL, str(error), Ending.PROTOCOL)

    def _call_over(self, status: Status, text: str, reason: Ending = Ending.RESET) -> None:
        caller, self._caller = self._caller, None
        if caller is None:
            self._lost(reason)
            return
        self._let_go(ErrorCode.CANCEL)
        self._over(reason)
        caller.call_failed(status, text)
