"""HTTP/2 frames (RFC 9113): the header, the few numeric payloads, the error codes.

The rules of a connection are in tunnel/http2.py. hpack.py reads and writes header blocks, here
behind caches for short ones: grpc-go's first block is the same on every
new connection, and decoding it takes 27 µs, looking it up 0.3 µs (timeit).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum

from isthmus.errors import ProtocolError
from isthmus.text.short_cache import OBJECT_BYTES, short_cache
from isthmus.text.text_limits import shown
from isthmus.wire import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
DEFAULT_WINDOW = 65_535
MAX_WINDOW = 2**31 - 1
MIN_MAX_FRAME = 16_384
MAX_MAX_FRAME = 2**24 - 1
MAX_STREAM_ID = 2**31 - 1

# Plain integers: comparing an enum member costs more, and happens for every frame.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE = 0, 1, 2, 3, 4, 5
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6

Header = hpack.Header
Headers = hpack.Headers

#: Longer blocks and lists are not cached: they are decoded, checked and written each time.
_SHORT_BLOCK_BYTES = 512
_SHORT_LIST_BYTES = 4096
#: Limit for a block of only indexes, one byte each; grpc-go's has nine.
_MOST_INDEXES = 64

_FRAME = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")
_UINT32 = struct.Struct(">I")
_GOAWAY = struct.Struct(">II")


class ErrorCode(IntEnum):
    """Why a stream or a connection ends (RFC 9113 section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Http2Error(ProtocolError):
    """The peer violated HTTP/2 and the connection must end; ``code`` goes into GOAWAY."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(f"http2: {message}")
        self.code = code


class StreamError(Http2Error):
    """The peer violated the rules of one stream; the others continue."""


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frame_head(len(payload), kind, flags, stream_id) + payload


def frame_head(size: int, kind: int, flags: int, stream_id: int) -> bytes:
    """The header of a frame with a payload of ``size`` bytes."""
    return _FRAME.pack(size >> 8, size & 0xFF, kind, flags, stream_id)


#: (size >> 8, size & 0xff, kind, flags, stream id with the reserved bit) at an offset.
unpack_head = _FRAME.unpack_from


def window_update(stream_id: int, delta: int) -> bytes:
    """The frame that lets the peer send ``delta`` more bytes."""
    return frame(WINDOW_UPDATE, 0, stream_id, _UINT32.pack(delta))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _UINT32.pack(code))


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    """The frame that ends a connection, or drains it with NO_ERROR."""
    payload = _GOAWAY.pack(last_stream_id, code) + text.encode()[:256]
    return frame(GOAWAY, 0, 0, payload)


def read_goaway(payload: bytes) -> tuple[int, int, str]:
    """Read (last stream id, code, text).

    Raises:
        Http2Error: the payload is too short.
    """
    if len(payload) < 8:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY frame too short")
    last, code = _GOAWAY.unpack_from(payload)
    return last & MAX_STREAM_ID, code, payload[8:264].decode("utf-8", "replace")


def read_uint31(payload: bytes, what: str) -> int:
    """Read the four bytes of a WINDOW_UPDATE, without the reserved bit.

    Raises:
        Http2Error: wrong size.
    """
    return read_uint32(payload, what) & MAX_STREAM_ID


def read_uint32(payload: bytes, what: str) -> int:
    """Read the four bytes of a RST_STREAM.

    Raises:
        Http2Error: wrong size.
    """
    if len(payload) != 4:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"{what} frame of {len(payload)} bytes")
    return int(_UINT32.unpack(payload)[0])


def settings(*pairs: tuple[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in pairs))


SETTINGS_ACK = frame(SETTINGS, ACK, 0)


def read_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """Read and check the settings.

    Raises:
        Http2Error: the size is wrong or a value is out of range.
    """
    if len(payload) % _SETTING.size:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS frame of {len(payload)} bytes")
    for name, value in _SETTING.iter_unpack(payload):
        if name == ENABLE_PUSH and value > 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
        if name == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE is {value}")
        if name == MAX_FRAME_SIZE and not MIN_MAX_FRAME <= value <= MAX_MAX_FRAME:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
        yield name, value


def without_padding(payload: bytes, flags: int, kind: str) -> bytes:
    """Remove the padding from a payload.

    Raises:
        Http2Error: more padding than payload.
    """
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{kind} frame with more padding than payload")
    return payload[1 : len(payload) - payload[0]]


# Header blocks.


@short_cache(256, _SHORT_LIST_BYTES)
def encode_headers(headers: Headers) -> bytes:
    """Encode a header list without adding to the peer's table.

    Most lists are few and constant and are cached; long ones, which quote a peer, are not.
    """
    return hpack.encode(headers)


def literal_header(name: bytes, value: bytes) -> bytes:
    """Encode one short header by hand, to follow a block: literal, never indexed, not Huffman.

    Raises:
        ValueError: the name or value exceeds 126 bytes, so its length needs more than one byte.
    """
    if len(name) > 126 or len(value) > 126:
        raise ValueError("too long for a short header")
    # RFC 7541 §6.2.3 and §5.2.
    return b"\x10%c%b%c%b" % (len(name), name, len(value), value)


class HeaderReader:
    """Decodes the header blocks of one connection, in order.

    The decoder with its table is created when a second, different block arrives: a connection that
    carries one stream, as konnectivity's clients open, never needs it. A first block that is
    longer than usual is not cached for that.
    """

    __slots__ = ("_decoder", "_first", "_indexed", "_max_list_bytes")

    def __init__(self, max_list_bytes: int) -> None:
        self._max_list_bytes = max_list_bytes
        self._first: bytes | None = None
        self._decoder: hpack.Decoder | None = None
        # Blocks of table indexes only, one byte each: they mean the same until another kind of
        # block changes the table. A reused connection sends the same few.
        self._indexed: dict[bytes, Headers] | None = None

    def read(self, block: bytes) -> Headers:
        """Decode one block.

        Raises:
            Http2Error: the block is malformed or its list too long.
        """
        decoder = self._decoder
        if decoder is None:
            if self._first is None and len(block) <= _SHORT_BLOCK_BYTES:
                self._first = block
                return _decode_first(block, self._max_list_bytes)
            decoder = self._decoder = hpack.Decoder(self._max_list_bytes)
            if self._first is not None:
                _decode(decoder, self._first)
                self._first = None
        plain = 0 < len(block) <= _MOST_INDEXES and min(block) >= 0x80
        if plain and self._indexed is not None and block in self._indexed:
            return self._indexed[block]
        headers = _decode(decoder, block)
        if not plain:
            self._indexed = None
        else:
            if self._indexed is None or len(self._indexed) >= 16:
                self._indexed = {}
            self._indexed[block] = headers
        return headers


@short_cache(64, _SHORT_BLOCK_BYTES + 4 * OBJECT_BYTES)
def _decode_first(block: bytes, max_list_bytes: int) -> Headers:
    return _decode(hpack.Decoder(max_list_bytes), block)


def _decode(decoder: hpack.Decoder, block: bytes) -> Headers:
    try:
        return decoder.decode(block)
    except hpack.BlockTooLong as exc:
        raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "header list too long") from exc
    except hpack.BlockError as exc:
        raise Http2Error(ErrorCode.COMPRESSION_ERROR, f"bad header block: {exc}") from exc


_REQUEST_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
# RFC 9113 section 8.2.1, and the token of RFC 9110 that it leaves: characters that would break
# lines of a log or of another protocol later are rejected.
_NAME = re.compile(rb"[!#-'*+\-.0-9^-z|~]+")
_BAD_VALUE = re.compile(rb"[\x00\r\n]|\A[ \t]|[ \t]\Z")
_FORBIDDEN = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)


@short_cache(256, _SHORT_LIST_BYTES)
def request_fault(headers: Headers) -> str:
    """Describe the fault of a request's header list (RFC 9113 section 8), or return ``""``."""
    fault = _fault(headers, _REQUEST_PSEUDO)
    if fault:
        return fault
    names = [name for name, _ in headers]
    for wanted in (b":method", b":scheme", b":path"):
        if wanted not in names:
            return f"request without {wanted.decode()}"
    return "" if all(value for name, value in headers if name == b":path") else "empty :path"


@short_cache(256, _SHORT_LIST_BYTES)
def response_fault(headers: Headers) -> str:
    """Describe the fault of a response's header list, or return ``""``."""
    fault = _fault(headers, frozenset((b":status",)))
    if fault:
        return fault
    status = header(headers, b":status")
    return "" if len(status) == 3 and status.isdigit() else "response without :status"


@short_cache(256, _SHORT_LIST_BYTES)
def trailer_fault(headers: Headers) -> str:
    """Describe the fault of trailers, or return ``""``."""
    return _fault(headers, frozenset())


def _fault(headers: Headers, pseudo: frozenset[bytes]) -> str:
    seen: set[bytes] = set()
    regular = False
    for name, value in headers:
        if _BAD_VALUE.search(value):
            return f"value of {shown(name)} has invalid characters"
        if name[:1] == b":":
            if name not in pseudo or name in seen or regular:
                return f"pseudo-header {shown(name)} unknown, repeated or after other headers"
            seen.add(name)
            continue
        regular = True
        if not _NAME.fullmatch(name):
            return f"header name {shown(name)} is not lower case"
        if name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
            return f"header {name.decode()!r} is not allowed in HTTP/2"
    return ""


def header(headers: Sequence[Header], name: bytes) -> bytes:
    """The value of a header, or ``b""``."""
    for found, value in headers:
        if found == name:
            return value
    return b""
