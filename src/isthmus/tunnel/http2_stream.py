"""One HTTP/2 stream: the windows of both directions, and how the stream ends.

The bytes are a gRPC call's; the stream's handler interprets them. http2.py parses frames and
schedules turns between streams.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from isthmus.tunnel.budget import LEAST_WINDOW, SLOW_WINDOW, Account
from isthmus.tunnel.limits import Http2Limits
from isthmus.tunnel.traffic_classes import TURN_BYTES
from isthmus.wire.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    ErrorCode,
    Headers,
    encode_headers,
    frame,
    frame_head,
    rst_stream,
    window_update,
)


class Handler(Protocol):
    """The receiver of a stream's bytes. Methods raise only ProtocolError (StreamError)."""

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """The request or response, and later the trailers; ``end``: nothing more follows."""

    def got_data(self, stream: Http2Stream, view: memoryview) -> None:
        """Bytes arrived; the view is of a shared buffer and valid until this returns."""

    def batch_over(self, stream: Http2Stream) -> None:
        """The carrier's read is processed: hand on what was gathered.

        The consumer of the bytes returns the credit with ``stream.consumed``.
        """

    def got_end(self, stream: Http2Stream) -> None:
        """The peer half-closed, after its last data or trailers."""

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        """The peer reset the stream, or the connection is gone. The last call."""

    def can_write(self, stream: Http2Stream) -> None:
        """All waiting bytes were sent."""


class _NoHandler:
    """The handler of a stream that has none yet, or no longer."""

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None: ...
    def got_data(self, stream: Http2Stream, view: memoryview) -> None: ...
    def batch_over(self, stream: Http2Stream) -> None: ...
    def got_end(self, stream: Http2Stream) -> None: ...
    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None: ...
    def can_write(self, stream: Http2Stream) -> None: ...


NOBODY = _NoHandler()


class StreamOwner(Protocol):
    """The connection (Http2Connection), as its streams see it."""

    account: Account
    client: bool
    closed: bool
    limits: Http2Limits
    #: The windows and the largest frame of the peer.
    peer_max_frame: int
    peer_window: int
    #: How much of the connection window this batch may still carry.
    room: int
    round_trip_s: float

    def emit(self, whole: bytes) -> None: ...
    def emit_data(self, head: bytes, more_head: bytes, data: bytes, size: int) -> None: ...
    def emit_parts(self, head: bytes, parts: list[bytes | memoryview], size: int) -> None: ...
    def want_turn(self, stream: Http2Stream) -> None: ...
    def linger(self, stream: Http2Stream) -> None: ...
    def hold(self, stream: Http2Stream) -> None: ...
    def release(self, stream: Http2Stream) -> None: ...
    def keep(self, stream: Http2Stream, size: int) -> None: ...
    def charge(self, stream: Http2Stream, account: Account) -> None: ...
    def forget(self, stream: Http2Stream) -> None: ...


