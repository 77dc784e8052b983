"""Header blocks of HTTP/2 (HPACK, RFC 7541): written without compression, read within bounds.

We never Huffman-code and never add to a peer's table, so writing costs one copy of the
bytes. Reading examines each byte once: the ``hpack`` package copies the rest of a block for every
literal, and decodes a whole list before its size can be checked. Only the Huffman code table comes
from that package. Frames are in http2.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman

from isthmus.text.text_limits import MAX_HEADERS

Header = tuple[bytes, bytes]
Headers = tuple[Header, ...]

#: RFC 7541 §4.1: the overhead of an entry besides its name and value.
ENTRY_BYTES = 32
#: RFC 9113 §6.5.2, SETTINGS_HEADER_TABLE_SIZE: we never change it.
TABLE_BYTES = 4096
#: The most bytes of an integer after its first: enough for 32 bits.
_MAX_INTEGER_BYTES = 5
#: The Huffman code uses at most 30 bits for a byte (RFC 7541 appendix B).
_MOST_BITS = 30

# RFC 7541 appendix A, by index, starting at 1.
_NAMES_AND_VALUES = """
:authority
:method GET
:method POST
:path /
:path /index.html
:scheme http
:scheme https
:status 200
:status 204
:status 206
:status 304
:status 400
:status 404
:status 500
accept-charset
accept-encoding gzip, deflate
accept-language
accept-ranges
accept
access-control-allow-origin
age
allow
authorization
cache-control
content-disposition
content-encoding
content-language
content-length
content-location
content-range
content-type
cookie
date
etag
expect
expires
from
host
if-match
if-modified-since
if-none-match
if-range
if-unmodified-since
last-modified
link
location
max-forwards
proxy-authenticate
proxy-authorization
range
referer
refresh
retry-after
server
set-cookie
strict-transport-security
transfer-encoding
user-agent
vary
via
www-authenticate
"""


def _static() -> tuple[Header, ...]:
    rows = (line.partition(" ") for line in _NAMES_AND_VALUES.strip().split("\n"))
    return tuple((name.encode(), value.encode()) for name, _, value in rows)


STATIC: tuple[Header, ...] = ((b"", b""), *_static())
_INDEX_OF = {header: index for index, header in enumerate(STATIC) if index and header[1]}
# The first entry of a name, as every encoder uses it.
_INDEX_OF_NAME = {STATIC[index][0]: index for index in range(len(STATIC) - 1, 0, -1)}


class BlockError(ValueError):
    """A header block that cannot be decoded."""


class BlockTooLong(BlockError):
    """A header list with too many headers or bytes."""


# Writing.


def encode(headers: Iterable[Header]) -> bytes:
    """Write a header list: indexes of the static table, and literals that are never indexed."""
    parts: list[bytes] = []
    for header in headers:
        whole = _INDEX_OF.get(header)
        if whole is not None:
            parts.append(_integer(whole, 7, 0x80))  # §6.1
            continue
        name, value = header
        index = _INDEX_OF_NAME.get(name)
        if index is not None:
            parts.append(_integer(index, 4, 0x10))  # §6.2.3
        else:
            parts += (b"\x10", _integer(len(name), 7, 0), name)
        parts += (_integer(len(value), 7, 0), value)  # §5.2, H = 0
    return b"".join(parts)


def _integer(number: int, bits: int, flags: int) -> bytes:
    """Write a number after the flags in its first byte (§5.1)."""
    most = (1 << bits) - 1
    if number < most:
        return bytes((flags | number,))
    written = bytearray((flags | most,))
    number -= most
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


# Reading.


class Decoder:
    """Decodes the blocks of one connection, in order, with the table that they build up.

    After an error the table differs from the peer's: the connection has to end.
    """

    __slots__ = ("_bytes", "_entries", "_max_bytes", "_max_list_bytes")

    def __init__(self, max_list_bytes: int) -> None:
        self._max_list_bytes = max_list_bytes
        self._entries: deque[Header] = deque()  # the newest first
        self._bytes = 0
        self._max_bytes = TABLE_BYTES

    def decode(self, block: bytes) -> Headers:
        """Decode one block.

        Raises:
            BlockTooLong: its list has more than MAX_HEADERS headers, or too many bytes.
            BlockError: the block is malformed.
        """
        try:
            return self._decode(block)
        except IndexError as exc:
            raise BlockError("truncated, or an index that the table does not have") from exc
        except HPACKDecodingError as exc:
            raise BlockError("invalid Huffman code") from exc

    def _decode(self, block: bytes) -> Headers:
        headers: list[Header] = []
        room = self._max_list_bytes
        pos, end = 0, len(block)
        while pos < end:
            first = block[pos]
            pos += 1
            if first >= 0x80:  # §6.1: an entry
                index = first & 0x7F
                if index == 0x7F:
                    index, pos = _read_integer(block, pos, index)
                header = self._entry(index)
            elif first & 0xE0 == 0x20:  # §6.3: another size for the table
                if headers:
                    raise BlockError("a table size update after a header")
                pos = self._resize(block, pos, first & 0x1F)
                continue
            else:  # §6.2: a literal
                most = 0x3F if first & 0x40 else 0x0F
                index = first & most
                if index == most:
                    index, pos = _read_integer(block, pos, index)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, pos = _read_string(block, pos, room)
                value, pos = _read_string(block, pos, room)
                header = name, value
                if most == 0x3F:
                    self._add(header)
            room -= ENTRY_BYTES + len(header[0]) + len(header[1])
            if room < 0 or len(headers) >= MAX_HEADERS:
                raise BlockTooLong("header list too long")
            headers.append(header)
        return tuple(headers)

    def _entry(self, index: int) -> Header:
        if index < len(STATIC):
            if not index:
                raise BlockError("index 0")
            return STATIC[index]
        return self._entries[index - len(STATIC)]

    def _resize(self, block: bytes, pos: int, size: int) -> int:
        if size == 0x1F:
            size, pos = _read_integer(block, pos, size)
        if size > TABLE_BYTES:
            raise BlockError("a table size above the limit")
        self._max_bytes = size
        self._evict(size)
        return pos

    def _add(self, header: Header) -> None:
        size = ENTRY_BYTES + len(header[0]) + len(header[1])
        # §4.4: an entry larger than the table empties it, and is no error.
        self._evict(max(0, self._max_bytes - size))
        if size <= self._max_bytes:
            self._entries.appendleft(header)
            self._bytes += size

    def _evict(self, to_bytes: int) -> None:
        while self._bytes > to_bytes:
            name, value = self._entries.pop()
            self._bytes -= ENTRY_BYTES + len(name) + len(value)


def _read_integer(block: bytes, pos: int, number: int) -> tuple[int, int]:
    """Read the rest of a number whose first bits were all ones (§5.1)."""
    for shift in range(0, 7 * _MAX_INTEGER_BYTES, 7):
        byte = block[pos]
        pos += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, pos
    raise BlockError("integer too long")


def _read_string(block: bytes, pos: int, room: int) -> tuple[bytes, int]:
    """Read a string (§5.2) that fits into the list."""
    first = block[pos]
    pos += 1
    size = first & 0x7F
    if size == 0x7F:
        size, pos = _read_integer(block, pos, size)
    end = pos + size
    if end > len(block):
        raise BlockError("truncated")
    # Checked before any copy or decoding, with the shortest result of a Huffman string.
    if (size * 8 // _MOST_BITS if first & 0x80 else size) > room:
        raise BlockTooLong("header list too long")
    raw = block[pos:end]
    return (decode_huffman(raw) if first & 0x80 else raw), end
