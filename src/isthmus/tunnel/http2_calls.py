"""Calls of an HTTP/2 connection: what headers do, from a request to its trailers.

The fourth layer of http2.py; how blocks are gathered and decoded is http2_headers.py.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.tunnel.budget import Account
from isthmus.tunnel.http2_headers import Block
from isthmus.tunnel.http2_limits import Http2Limits
from isthmus.tunnel.http2_reader import FrameReader
from isthmus.tunnel.http2_stream import Handler, Http2Stream
from isthmus.tunnel.http2_table import STREAM_BYTES
from isthmus.tunnel.session import Carrier
from isthmus.wire import http2
from isthmus.wire.http2 import ErrorCode, Headers, Http2Error, StreamError, rst_stream


class Calls(FrameReader):
    """Opens and answers by headers."""

    __slots__ = ("draining", "on_request")

    def __init__(
        self,
        carrier: Carrier,
        limits: Http2Limits,
        *,
        client: bool,
        clock: Callable[[], float],
        on_request: Callable[[Http2Stream, Headers], Handler] | None,
        account: Account | None,
    ) -> None:
        super().__init__(carrier, limits, client=client, clock=clock, account=account)
        self.on_request = on_request
        self.draining = False

    def _block(self, block: Block | None) -> None:
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
        # Else they were under way when we ended the stream.

    def _new_stream(self, block: Block) -> None:
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
            self._got_headers(stream, headers, end)  # a 1xx is only a promise of it

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


class _Nobody:
    """The handler of a stream that has none yet."""

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """Nobody listens."""

    def got_data(self, stream: Http2Stream, view: memoryview) -> None:
        """Nobody listens."""

    def batch_over(self, stream: Http2Stream) -> None:
        """Nobody listens."""

    def got_end(self, stream: Http2Stream) -> None:
        """Nobody listens."""

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        """Nobody listens."""

    def can_write(self, stream: Http2Stream) -> None:
        """Nobody listens."""


NOBODY = _Nobody()
