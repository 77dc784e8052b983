"""An HTTP/2 connection without I/O: frames in, frames out, streams between. Either side.

It implements only what Isthmus needs: general libraries measured a third to half of Go's request
rate. The plumbing passes what the carrier read to ``receive(view)`` and calls ``flush()`` once per
batch of events, exactly as with a mux session (session.py).

One object, built in layers so that a frame needs no extra calls: http2_table.py sends and keeps
the streams and their limits; http2_reader.py parses frames. This layer handles headers, the other
frames, opening and closing, and liveness. A stream is http2_stream.py; its handler interprets the
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from isthmus.tunnel.budget import STREAM_BYTES, Account
from isthmus.tunnel.http2_reader import FrameReader, HeaderBlock
from isthmus.tunnel.http2_stream import NOBODY, Handler, Http2Stream
from isthmus.tunnel.limits import KIB, Http2Limits
from isthmus.tunnel.session import Carrier
from isthmus.wire import http2
from isthmus.wire.http2 import (
    ACK,
    CONTINUATION,
    GOAWAY,
    HEADERS,
    MAX_STREAM_ID,
    MAX_WINDOW,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    ErrorCode,
    Headers,
    Http2Error,
    StreamError,
    frame,
    rst_stream,
    window_update,
)

_PING = b"isthmus1"
_LIMITS = Http2Limits()


@lru_cache(maxsize=16)
def _greeting(limits: Http2Limits, client: bool) -> bytes:
    """The first bytes of a connection, the same for all connections with the same limits."""
    pairs = [(http2.INITIAL_WINDOW_SIZE, limits.stream_window_bytes)]
    if client:
        pairs.insert(0, (http2.ENABLE_PUSH, 0))
    else:
        pairs.insert(0, (http2.MAX_CONCURRENT_STREAMS, limits.max_streams))
    pairs.append((http2.MAX_HEADER_LIST_SIZE, limits.max_header_list_bytes))
    greeting = (PREFACE if client else b"") + http2.settings(*pairs)
    more = limits.connection_window_bytes - http2.DEFAULT_WINDOW
    return greeting + window_update(0, more) if more else greeting


class Http2Connection(FrameReader):
    """One side of a connection.

    ``on_request(stream, headers)`` is called on the server's side for each new stream and returns
    the handler of its data.
    """

    __slots__ = (
        "_last_ping",
        "_ping_at",
        "draining",
        "last_heard",
        "on_request",
        "peer_max_streams",
        "remote_draining",
    )

    def __init__(
        self,
        carrier: Carrier,
        *,
        client: bool,
        clock: Callable[[], float],
        on_request: Callable[[Http2Stream, Headers], Handler] | None = None,
        limits: Http2Limits = _LIMITS,
        account: Account | None = None,
    ) -> None:
        """``account`` pays for the streams of this connection; the owner closes it."""
        super().__init__(carrier, limits, client=client, clock=clock, account=account)
        self.on_request = on_request
        self.draining = False
        self.remote_draining = False
        self.peer_max_streams = MAX_STREAM_ID
        self._ping_at: float | None = None
        self._last_ping = self.last_heard = clock()
        self.emit(_greeting(limits, client))

    def __repr__(self) -> str:
        role = "client" if self.client else "server"
        return f"<Http2Connection {role}, {len(self.streams)} streams, {self.held} held>"

    # Opening and closing.

    def open(self, handler: Handler) -> Http2Stream | None:
        """Open a stream (client's side); the caller sends the headers next."""
        if not self.can_open:
            return None
        stream_id, self._next_id = self._next_id, self._next_id + 2
        self.account.hold(STREAM_BYTES)
        stream = self.streams[stream_id] = Http2Stream(self, stream_id, handler)
        return stream

    @property
    def can_open(self) -> bool:
        """Whether it is neither closed, drained by the peer, nor full."""
        return not (
            self.closed
            or self.remote_draining
            or len(self.streams) >= min(self.limits.max_streams, self.peer_max_streams)
            or self._next_id > MAX_STREAM_ID
        )

    def go_away(self, code: ErrorCode = ErrorCode.NO_ERROR, text: str = "") -> None:
        """Tell the peer to open no more streams; NO_ERROR drains, anything else ends."""
        if not self.closed and (not self.draining or code):
            self.draining = True
            self.emit(http2.goaway(self.last_id, code, text))

    def lost(self, text: str = "connection lost") -> None:
        """The carrier is gone: tell every stream's handler."""
        if self.closed:
            return
        self.closed = True
        self._gathered()
        self._out.clear()
        self._turns = None
        for stream in list(self.streams.values()):
            stream.lost(ErrorCode.CANCEL, text)

    # Headers, from a request to its trailers.

    def _block(self, block: HeaderBlock | None) -> None:
        if block is None:
            self._gather()
            return
        if self._gathering:
            self._gathered()
        stream_id, headers, end, _ = block
        stream = self.streams.get(stream_id)
        if stream is None:
            if self.client or stream_id <= self.last_id:
                self._stray_headers(stream_id)
            else:
                self._new_stream(block)
        elif stream.remote_done:
            self._stray(stream_id, stream)
        elif stream.got_headers:
            self._trailers(stream, headers, end)
        else:
            self._response(stream, headers, end)

    def _stray_headers(self, stream_id: int) -> None:
        ended_by_peer = self._recent.get(stream_id) if self._recent is not None else None
        if ended_by_peer:
            raise Http2Error(ErrorCode.STREAM_CLOSED, f"HEADERS on ended stream {stream_id}")
        if ended_by_peer is None and (not self.client or self._is_idle(stream_id)):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"stream {stream_id} opened out of order")
        # Otherwise they were in flight when we ended the stream.

    def _new_stream(self, block: HeaderBlock) -> None:
        stream_id, headers, end, self_dependent = block
        self.last_id = stream_id
        if self.draining or len(self.streams) >= self.limits.max_streams:
            self._flood("refused streams")
            self._refuse(stream_id, ErrorCode.REFUSED_STREAM, end)
            return
        fault = http2.request_fault(headers)
        length = http2.header(headers, b"content-length")
        if length and not (length.isdigit() and len(length) < 16):
            fault = fault or "bad content-length"
        if fault or self_dependent:
            self._flood("malformed requests")
            self._refuse(stream_id, ErrorCode.PROTOCOL_ERROR, end)
            return
        if not self.account.take(STREAM_BYTES):
            self._flood("refused streams")
            self._refuse(stream_id, ErrorCode.ENHANCE_YOUR_CALM, end)
            return
        assert self.on_request is not None
        stream = self.streams[stream_id] = Http2Stream(self, stream_id, NOBODY)
        stream.got_headers = True
        if length:
            stream.content_left = int(length)
        try:
            stream.handler = self.on_request(stream, headers)
        except StreamError as exc:
            self._fail_stream(stream, exc.code, str(exc))
        if end and stream.open:
            self._end_of(stream)

    def _refuse(self, stream_id: int, code: ErrorCode, end: bool) -> None:
        self.emit(rst_stream(stream_id, code))
        self._remember(stream_id, end)

    def _response(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        fault = http2.response_fault(headers)
        if fault:
            self._peer_broke(stream, ErrorCode.PROTOCOL_ERROR, fault)
        elif not (http2.header(headers, b":status").startswith(b"1") and not end):
            self._got_headers(stream, headers, end)  # a 1xx is not the response yet

    def _trailers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        fault = http2.trailer_fault(headers) or ("" if end else "second HEADERS without an end")
        if fault:
            self._peer_broke(stream, ErrorCode.PROTOCOL_ERROR, fault)
            return
        if stream.in_batch:
            self._guard(stream, stream.handler.batch_over)
        if stream.open:
            self._got_headers(stream, headers, end)

    def _got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        stream.got_headers = True
        try:
            stream.handler.got_headers(stream, headers, end)
        except StreamError as exc:
            self._fail_stream(stream, exc.code, str(exc))
        if end and stream.open:
            self._end_of(stream)

    # All other frames.

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE:
            self._window_update(stream_id, payload)
        elif kind == HEADERS:
            self._block(self._blocks.headers(flags, stream_id, payload))
        elif kind == RST_STREAM:
            self._rst_stream(stream_id, payload)
        elif kind == SETTINGS:
            self._settings(flags, stream_id, payload)
        elif kind == PING:
            self._pinged(flags, stream_id, payload)
        elif kind == GOAWAY:
            self._told_to_go(stream_id, payload)
        elif kind == CONTINUATION:
            self._block(self._blocks.continuation(flags, payload))
        elif kind == PRIORITY:
            self._priority(stream_id, payload)
        elif kind == PUSH_PROMISE:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE though push is off")
        else:
            self._flood("frames of unknown kinds")  # ignored, as the RFC requires

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        delta = http2.read_uint31(payload, "WINDOW_UPDATE")
        if stream_id == 0:
            if delta == 0:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self._more_credit(delta)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frame on idle stream {stream_id}")
            return
        stream.credit += delta
        if delta == 0:
            self._peer_broke(stream, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        elif stream.credit > MAX_WINDOW:
            self._peer_broke(stream, ErrorCode.FLOW_CONTROL_ERROR, "window overflow")
        elif stream.out_bytes:
            self.want_turn(stream)

    def _rst_stream(self, stream_id: int, payload: bytes) -> None:
        code = http2.read_uint32(payload, "RST_STREAM")
        if stream_id == 0 or self._is_idle(stream_id):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on stream {stream_id}")
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        # konnectivity's reusable tunnel ends every dial with a reset, thousands a second: only
        # resets of unanswered calls look like an attack.
        if not stream.answered and not self.client:
            self._flood("streams reset before their answer")
        stream.remote_done = True
        if stream.in_batch:
            with suppress(StreamError):  # already reset; a reset is not answered with another
                stream.handler.batch_over(stream)
        stream.lost(code, "reset by the peer")

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "SETTINGS frame on a stream")
        if flags & ACK:
            if payload:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS ACK with a payload")
            return
        if self.got_settings:
            self._flood("SETTINGS frames")
        window = self.peer_window
        for name, value in http2.read_settings(payload):
            if name == http2.INITIAL_WINDOW_SIZE:
                window = value
            elif name == http2.MAX_FRAME_SIZE:
                self.peer_max_frame = min(value, 64 * KIB)
            elif name == http2.MAX_CONCURRENT_STREAMS:
                self.peer_max_streams = value
        # Once per frame, which may set it 2,700 times: each change visits all streams.
        if window != self.peer_window:
            self._peer_window_is(window)
        self.got_settings = True
        self.emit(http2.SETTINGS_ACK)

    def _peer_window_is(self, window: int) -> None:
        # Windows of open streams change by the difference: grpc-go raises it while streams are
        # open.
        delta, self.peer_window = window - self.peer_window, window
        if self.got_settings:
            self._flood("changes of the window", 1 + len(self.streams) // 64)
        for stream in list(self.streams.values()):
            stream.credit += delta
            if stream.credit > MAX_WINDOW:
                raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "window overflow by SETTINGS")
            if stream.out_bytes:
                self.want_turn(stream)

    def _priority(self, stream_id: int, payload: bytes) -> None:
        if stream_id == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PRIORITY frame on stream 0")
        self._flood("PRIORITY frames")
        fault = None
        if len(payload) != 5:
            fault = ErrorCode.FRAME_SIZE_ERROR
        elif int.from_bytes(payload[:4], "big") & MAX_STREAM_ID == stream_id:
            fault = ErrorCode.PROTOCOL_ERROR  # the stream depends on itself
        if fault is not None:
            stream = self.streams.get(stream_id)
            if stream is not None:
                self._peer_broke(stream, fault, "bad PRIORITY frame")
            else:
                self.emit(rst_stream(stream_id, fault))

    def _told_to_go(self, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "GOAWAY frame on a stream")
        last, code, text = http2.read_goaway(payload)
        self._flood("GOAWAY frames", 1 + len(self.streams) // 64)
        self.remote_draining = True
        if self.client:
            for stream in [it for it in self.streams.values() if it.id > last]:
                stream.lost(
                    ErrorCode.REFUSED_STREAM, "refused: the peer is shutting down the connection"
                )
            if code:
                self.lost(f"peer ended the connection: error {code} {text}".rstrip())

    # Liveness. The owner calls tick about once a second.

    def heard(self) -> None:
        """Bytes arrived; called once per read."""
        self.last_heard = self.clock()

    @property
    def unanswered_s(self) -> float:
        """How long a ping has been unanswered; 0 without one."""
        return 0.0 if self._ping_at is None else self.clock() - self._ping_at

    def ping(self) -> None:
        """Send a ping; the answer also measures the round trip."""
        self._last_ping = self.clock()
        if self._ping_at is None:
            self._ping_at = self._last_ping
            self.emit(frame(PING, 0, 0, _PING))

    def _pinged(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PING frame on a stream")
        if len(payload) != 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"PING frame of {len(payload)} bytes")
        if not flags & ACK:
            self._flood("PING frames")
            # grpc-go pings after nearly every message to measure the bandwidth. A separate write
            # for each answer would cost as much as the messages.
            self.emit_in_time(frame(PING, ACK, 0, payload))
        elif payload == _PING and self._ping_at is not None:
            self.round_trip_s = self.clock() - self._ping_at
            self._ping_at = None

    def tick(self) -> bool:
        """Ping a silent peer, end lingering streams; False when the peer is dead."""
        now = self.clock()
        if now - self.last_heard > self.limits.dead_after_s:
            return False
        if now - max(self._last_ping, self.last_heard) >= self.limits.ping_every_s:
            self.ping()
        self._end_lingering(now)
        if self.holders or self._stuck:
            self._reset_stuck(now)
        return True
