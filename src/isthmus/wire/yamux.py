"""The yamux frame header (HashiCorp's specification, version 0): twelve bytes, read and written.

tunnel/session.py interprets the frames.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct
from typing import NamedTuple

from isthmus.errors import ProtocolError

VERSION = 0
HEADER_BYTES = 12
INITIAL_WINDOW = 256 * 1024

_HEADER = Struct(">BBHII")
#: (version, type, flags, stream id, length) → bytes; bare because it runs for every frame.
pack = _HEADER.pack
#: bytes at an offset → (version, type, flags, stream id, length).
unpack_from = _HEADER.unpack_from


class FrameType(IntEnum):
    """The kind of a frame."""

    DATA = 0
    WINDOW_UPDATE = 1
    PING = 2
    GO_AWAY = 3


class Flags(IntFlag):
    """The effect of a frame on its stream."""

    NONE = 0
    SYN = 1
    ACK = 2
    FIN = 4
    RST = 8


class GoAwayCode(IntEnum):
    """Why a session ends."""

    NORMAL = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2


# Plain ints for the data path: comparing an IntEnum member costs four times as much.
DATA, WINDOW_UPDATE, PING, GO_AWAY = 0, 1, 2, 3
SYN, ACK, FIN, RST = 1, 2, 4, 8
_ALL_FLAGS = SYN | ACK | FIN | RST


class Header(NamedTuple):
    """One frame header as a value, for tests and tools; sessions use pack and unpack_from."""

    type: FrameType
    flags: Flags
    stream_id: int
    length: int

    def to_bytes(self) -> bytes:
        return pack(VERSION, self.type, self.flags, self.stream_id, self.length)


def take_header(buffer: bytearray) -> Header | None:
    """Consume one header, or return None while it is incomplete.

    Raises:
        ProtocolError: the version, type or flags are not yamux's.
    """
    if len(buffer) < HEADER_BYTES:
        return None
    version, kind, flags, stream_id, length = unpack_from(buffer)
    check(version, kind, flags)
    del buffer[:HEADER_BYTES]
    return Header(FrameType(kind), Flags(flags), stream_id, length)


def check(version: int, kind: int, flags: int) -> None:
    """Raise ProtocolError unless yamux defines all three fields."""
    if version != VERSION:
        raise ProtocolError(f"yamux: unknown version {version}")
    if kind > GO_AWAY:
        raise ProtocolError(f"yamux: unknown frame type {kind}")
    if flags & ~_ALL_FLAGS:
        raise ProtocolError(f"yamux: unknown flags {flags:#06x}")
