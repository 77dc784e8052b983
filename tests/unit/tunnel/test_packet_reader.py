"""Packets out of a gRPC stream: data as it comes, the rest whole, nonsense refused."""

from __future__ import annotations

import pytest

from isthmus.errors import ProtocolError
from isthmus.tunnel.message_reader import PacketReader
from isthmus.wire.grpc import MAX_MESSAGE_BYTES, MessageTooLarge, message_head
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import DATA, DIAL_REQ, close_request, data_packet, dial_request, parse


class Keeper:
    """Joins the pieces of a packet."""

    def __init__(self) -> None:
        self.got: list[tuple[int, bytes] | Packet] = []
        self.pieces = 0

    def got_payload(self, connect_id: int, piece: memoryview | bytes) -> None:
        self.got.append((connect_id, bytes(piece)))

    def more_payload(self, piece: memoryview | bytes) -> None:
        last = self.got.pop()
        assert isinstance(last, tuple)
        self.got.append((last[0], last[1] + bytes(piece)))
        self.pieces += 1

    def got_message(self, message: memoryview | bytes) -> None:
        self.got.append(parse(message))


def read(*pieces: bytes) -> tuple[PacketReader, Keeper]:
    reader, keeper = PacketReader(), Keeper()
    for piece in pieces:
        reader.feed(memoryview(piece), keeper)
    return reader, keeper


RAW = data_packet(7, b"hello") + dial_request("tcp", "a:1", 9) + data_packet(300, b"x" * 200)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 19, 20, 21, len(RAW)])
def test_any_cut(size: int) -> None:
    reader, keeper = read(*[RAW[at : at + size] for at in range(0, len(RAW), size)])
    one, two, three = keeper.got
    assert (one, three) == ((7, b"hello"), (300, b"x" * 200))
    assert isinstance(two, Packet) and two.dialRequest.address == "a:1"
    assert reader.at_boundary and reader.kept_bytes == 0


def test_data_does_not_wait_for_the_whole() -> None:
    raw = data_packet(7, b"x" * 1000)
    reader, keeper = read(raw[:100])
    assert isinstance(keeper.got[0], tuple) and len(keeper.got[0][1]) > 80
    assert not reader.at_boundary and reader.kept_bytes == 0


def test_other_packets_are_gathered() -> None:
    raw = dial_request("tcp", "a" * 5000, 9)
    reader, keeper = read(raw[:4000])
    assert not keeper.got and reader.kept_bytes == 4000 and not reader.at_boundary
    reader.feed(memoryview(raw[4000:]), keeper)
    assert len(keeper.got) == 1 and reader.at_boundary


def test_an_empty_message_is_a_packet_of_zeros() -> None:
    for pieces in ([bytes(5)], [bytes(3), bytes(2)]):
        _, keeper = read(*pieces)
        (packet,) = keeper.got
        assert isinstance(packet, Packet) and packet.type == DIAL_REQ


def test_data_without_bytes_or_in_another_order_is_parsed() -> None:
    empty = Packet(type=DATA, data={"connectID": 4}).SerializeToString()  # type: ignore[arg-type]
    # data before connectID: protobuf readers must take fields in any order.
    inside = b"\x1a\x02hi\x08\x04"
    odd = b"\x08\x04\x22" + bytes([len(inside)]) + inside
    for body in (empty, odd):
        _, keeper = read(message_head(len(body)) + body)
        (packet,) = keeper.got
        assert isinstance(packet, Packet) and packet.data.connectID == 4


@pytest.mark.parametrize("cut", [0, 1, 4])
def test_too_large_compressed_or_no_packet(cut: int) -> None:
    too_large = (MAX_MESSAGE_BYTES + 1).to_bytes(5, "big")
    for raw, error in (
        (too_large, MessageTooLarge),
        (b"\x01\0\0\0\1x", ProtocolError),
        (b"\0\0\0\0\2\xff\xff", ProtocolError),
    ):
        with pytest.raises(error):
            read(raw[:cut], raw[cut:])


def test_the_largest_messages() -> None:
    # Past 2 MiB, which nobody sends, a data packet is gathered like any other.
    for size in (2 * 1024 * 1024 - 20, MAX_MESSAGE_BYTES - 20):
        raw = data_packet(1, bytes(size))
        pieces = [raw[at : at + 65_536] for at in range(0, len(raw), 65_536)]
        _, keeper = read(*pieces, close_request(1))
        first, _ = keeper.got
        assert len(first.data.data if isinstance(first, Packet) else first[1]) == size