class Http2Stream:
    """One stream; ``open`` until both directions ended or one side reset it."""

    __slots__ = (
        "_ending",
        "_out",
        "account",
        "answered",
        "connection",
        "content_left",
        "credit",
        "full_window",
        "got_headers",
        "handler",
        "headers_sent",
        "held",
        "id",
        "in_batch",
        "in_turn",
        "kept",
        "local_done",
        "lost_bytes",
        "open",
        "out_bytes",
        "owed",
        "paced",
        "patient",
        "receive_credit",
        "remote_done",
        "unconsumed",
        "window",
    )

    def __init__(self, connection: StreamOwner, stream_id: int, handler: Handler) -> None:
        self.connection = connection
        self.account = connection.account.join()  # pays for what the stream holds
        self.id = stream_id
        self.handler = handler
        self.open = True
        self.answered = False  # a reset then does not count as a flood
        # Sending.
        self.credit = connection.peer_window
        self._out: deque[bytes | memoryview] | None = None
        self.out_bytes = 0
        self.lost_bytes = 0  # of those, discarded at close
        self.in_turn = False
        self.headers_sent = False
        self.local_done = False
        self.patient = False  # our end does not cut off the client's data
        self._ending: bytes | None = None  # trailers (or b"") to send after waiting data
        # Receiving.
        self.window = self.receive_credit = connection.limits.stream_window_bytes
        self.full_window = self.window  # less while its account is over its share
        self.paced = False  # its handler does the slowing (packet_brake.py)
        self.owed = 0
        self.unconsumed = 0
        self.held = 0  # of that, not taken by a full sink
        self.kept = 0  # bytes of an incomplete message
        self.in_batch = False
        self.got_headers = False
        self.remote_done = False
        self.content_left = -1

    def __repr__(self) -> str:
        return f"<Http2Stream {self.id}, {self.out_bytes} waiting, {self.unconsumed} unconsumed>"

    # Sending.

    def send_headers(
        self, headers: Headers, *, end: bool = False, secret: bool = False, more: bytes = b""
    ) -> None:
        """Send the request or the response immediately, before waiting data.

        ``secret``: it holds a token, which no cache may keep. ``more`` is already encoded, by
        ``literal_header``: it differs each time and would only fill the cache.
        """
        if not self.open or self.local_done:
            return
        self.headers_sent = True
        block = encode_headers.__wrapped__(headers) if secret else encode_headers(headers)
        self.connection.emit(_headers_frames(self, block + more if more else block, end))
        if end:
            self._local_end()

    def write(self, head: bytes, data: bytes) -> bool:
        """Send ``head + data`` as far as windows allow and keep the rest; False: wait.

        The handler's ``can_write`` is called when everything has been sent.
        """
        if not self.open or self.local_done or self._ending is not None:
            return True
        size = len(head) + len(data)
        connection = self.connection
        if (
            self._out is None
            and 0 < size <= self.credit
            and size <= connection.room
            and size <= connection.peer_max_frame
        ):
            self.credit -= size
            connection.emit_data(frame_head(size, DATA, 0, self.id), head, data, size)
            return True
        if not size:
            return self._out is None
        first = self._out is None
        if self._out is None:
            self._out = deque()
        self._out.append(head)
        if data:
            self._out.append(data)
        self.out_bytes += size
        # Bytes behind waiting bytes take their turn: a handler that was told to wait is called
        # with can_write only from there.
        if first:
            self.take_turn()
            if not self.out_bytes:
                return True
        connection.want_turn(self)
        return False

    def end(self, trailers: Headers = ()) -> None:
        """Half-close with trailers, after all waiting data."""
        if not self.open or self.local_done or self._ending is not None:
            return
        self._ending = encode_headers(trailers) if trailers else b""
        if self._out is None:
            self._send_end()
        else:
            self.connection.linger(self)

    def reset(self, code: ErrorCode) -> None:
        """Reset the stream; waiting data is dropped and the handler is not called again."""
        if self.open:
            self.connection.emit(rst_stream(self.id, code))
            self._close()

    @property
    def can_send(self) -> bool:
        """Whether data is waiting and the window is open."""
        return self._out is not None and self.credit > 0 and self.open

    def take_turn(self) -> None:
        """Send waiting data, as far as the windows, this batch and fairness allow."""
        out = self._out
        connection = self.connection
        left = TURN_BYTES
        while out and left > 0:
            budget = min(connection.peer_max_frame, self.credit, connection.room, self.out_bytes)
            if budget <= 0:
                return
            parts: list[bytes | memoryview] = []
            size = 0
            while size < budget:
                part = out.popleft()
                if len(part) > budget - size:
                    view = memoryview(part)
                    out.appendleft(view[budget - size :])
                    part = view[: budget - size]
                parts.append(part)
                size += len(part)
            self.credit -= size
            self.out_bytes -= size
            left -= size
            connection.emit_parts(frame_head(size, DATA, 0, self.id), parts, size)
        if out:
            return
        self._out = None
        if self._ending is not None:
            self._send_end()

    def _send_end(self) -> None:
        block, self._ending = self._ending, None
        if block:
            self.connection.emit(_headers_frames(self, block, True))
        else:
            self.connection.emit(frame(DATA, END_STREAM, self.id))
        self._local_end()

    def _local_end(self) -> None:
        self.local_done = True
        if self.remote_done:
            self._close()
        elif not self.connection.client and not self.patient:
            # As grpc-go does: after the answer, the client need not end its side first.
            self.reset(ErrorCode.NO_ERROR)

    # Receiving.

    def hold(self) -> None:
        """The sink is full: count what it has not taken, and withhold the credit."""
        self.connection.hold(self)

    def release(self) -> None:
        """The sink took everything: return the credit."""
        if self.held:
            self.connection.release(self)
        self.consumed(self.unconsumed)

    def keep(self, size: int) -> None:
        """Count an incomplete message, so that many of them stay bounded."""
        self.connection.keep(self, size)

    def consumed(self, size: int) -> None:
        """``size`` bytes were consumed: the peer may send as many more."""
        self.unconsumed -= size
        self.owed += size
        if self.owed * 2 >= self.window and self.open and not self.remote_done:
            if self.account.over_share and not self.paced:
                self._slow_down()
                return
            if self.window < self.full_window:
                self.owed += self.full_window - self.window
                self.window = self.full_window
            self.receive_credit += self.owed
            self.connection.emit(window_update(self.id, self.owed))
            self.owed = 0

    def _slow_down(self) -> None:
        """Return less credit than was used, which slows the sender.

        Never zero while the sink takes bytes, because the sender would then have to be woken.
        """
        budget = self.account.budget
        budget.over_share += 1
        most = LEAST_WINDOW if budget.exhausted else SLOW_WINDOW
        given = min(self.owed, max(0, most - self.receive_credit - self.unconsumed))
        self.window -= self.owed - given
        self.owed = 0
        if given:
            self.receive_credit += given
            self.connection.emit(window_update(self.id, given))

    def give(self, size: int) -> None:
        """Return ``size`` bytes of credit to the peer at once, however few."""
        self.unconsumed -= size
        self.owed += size
        if self.owed > 0 and self.open and not self.remote_done:
            self.receive_credit += self.owed
            self.connection.emit(window_update(self.id, self.owed))
            self.owed = 0

    def shrink_window(self, window: int) -> None:
        """Reduce the peer's window to this, once it has used its current credit."""
        if window < self.full_window:
            less = max(0, self.window - window)  # it may already be slowed
            self.owed -= less
            self.window -= less
            self.full_window = window

    def grow_window(self, window: int) -> None:
        """Raise the peer's window to this."""
        if window > self.full_window:
            self.owed += window - self.full_window
            self.window += window - self.full_window
            self.full_window = window
            self.consumed(0)

    def ended_by_peer(self) -> None:
        """END_STREAM arrived."""
        self.remote_done = True
        self.handler.got_end(self)
        if self.local_done:
            self._close()

    def lost(self, code: int, text: str) -> None:
        """The peer reset the stream, or the connection is gone."""
        if self.open:
            self._close()
            self.handler.was_reset(self, code, text)

    def _close(self) -> None:
        self.open = False
        self._out = None
        self.lost_bytes, self.out_bytes = self.out_bytes, 0
        self.connection.forget(self)


def _headers_frames(stream: Http2Stream, block: bytes, end: bool) -> bytes:
    flags = END_STREAM if end else 0
    most = stream.connection.peer_max_frame
    if len(block) <= most:
        return frame(HEADERS, flags | END_HEADERS, stream.id, block)
    # An error text can be as long as the path that a client sent, or longer with escapes.
    frames = [frame(HEADERS, flags, stream.id, block[:most])]
    for at in range(most, len(block), most):
        last = at + most >= len(block)
        piece = block[at : at + most]
        frames.append(frame(CONTINUATION, END_HEADERS if last else 0, stream.id, piece))
    return b"".join(frames)
