"""The yamux header: vectors typed from the specification, and what is not yamux."""

from __future__ import annotations

import pytest

from isthmus.errors import ProtocolError
from isthmus.wire import yamux
from isthmus.wire.yamux import Flags, FrameType, Header, check, take_header

VECTORS = [
    # version, type, flags (16 bits), stream id (32), length (32), all big endian
    (Header(FrameType.DATA, Flags.NONE, 1, 5), "00 00 0000 00000001 00000005"),
    (Header(FrameType.WINDOW_UPDATE, Flags.SYN, 3, 0), "00 01 0001 00000003 00000000"),
    (Header(FrameType.WINDOW_UPDATE, Flags.ACK, 3, 262144), "00 01 0002 00000003 00040000"),
    (Header(FrameType.DATA, Flags.FIN, 0x01020304, 0), "00 00 0004 01020304 00000000"),
    (Header(FrameType.WINDOW_UPDATE, Flags.RST, 2, 0), "00 01 0008 00000002 00000000"),
    (Header(FrameType.PING, Flags.SYN, 0, 0xDEADBEEF), "00 02 0001 00000000 deadbeef"),
    (Header(FrameType.GO_AWAY, Flags.NONE, 0, 1), "00 03 0000 00000000 00000001"),
    (Header(FrameType.DATA, Flags.SYN | Flags.FIN, 7, 1), "00 00 0005 00000007 00000001"),
]


@pytest.mark.parametrize(("header", "text"), VECTORS)
def test_vectors_both_ways(header: Header, text: str) -> None:
    raw = bytes.fromhex(text)
    assert header.to_bytes() == raw
    buffer = bytearray(raw + b"what follows")
    assert take_header(buffer) == header
    assert buffer == b"what follows"


def test_a_header_byte_by_byte() -> None:
    header, text = VECTORS[3]
    buffer = bytearray()
    for byte in bytes.fromhex(text):
        assert take_header(buffer) is None
        buffer.append(byte)
    assert take_header(buffer) == header
    assert not buffer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("01 00 0000 00000001 00000000", "yamux: unknown version 1"),
        ("00 04 0000 00000001 00000000", "yamux: unknown frame type 4"),
        ("00 ff 0000 00000001 00000000", "yamux: unknown frame type 255"),
        ("00 00 0010 00000001 00000000", "yamux: unknown flags 0x0010"),
        ("00 01 8001 00000001 00000000", "yamux: unknown flags 0x8001"),
    ],
)
def test_what_is_not_yamux(text: str, message: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        take_header(bytearray.fromhex(text))
    assert str(caught.value) == message


def test_the_plain_numbers_are_the_enums() -> None:
    assert tuple(FrameType) == (yamux.DATA, yamux.WINDOW_UPDATE, yamux.PING, yamux.GO_AWAY)
    assert tuple(Flags) == (yamux.SYN, yamux.ACK, yamux.FIN, yamux.RST)
    for kind in FrameType:
        check(yamux.VERSION, kind, 0)
    for flag in Flags:
        check(yamux.VERSION, yamux.DATA, flag)
