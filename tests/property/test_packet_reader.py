"""Properties of the packet reader: any split of the bytes, any garbage."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ProtocolError
from isthmus.tunnel.message_reader import PacketReader
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import (
    close_request,
    close_response,
    data_packet,
    dial_request,
    dial_response,
    drain,
    end_of_data,
    parse,
)

IDS = st.one_of(st.integers(1, 300), st.integers(-(2**63), 2**63 - 1))
TEXTS = st.text(max_size=40)
PAYLOADS = st.builds(
    lambda data, times: data * times, st.binary(max_size=40), st.sampled_from([1, 1, 10, 600])
)
PACKETS = st.one_of(
    st.builds(data_packet, IDS, PAYLOADS),
    st.builds(data_packet, IDS, PAYLOADS),
    st.builds(dial_request, TEXTS, TEXTS, IDS),
    st.builds(dial_response, IDS, IDS, TEXTS),
    st.builds(close_request, IDS),
    st.builds(close_response, IDS, TEXTS),
    st.builds(end_of_data, IDS),
    st.just(drain()),
)
CUTS = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(at)]


class Keeper:
    """Every packet as protobuf would give it, however it came."""

    def __init__(self) -> None:
        self.got: list[tuple[int, bytes] | bytes] = []

    def got_payload(self, connect_id: int, piece: memoryview | bytes) -> None:
        self.got.append((connect_id, bytes(piece)))

    def more_payload(self, piece: memoryview | bytes) -> None:
        last = self.got.pop()
        assert isinstance(last, tuple) and piece
        self.got.append((last[0], last[1] + bytes(piece)))

    def got_message(self, message: memoryview | bytes) -> None:
        self.got.append(parse(message).SerializeToString(deterministic=True))


def truth(raw: bytes) -> list[Packet]:
    """The packets by protobuf alone."""
    found = []
    while raw:
        size = int.from_bytes(raw[1:5], "big")
        found.append(Packet.FromString(raw[5 : 5 + size]))
        raw = raw[5 + size :]
    return found


@given(st.lists(PACKETS, max_size=8), CUTS)
def test_any_split_gives_what_protobuf_gives(messages: list[bytes], cuts: list[int]) -> None:
    raw = b"".join(messages)
    bytewise = [raw[i : i + 1] for i in range(len(raw))]
    for pieces in ([raw], split(raw, cuts), bytewise if len(raw) < 5000 else [raw]):
        reader, keeper = PacketReader(), Keeper()
        for piece in pieces:
            reader.feed(memoryview(piece), keeper)
        assert reader.at_boundary and reader.kept_bytes == 0
        for packet, got in zip(truth(raw), keeper.got, strict=True):
            if isinstance(got, tuple):
                assert (packet.data.connectID, packet.data.data) == got
            else:
                assert packet.SerializeToString(deterministic=True) == got


@given(st.lists(PACKETS, max_size=3), st.binary(max_size=60), CUTS)
def test_garbage_raises_only_protocol_errors(
    messages: list[bytes], garbage: bytes, cuts: list[int]
) -> None:
    whole, pieces = Keeper(), Keeper()
    raw = b"".join(messages) + garbage
    outcomes = []
    for keeper, parts in ((whole, [raw]), (pieces, split(raw, cuts))):
        reader = PacketReader()
        try:
            for part in parts:
                reader.feed(memoryview(part), keeper)
        except ProtocolError as exc:
            outcomes.append(str(exc))
        else:
            outcomes.append(f"{reader.at_boundary}")
    assert outcomes[0] == outcomes[1]
    assert whole.got == pieces.got


@given(PACKETS, st.integers(1, 4))
def test_a_message_cut_short_is_seen(message: bytes, less: int) -> None:
    reader = PacketReader()
    reader.feed(memoryview(message[:-less]), Keeper())
    assert not reader.at_boundary


def test_nothing_is_at_a_boundary() -> None:
    reader = PacketReader()
    reader.feed(memoryview(b""), Keeper())
    assert reader.at_boundary
    with pytest.raises(ProtocolError):
        reader.feed(memoryview(b"\xff" * 5), Keeper())
