"""Parses an HTTP/2 connection: passes whole frames to the next layer, and data to its stream.

Data passes through as it arrives; only other frames, 16 KiB at most, are gathered. The third layer
of http2.py, which handles the other frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from isthmus.tunnel.budget import Account
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.http2_table import StreamTable
from isthmus.tunnel.limits import Http2Limits
from isthmus.tunnel.session import Carrier
from isthmus.wire.http2 import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADER_BYTES,
    MAX_STREAM_ID,
    MIN_MAX_FRAME,
    PADDED,
    PREFACE,
    PRIORITY_FLAG,
    SETTINGS,
    ErrorCode,
    HeaderReader,
    Headers,
    Http2Error,
    StreamError,
    unpack_head,
    window_update,
    without_padding,
)

#: A partial frame other than data is not counted below this size.
_SMALL_FRAME = 1024


class FrameReader(StreamTable):
    """The receiving half of a connection."""

    __slots__ = (
        "_blocks",
        "_body",
        "_body_flags",
        "_client_magic",
        "_gathering",
        "_head",
        "_into",
        "_owed",
        "_pad",
        "_touched",
        "got_settings",
        "receive_credit",
    )

    def __init__(
        self,
        carrier: Carrier,
        limits: Http2Limits,
        *,
        client: bool,
        clock: Callable[[], float],
        account: Account | None,
    ) -> None:
        super().__init__(carrier, limits, client=client, clock=clock, account=account)
        self.got_settings = False
        self.receive_credit = limits.connection_window_bytes
        self._owed = 0
        self._client_magic = b"" if client else PREFACE
        # The rest of a data frame, or an incomplete frame.
        self._head = bytearray()
        self._gathering = False  # a frame or a header block is charged
        self._body = self._body_flags = self._pad = 0
        self._into: Http2Stream | None = None
        self._touched: list[Http2Stream] = []
        self._blocks = HeaderBlocks(limits)

    def receive(self, view: memoryview) -> None:
        """Take what the carrier read, however it is split.

        Raises:
            Http2Error: the peer violated the protocol; GOAWAY is written, the connection must end.
        """
        try:
            if self._waiting_control_bytes > self.limits.max_waiting_control_bytes:
                raise Http2Error(
                    ErrorCode.ENHANCE_YOUR_CALM, "peer sends requests but does not read"
                )
            self._receive(view)
        except Http2Error as exc:
            self.go_away(exc.code, str(exc))
            raise
        finally:
            touched = self._touched
            if touched:
                self._touched = []
                for stream in touched:
                    stream.in_batch = False
                    if stream.open:
                        self._guard(stream, stream.handler.batch_over)

    def _receive(self, view: memoryview) -> None:
        pos, end = 0, len(view)
        if self._client_magic:
            pos = self._take_magic(view)
        while pos < end and not self.closed:
            if self._body:
                pos = self._more_data(view, pos, end)
            elif not self._head and end - pos >= HEADER_BYTES:
                high, low, kind, flags, stream_id = unpack_head(view, pos)
                size = high << 8 | low
                if kind == DATA:
                    stream = self.streams.get(stream_id)
                    pos += HEADER_BYTES
                    # The fast path: a whole, plain data frame for a known stream.
                    if (
                        stream is not None
                        and not flags
                        and size <= end - pos
                        and not stream.remote_done
                        and stream.got_headers
                        and self._blocks.gathered is None
                        and 0 < size <= MIN_MAX_FRAME
                    ):
                        self._credit_used(stream, size)
                        self._deliver(stream, view[pos : pos + size])
                        pos += size
                    else:
                        self._begin_data(stream_id, flags, size)
                elif size <= end - pos - HEADER_BYTES:
                    self._check_size(size)
                    pos += HEADER_BYTES
                    self._whole(kind, flags, stream_id, bytes(view[pos : pos + size]))
                    pos += size
                else:
                    self._check_size(size)
                    if size > _SMALL_FRAME:
                        self._gather()
                    self._head += view[pos:end]
                    pos = end
            else:
                pos = self._more_head(view, pos, end)

    def _take_magic(self, view: memoryview) -> int:
        size = min(len(self._client_magic), len(view))
        if view[:size] != self._client_magic[:size]:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 preface")
        self._client_magic = self._client_magic[size:]
        return size

    def _more_head(self, view: memoryview, pos: int, end: int) -> int:
        """Gather a split frame; of a data frame only the header."""
        head = self._head
        if len(head) < HEADER_BYTES:
            taken = min(HEADER_BYTES - len(head), end - pos)
            head += view[pos : pos + taken]
            pos += taken
            if len(head) < HEADER_BYTES:
                return pos
        high, low, kind, flags, stream_id = unpack_head(head)
        size: int = high << 8 | low
        if kind == DATA:
            head.clear()
            self._begin_data(stream_id, flags, size)
            return pos
        self._check_size(size)
        if size > _SMALL_FRAME:
            self._gather()
        taken = min(HEADER_BYTES + size - len(head), end - pos)
        head += view[pos : pos + taken]
        if len(head) == HEADER_BYTES + size:
            self._gathered()
            payload = bytes(head[HEADER_BYTES:])
            head.clear()
            self._whole(kind, flags, stream_id, payload)
        return pos + taken

    def _gather(self) -> None:
        """Charge a frame or a header block that is kept until it is complete."""
        if not self._gathering:
            if not self.account.take(self.limits.max_header_list_bytes):
                raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "memory budget exceeded")
            self._gathering = True

    def _gathered(self) -> None:
        """Release the charge once the frame or block is complete, or the connection is gone."""
        if self._gathering and (self.closed or self._blocks.gathered is None):
            self._gathering = False
            self.account.give_back(self.limits.max_header_list_bytes)

    def _check_size(self, size: int) -> None:
        if size > MIN_MAX_FRAME:  # we never announce more
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"frame of {size} bytes")

    def _check_order(self, kind: int, stream_id: int) -> None:
        if not self._blocks.goes_on_with(kind, stream_id):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "header block interrupted")
        if not self.got_settings and kind != SETTINGS:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "first frame is not SETTINGS")

    def _whole(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        stream_id &= MAX_STREAM_ID
        self._check_order(kind, stream_id)
        self._frame(kind, flags, stream_id, payload)

    # Data.

    def _begin_data(self, stream_id: int, flags: int, size: int) -> None:
        self._check_size(size)
        stream_id &= MAX_STREAM_ID
        self._check_order(DATA, stream_id)
        stream = self.streams.get(stream_id)
        if stream_id == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "DATA frame on stream 0")
        if stream is None or stream.remote_done:
            self._stray(stream_id, stream)
            stream = None
        elif not stream.got_headers:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"DATA before HEADERS on {stream_id}")
        if flags & PADDED and not size:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "padded DATA frame without a length")
        self._credit_used(stream, size)
        if size == 0 and not flags & END_STREAM:
            self._flood("empty DATA frames")
        self._into = stream
        self._body = size
        self._body_flags = flags
        self._pad = -1 if flags & PADDED else 0
        if not size:
            self._data_over()

    def _credit_used(self, stream: Http2Stream | None, size: int) -> None:
        # The connection's window is returned at once: otherwise one stream without a reader
        # would stop all others. The streams' own windows bound what is kept, and it is
        # charged to their account.
        self.receive_credit -= size
        self._owed += size
        if self.receive_credit < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "connection window exceeded")
        if self._owed * 2 >= self.limits.connection_window_bytes:
            self.emit(window_update(0, self._owed))
            self.receive_credit += self._owed
            self._owed = 0
        if stream is not None:
            stream.receive_credit -= size
            if stream.receive_credit < 0:
                raise Http2Error(
                    ErrorCode.FLOW_CONTROL_ERROR, f"window of stream {stream.id} exceeded"
                )

    def _more_data(self, view: memoryview, pos: int, end: int) -> int:
        size = min(self._body, end - pos)
        stream = self._into
        pad_byte = 0
        if self._pad < 0:  # the first byte is the length of the padding at the end
            self._pad = view[pos]
            pad_byte = 1
            if self._pad >= self._body:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "more padding than data")
            if stream is not None:
                stream.unconsumed += 1 + self._pad
                stream.consumed(1 + self._pad)
        payload_end = pos + min(size, max(pad_byte, self._body - self._pad))
        self._body -= size
        if stream is not None and stream.open and payload_end > pos + pad_byte:
            self._deliver(stream, view[pos + pad_byte : payload_end])
        if not self._body:
            self._data_over()
        return pos + size

    def _deliver(self, stream: Http2Stream, piece: memoryview) -> None:
        size = len(piece)
        # Counted as it arrives: credit for the rest of a frame is not returned before it arrives.
        stream.unconsumed += size
        if stream.content_left >= 0:
            stream.content_left -= size
            if stream.content_left < 0:
                self._peer_broke(stream, ErrorCode.PROTOCOL_ERROR, "more data than content-length")
                return
        if not stream.in_batch:
            stream.in_batch = True
            self._touched.append(stream)
        try:
            stream.handler.got_data(stream, piece)
        except StreamError as exc:
            self._fail_stream(stream, exc.code, str(exc))

    def _data_over(self) -> None:
        stream, self._into = self._into, None
        if stream is not None and stream.open and self._body_flags & END_STREAM:
            self._end_of(stream)

    def _end_of(self, stream: Http2Stream) -> None:
        """END_STREAM arrived, with data or with headers."""
        if stream.content_left > 0:
            self._peer_broke(stream, ErrorCode.PROTOCOL_ERROR, "less data than content-length")
            return
        if stream.in_batch:  # the end follows the bytes
            self._guard(stream, stream.handler.batch_over)
        if stream.open:
            self._guard(stream, Http2Stream.ended_by_peer)

    # Implemented by http2.py.

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Handle a whole frame other than data."""
        raise NotImplementedError

    def go_away(self, code: ErrorCode, text: str) -> None:
        """Tell the peer why the connection ends."""
        raise NotImplementedError


