"""Konnectivity's packets: vectors typed from the protobuf encoding, and what is no packet."""

from __future__ import annotations

import pytest

from isthmus.errors import ProtocolError
from isthmus.wire import konnectivity_pb2 as pb
from isthmus.wire import packet
from isthmus.wire.packet import DataHead, data_packet, find_data, parse


def read_data(
    buffer: bytes | memoryview, start: int = 0, end: int | None = None
) -> tuple[int, bytes] | None:
    end = len(buffer) if end is None else end
    found = find_data(buffer, start, end)
    return None if found is None else (found[0], bytes(buffer[found[1] : end]))


# key type=1 varint, key data=4 bytes; inside: key connectID=1 varint, key data=3 bytes.
DATA_5 = bytes.fromhex("0804 22 06 0805 1a02") + b"hi"
DATA_300 = bytes.fromhex("0804 22 07 08ac02 1a02") + b"hi"


def test_the_types_have_konnectivitys_numbers() -> None:
    for name, number in pb.PacketType.items():
        assert getattr(packet, name) == number
    assert [packet.DIAL_REQ, packet.DATA, packet.DRAIN] == [0, 4, 6]


@pytest.mark.parametrize(
    ("built", "text"),
    [
        # flag, length of the packet, then the packet
        (
            packet.dial_request("tcp", "a:1", 7),
            "00 0000000e 12 0c 0a03 746370 1203 613a31 1807",
        ),
        (packet.dial_response(7, connect_id=1), "00 00000008 0801 1a 04 1001 1807"),
        (packet.dial_response(7, error="no"), "00 0000000a 0801 1a 06 0a02 6e6f 1807"),
        (packet.close_request(300), "00 00000007 0802 2a 03 08ac02"),
        (packet.close_response(1, "no"), "00 0000000a 0803 32 06 0a02 6e6f 1001"),
        (packet.close_dial(-1), "00 0000000f 0805 3a 0b 08ffffffffffffffffff01"),
        (packet.drain(), "00 00000004 0806 4200"),
        (data_packet(5, b"hi"), "00 0000000a 0804 22 06 0805 1a02 6869"),
        (data_packet(0, b"hi"), "00 00000008 0804 22 04 1a02 6869"),
        (data_packet(5, b""), "00 00000006 0804 22 02 0805"),
        (data_packet(0, b""), "00 00000004 0804 22 00"),
    ],
)
def test_vectors(built: bytes, text: str) -> None:
    assert built == bytes.fromhex(text)


def test_plain_data_is_read_where_it_lies() -> None:
    assert read_data(DATA_5) == (5, b"hi")
    assert read_data(DATA_300) == (300, b"hi")
    around = b"\x08" + DATA_300 + b"hi"
    for buffer in (around, memoryview(around), memoryview(bytearray(around))):
        found = read_data(buffer, 1, len(around) - 2)
        assert found == (300, b"hi")
        assert type(found[1]) is bytes
        assert read_data(buffer, 1, len(around) - 1) is None
        assert read_data(buffer, 1, len(around) - 3) is None


@pytest.mark.parametrize(
    "size", [1, 127, 128, 16_383, 16_384, 65_536, 2_000_000, 2_097_140, 2_097_152, 4_000_000]
)
@pytest.mark.parametrize(
    "connect_id", [1, 127, 128, 16_383, 16_384, 2**21 - 1, 2**21, 2**28 - 1, 2**28, 2**32,
                   2**35 - 1, 2**35, 2**63 - 1, -1],
)  # fmt: skip
def test_data_of_every_width_reads_as_protobuf_reads_it(connect_id: int, size: int) -> None:
    data = b"x" * size
    raw = data_packet(connect_id, data)[5:]
    assert (
        raw == pb.Packet(type=4, data={"connectID": connect_id, "data": data}).SerializeToString()
    )
    found = read_data(raw)
    plain = 0 < connect_id < 2**35 and size < 2**21
    assert (found is not None) == plain
    assert found is None or found == (connect_id, data)
    message = parse(raw)
    assert (message.data.connectID, message.data.data) == (connect_id, data)


def test_the_sixth_byte_of_a_connect_id_is_not_taken_for_the_key_of_the_payload() -> None:
    # It is 0x1a, and the bytes behind it would do for a payload of 0x1a bytes.
    raw = data_packet(0x1A << 35 | 5, bytes(25))[5:]
    assert read_data(raw) is None
    assert parse(raw).data.connectID == 0x1A << 35 | 5


def test_a_head_follows_the_size_back_and_forth() -> None:
    head = DataHead(9)
    for size in (5, 5, 70_000, 5, 0, 0, 200):
        assert head.of(size) + bytes(size) == data_packet(9, bytes(size))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "08",
        "0804",
        "0804 22",
        "0804 22 00",  # no fields
        "0804 22 02 0805",  # no payload
        "0804 22 04 1a02 6869",  # no connect id
        "0804 22 08 0805 1200 1a02 6869",  # an error, empty
        "0804 22 06 1a02 6869 0805",  # out of order
        "22 06 0805 1a02 6869 0804",
        "0804 22 06 0805 1a02 6869 0804",  # the type twice
        "0804 22 06 0805 1a02 6869 22 02 0806",  # the payload twice, to be merged
        "0804 22 06 0805 1a02 6869 4801",  # a field unknown
        "0802 22 06 0805 1a02 6869",  # not DATA
        "0804 2a 02 0805",  # DATA with another payload
        "0884 00 22 06 0805 1a02 6869",  # a number written longer than need be
    ],
)
def test_what_is_unusual_is_left_to_protobuf(text: str) -> None:
    assert read_data(bytes.fromhex(text)) is None


def test_merged_payloads_and_mismatches_read_as_protobuf_reads_them() -> None:
    merged = parse(bytes.fromhex("0804 22 06 0805 1a02 6869 22 02 0806"))
    assert (merged.type, merged.data.connectID, merged.data.data) == (packet.DATA, 6, b"hi")
    other = parse(bytes.fromhex("0804 2a 02 0805"))
    assert (other.type, other.HasField("data")) == (packet.DATA, False)
    assert (other.data.connectID, other.data.data) == (0, b"")
    assert other.closeRequest.connectID == 5
    assert parse(bytes.fromhex("084d")).type == 77


@pytest.mark.parametrize(
    "text",
    [
        "08",
        "0804 22 07 0805 1a02 6869",
        "12 03 0a01 ff",  # protocol is not UTF-8
        "0804 22 03 1201 ff",  # nor is the error of DATA
        "00",
        "ff" * 12,
    ],
)
def test_what_is_no_packet(text: str) -> None:
    raw = bytes.fromhex(text)
    for message in (raw, memoryview(raw)):
        with pytest.raises(ProtocolError, match=rf"^konnectivity: {len(raw)} bytes are not a pac"):
            parse(message)


def test_what_cannot_be_said() -> None:
    with pytest.raises(ProtocolError, match=r"^konnectivity: "):
        packet.dial_request("tcp", "\udcff:1", 1)
    with pytest.raises(ProtocolError, match=r"^konnectivity: "):
        packet.close_request(2**63)
    for connect_id in (2**63, -(2**63) - 1):
        with pytest.raises(ProtocolError, match=r"^konnectivity: "):
            DataHead(connect_id)


def test_an_error_text_is_always_sent() -> None:
    assert parse(packet.dial_response(1, error="bad \udcff")[5:]).dialResponse.error == "bad ?"
    assert parse(packet.close_response(1, "bad \udcff")[5:]).closeResponse.error == "bad ?"
