"""Header blocks of an HTTP/2 connection: HEADERS, what CONTINUATION adds, and their decoding.

What the headers mean for a stream is http2.py; HPACK is wire/http2.py.
"""

from __future__ import annotations

from typing import NamedTuple

from isthmus.tunnel.http2_limits import Http2Limits
from isthmus.wire.http2 import (
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    MAX_STREAM_ID,
    PRIORITY_FLAG,
    ErrorCode,
    HeaderReader,
    Headers,
    Http2Error,
    without_padding,
)


class Block(NamedTuple):
    """One whole header block."""

    stream_id: int
    headers: Headers
    end: bool
    #: Its priority says that it depends on itself, which is an error of the stream.
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
        #: A block that CONTINUATION has to go on with: nothing else may come before.
        self.gathered: bytearray | None = None
        self._stream_id = self._continuations = 0
        self._end = self._self_dependent = False

    def goes_on_with(self, kind: int, stream_id: int) -> bool:
        """Tell whether a frame may follow the one before."""
        return self.gathered is None or (kind == CONTINUATION and stream_id == self._stream_id)

    def headers(self, flags: int, stream_id: int, payload: bytes) -> Block | None:
        """Take a HEADERS frame; gives the block when it is whole."""
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

    def continuation(self, flags: int, payload: bytes) -> Block | None:
        """Take a CONTINUATION frame; gives the block when it is whole."""
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

    def _whole(self, block: bytes) -> Block:
        # Decoded even where it will be thrown away: the peer's table has changed by it.
        headers = self._reader.read(block)
        return Block(self._stream_id, headers, self._end, self._self_dependent)