class HeaderBlock(NamedTuple):
    """One whole header block."""

    stream_id: int
    headers: Headers
    end: bool
    #: The stream's priority depends on itself, which is a stream error.
    self_dependent: bool


class HeaderBlocks:
    """Gathers and decodes the blocks of one connection, in order."""

    __slots__ = (
        "_continuations",
        "_end",
        "_limits",
        "_reader",
        "_self_dependent",
        "_stream_id",
        "gathered",
    )

    def __init__(self, limits: Http2Limits) -> None:
        self._limits = limits
        self._reader = HeaderReader(limits.max_header_list_bytes)
        #: The stream of a block that CONTINUATION must complete before any other frame.
        self.gathered: bytearray | None = None
        self._stream_id = self._continuations = 0
        self._end = self._self_dependent = False

    def goes_on_with(self, kind: int, stream_id: int) -> bool:
        """Whether a frame may follow the previous one."""
        return self.gathered is None or (kind == CONTINUATION and stream_id == self._stream_id)

    def headers(self, flags: int, stream_id: int, payload: bytes) -> HeaderBlock | None:
        """Take a HEADERS frame; returns the block once it is complete."""
        if stream_id % 2 == 0:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"HEADERS frame on stream {stream_id}")
        payload = without_padding(payload, flags, "HEADERS")
        self._self_dependent = False
        if flags & PRIORITY_FLAG:
            if len(payload) < 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS frame too short")
            depends_on = int.from_bytes(payload[:4], "big") & MAX_STREAM_ID
            self._self_dependent = depends_on == stream_id
            payload = payload[5:]
        self._stream_id = stream_id
        self._end = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            return self._whole(payload)
        self.gathered = bytearray(payload)
        self._continuations = 0
        return None

    def continuation(self, flags: int, payload: bytes) -> HeaderBlock | None:
        """Take a CONTINUATION frame; returns the block once it is complete."""
        gathered = self.gathered
        if gathered is None:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        gathered += payload
        self._continuations += 1
        if (
            self._continuations > self._limits.max_continuations
            or len(gathered) > self._limits.max_header_list_bytes
        ):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "header block too long")
        if not flags & END_HEADERS:
            return None
        self.gathered = None
        return self._whole(bytes(gathered))

    def _whole(self, block: bytes) -> HeaderBlock:
        # Decoded even if it will be discarded, because it changes the peer's table.
        headers = self._reader.read(block)
        return HeaderBlock(self._stream_id, headers, self._end, self._self_dependent)
