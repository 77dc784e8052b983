"""Messages of nf_tables as bytes: attributes, expressions of rules, and batches of messages.

A batch is one transaction, which the kernel applies completely or not at all. Names and numbers are
those of linux/netfilter/nf_tables.h; the structure is that of nft itself, so that nft lists our
rules like its own. compiling.py translates rules into these.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import lru_cache
from typing import Final

#: The families' numbers (linux/netfilter.h).
FAMILIES: Final = {"ip": 2, "ip6": 10, "bridge": 7}
HOOKS: Final = {"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4}

SUBSYSTEM: Final = 10 << 8
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11
# The subsystem of a batch, in network order.
_OF_NFTABLES, _NONE = b"\0\x0a", b"\0\0"
_REQUEST, _ACK = 0x1, 0x4
CREATE, APPEND = 0x400, 0x800
_NESTED = 0x8000
_HEADER = struct.Struct("=IHHIIBB2s")
_FLAGS, _FLAGS_AT = struct.Struct("=H"), 6
_ATTRIBUTE = struct.Struct("=HH")
# The length of an attribute has 16 bits, and a list of elements is one attribute.
_MAX_LIST_BYTES = 60_000
_ELEMENTS = 3
_MAX_COMMENT_BYTES = 254

VERDICT: Final = 0  # the register of verdicts
_PADDING = (b"", b"\0\0\0", b"\0\0", b"\0")


class NftMessage(IntEnum):
    """The types of messages."""

    NEW_TABLE = 0
    DELETE_TABLE = 2
    NEW_CHAIN = 3
    DELETE_CHAIN = 5
    NEW_RULE = 6
    DELETE_RULE = 8
    NEW_SET = 9
    DELETE_SET = 11
    NEW_ELEMENTS = 12
    DELETE_ELEMENTS = 14


class Compare(IntEnum):
    """Comparison operators."""

    EQUAL = 0
    UNEQUAL = 1


class NftBatch:
    """The messages of one transaction, each with its source line number."""

    def __init__(self) -> None:
        self._data = bytearray()
        #: The line of each message, for elements that of the first; its index here is its
        #: sequence number.
        self.lines: list[int] = []
        self._starts: list[int] = []
        self._add(_BATCH_BEGIN, 0, 0, b"", subsystem=_OF_NFTABLES, line=0)

    def __len__(self) -> int:
        return len(self._data)

    def add(self, what: NftMessage, family: int, body: bytes, *, line: int, flags: int = 0) -> None:
        """Add a message."""
        self._add(SUBSYSTEM | what, flags, family, body, subsystem=_NONE, line=line)

    def finished(self) -> bytearray:
        """All bytes, with the end; nothing may be added after that.

        The last message requests an answer: the kernel ignores an invalid batch
        silently.
        """
        flags = self._starts[-1] + _FLAGS_AT
        _FLAGS.pack_into(self._data, flags, _FLAGS.unpack_from(self._data, flags)[0] | _ACK)
        self._add(_BATCH_END, 0, 0, b"", subsystem=_OF_NFTABLES, line=0)
        return self._data

    def line_at(self, sequence: int, offset: int) -> int:
        """The line that an error refers to; 0 for none.

        ``offset`` is the position in the message at which the kernel found the error, 0 if
        unknown: only for elements does it identify the line.
        """
        if not 0 < sequence < len(self.lines):
            return 0
        line, start = self.lines[sequence], self._starts[sequence]
        kind = _HEADER.unpack_from(self._data, start)[1] & 0xFF
        if kind not in (NftMessage.NEW_ELEMENTS, NftMessage.DELETE_ELEMENTS):
            return line
        return line + _element_at(memoryview(self._data)[start:], offset) if offset else line

    def _add(
        self, kind: int, flags: int, family: int, body: bytes, *, subsystem: bytes, line: int
    ) -> None:
        self._starts.append(len(self._data))
        self._data += _HEADER.pack(
            _HEADER.size + len(body), kind, flags | _REQUEST, len(self.lines), 0, family, 0,
            subsystem,
        )  # fmt: skip
        self._data += body
        self.lines.append(line)


def _element_at(message: memoryview, offset: int) -> int:
    """The number of elements of a message before an offset; 0 if it is not in an element."""
    at = _HEADER.size
    while at < offset:
        size, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _ELEMENTS | _NESTED:
            break
        at += (size + 3) & ~3
    at += _ATTRIBUTE.size
    passed = 0
    while at < offset:
        at += (_ATTRIBUTE.unpack_from(message, at)[0] + 3) & ~3
        passed += at <= offset
    return passed


# Attributes.


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    size = len(value)
    return _ATTRIBUTE.pack(4 + size, kind) + value + _PADDING[size & 3]


def number(kind: int, value: int) -> bytes:
    """An attribute with a number of 32 bits."""
    return attribute(kind, (value & 0xFFFFFFFF).to_bytes(4, "big"))


def name(kind: int, text: str) -> bytes:
    """An attribute with a name."""
    return attribute(kind, text.encode() + b"\0")


def nested(kind: int, *parts: bytes) -> bytes:
    """An attribute of attributes."""
    return attribute(kind | _NESTED, b"".join(parts))


def user_data(*fields: tuple[int, bytes]) -> bytes:
    """Data that the kernel stores for nft: fields of a kind and at most 255 bytes."""
    return b"".join(bytes((kind, len(value))) + value for kind, value in fields)


def comment(kind: int, text: str) -> tuple[int, bytes]:
    """A comment as a field of user data."""
    return kind, text.encode()[:_MAX_COMMENT_BYTES] + b"\0"


# Elements.


def verdict(code: int, chain: str = "") -> bytes:
    """A verdict as data, with the chain for jumps."""
    parts = (number(1, code), name(2, chain)) if chain else (number(1, code),)
    return nested(2, *parts)


def value(data: bytes) -> bytes:
    """A value as data."""
    return attribute(1, data)


def element(key: bytes, *, data: bytes = b"", user: bytes = b"", flags: int = 0) -> bytes:
    """An element of a set or map, without its list header."""
    parts = number(3, flags) if flags else b""
    parts += nested(1, value(key))
    if data:
        parts += nested(2, data)
    return parts + attribute(6, user) if user else parts


def element_lists(elements: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Elements as one or more attributes, as many as fit into each, with their counts."""
    listed: list[bytes] = []
    size = 0
    for each in elements:
        listed.append(nested(len(listed) + 1, each))
        size += len(listed[-1])
        if size > _MAX_LIST_BYTES:
            yield nested(_ELEMENTS, *listed), len(listed)
            listed, size = [], 0
    if listed:
        yield nested(_ELEMENTS, *listed), len(listed)


# Expressions. Registers: 1 to 4 have 16 bytes each, 8 to 23 are four bytes each of the same space.


def _expression(kind: str, *parts: bytes) -> bytes:
    return nested(1, name(1, kind), nested(2, *parts))


@lru_cache(maxsize=64)
def payload(register: int, base: int, offset: int, size: int) -> bytes:
    """Load bytes of a packet."""
    return _expression(
        "payload", number(1, register), number(2, base), number(3, offset), number(4, size)
    )


@lru_cache(maxsize=64)
def meta(key: int, register: int) -> bytes:
    """Load metadata of a packet."""
    return _expression("meta", number(2, key), number(1, register))


def meta_set(key: int, register: int) -> bytes:
    """Set metadata of a packet."""
    return _expression("meta", number(2, key), number(3, register))


@lru_cache(maxsize=16)
def conntrack(key: int, register: int) -> bytes:
    """Load the connection tracking state of a packet."""
    return _expression("ct", number(2, key), number(1, register))


@lru_cache(maxsize=16)
def fib(flags: int, result: int, register: int) -> bytes:
    """Look an address up in the routes."""
    return _expression("fib", number(3, flags), number(2, result), number(1, register))


def bitwise(mask: bytes, xor: bytes, *, operation: bool = False) -> bytes:
    """Mask register 1, then flip bits of it; ``operation`` as nft writes it for marks."""
    return _expression(
        "bitwise", number(1, 1), number(2, 1), number(6, 0) if operation else b"",
        number(3, len(mask)), nested(4, value(mask)), nested(5, value(xor)),
    )  # fmt: skip


@lru_cache(maxsize=256)
def compare(how: Compare, data: bytes) -> bytes:
    """Compare register 1 with a value."""
    return _expression("cmp", number(1, 1), number(2, how), nested(3, value(data)))


def immediate(register: int, data: bytes) -> bytes:
    """Load a value or a verdict."""
    return _expression("immediate", number(1, register), nested(2, data))


def lookup(
    container: str, *, set_id: int = 0, result: int | None = None, inverted: bool = False
) -> bytes:
    """Look register 1 up; ``result`` is the register for a map's value."""
    parts = [number(2, 1)]
    if result is not None:
        parts.append(number(3, result))
    parts.append(name(1, container))
    if set_id:
        parts.append(number(4, set_id))
    if inverted:
        parts.append(number(5, 1))
    return _expression("lookup", *parts)


def dynamic_update(container: str) -> bytes:
    """Add register 1 to a set, or refresh its timeout there."""
    return _expression("dynset", number(4, 1), number(3, 1), name(1, container))


def numgen_random(modulus: int) -> bytes:
    """Load a random number below the modulus into register 1."""
    return _expression("numgen", number(1, 1), number(2, modulus), number(3, 1), number(4, 0))


def dnat(family: int, port_register: int, *, flags: int = 0) -> bytes:
    """Change a packet's destination to the address in register 1."""
    parts = [number(1, 1), number(2, family), number(3, 1), number(5, port_register)]
    return _expression("nat", *parts, number(7, flags) if flags else b"")


def masquerade(flags: int) -> bytes:
    """Change a packet's source to the address of its outgoing interface."""
    return _expression("masq", number(1, flags)) if flags else _expression("masq")


def reject(code: int) -> bytes:
    """Answer that a port is unreachable."""
    return _expression("reject", number(1, 0), attribute(2, bytes((code,))))
