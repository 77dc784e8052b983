"""Konnectivity's packets: what is read and written by hand agrees with protobuf, always."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from isthmus.errors import ProtocolError
from isthmus.wire import packet
from isthmus.wire.grpc import MESSAGE_HEAD, message_size
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import DataHead, data_packet, find_data, parse


def read_data(
    buffer: bytes | memoryview, start: int = 0, end: int | None = None
) -> tuple[int, bytes] | None:
    end = len(buffer) if end is None else end
    found = find_data(buffer, start, end)
    return None if found is None else (found[0], bytes(buffer[found[1] : end]))


INT64 = st.one_of(
    st.integers(0, 300),
    st.integers(-(2**63), 2**63 - 1),
    st.builds(
        lambda bits, by: min((1 << bits) + by, 2**63 - 1), st.integers(0, 63), st.integers(-1, 1)
    ),
)
TEXT = st.text(max_size=10)
PAYLOAD = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([0, 1, 120, 127, 128, 16_370, 16_383, 16_384, 65_536]).map(lambda n: b"x" * n),
)


def agrees(raw: bytes) -> None:
    """Check that whatever read_data says of these bytes is what protobuf says of them."""
    found = read_data(raw)
    beyond = read_data(memoryview(b"\x08" + raw + b"\x00\x1a"), 1, 1 + len(raw))
    assert beyond == found
    if found is not None:
        message = Packet.FromString(raw)
        assert (message.type, message.WhichOneof("payload")) == (packet.DATA, "data")
        assert (message.data.connectID, message.data.data) == found
        assert message.data.error == ""


@given(INT64, PAYLOAD)
def test_data_is_written_as_protobuf_writes_it(connect_id: int, data: bytes) -> None:
    message = Packet(type=4, data={"connectID": connect_id, "data": data})
    head = DataHead(connect_id)
    framed = head.of(len(data)) + data
    assert framed == data_packet(connect_id, data)
    assert framed[5:] == message.SerializeToString()
    assert message_size(framed[:MESSAGE_HEAD]) == len(framed) - MESSAGE_HEAD
    assert parse(framed[5:]) == message
    agrees(framed[5:])


@given(st.integers(1, 2**35 - 1), PAYLOAD.filter(bool), st.binary(max_size=9))
def test_data_as_go_writes_it_never_needs_protobuf(
    connect_id: int, data: bytes, before: bytes
) -> None:
    raw = before + data_packet(connect_id, data)
    assert read_data(memoryview(raw), len(before) + 5, len(raw)) == (connect_id, data)


@given(INT64, INT64, TEXT, TEXT)
def test_every_other_packet_survives_the_round_trip(a: int, b: int, text: str, more: str) -> None:
    built = {
        packet.dial_request(text, more, a): Packet(
            type=0, dialRequest={"protocol": text, "address": more, "random": a}
        ),
        packet.dial_response(a, connect_id=b, error=text): Packet(
            type=1, dialResponse={"random": a, "connectID": b, "error": text}
        ),
        packet.close_request(a): Packet(type=2, closeRequest={"connectID": a}),
        packet.close_response(a, text): Packet(
            type=3, closeResponse={"connectID": a, "error": text}
        ),
        packet.close_dial(a): Packet(type=5, closeDial={"random": a}),
        packet.drain(): Packet(type=6, drain={}),
    }
    for framed, message in built.items():
        assert message_size(framed[:MESSAGE_HEAD]) == len(framed) - MESSAGE_HEAD
        raw = framed[MESSAGE_HEAD:]
        assert read_data(raw) is None
        assert parse(memoryview(raw)) == message


# The protobuf encoding, written by hand so that it can be written wrongly.


def varint(value: int, longer: int = 0) -> bytes:
    """Write a number, with needless bytes behind it if asked."""
    out = bytearray()
    value %= 1 << 64
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(longer):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


LONGER = st.sampled_from([0, 0, 0, 0, 1, 2, 6])
NUMBER = st.builds(varint, INT64, LONGER)


def counted(key: int, body: bytes, longer: int, wrong: int = 0) -> bytes:
    return bytes([key]) + varint(max(0, len(body) + wrong), longer) + body


CONNECT_ID = NUMBER.map(lambda raw: b"\x08" + raw)
ERROR = st.builds(counted, st.just(0x12), TEXT.map(str.encode), LONGER)
BYTES = st.builds(counted, st.just(0x1A), PAYLOAD, LONGER)
UNKNOWN = st.sampled_from([b"\x48\x01", b"\x7a\x01x", b"\x7d1234", b"\x7912345678"])
INSIDE = st.lists(st.one_of(CONNECT_ID, BYTES, CONNECT_ID, BYTES, ERROR, UNKNOWN), max_size=4)
DATA_FIELD = st.builds(counted, st.just(0x22), INSIDE.map(b"".join), LONGER)
TYPE_FIELD = st.one_of(st.just(b"\x08\x04"), NUMBER.map(lambda raw: b"\x08" + raw))
OTHER_FIELD = st.sampled_from([b"\x2a\x02\x08\x05", b"\x42\x00", b"\x12\x00"])
FIELDS = st.lists(
    st.one_of(TYPE_FIELD, DATA_FIELD, TYPE_FIELD, DATA_FIELD, OTHER_FIELD, UNKNOWN), max_size=4
)
PLAIN = st.tuples(CONNECT_ID, BYTES).map(b"".join)
ALMOST = st.builds(
    lambda inside, longer, wrong: b"\x08\x04" + counted(0x22, inside, longer, wrong),
    st.one_of(PLAIN, INSIDE.map(b"".join)),
    LONGER,
    st.sampled_from([0, 0, 0, -1, 1, 128, 16384]),
)


@given(st.one_of(FIELDS.map(b"".join), ALMOST))
@settings(max_examples=5 * settings().max_examples)
@example(b"\x08\x04\x22\x05\x08\x85\x00\x1a\x00")
def test_fields_in_any_order_number_and_spelling_read_as_protobuf_reads_them(raw: bytes) -> None:
    agrees(raw)
    try:
        message = parse(raw)
    except ProtocolError:
        assert read_data(raw) is None
    else:
        assert message == Packet.FromString(raw)


@given(st.integers(1, 2**35 - 1), st.binary(min_size=1, max_size=300), st.data())
def test_a_packet_cut_short_is_no_data(connect_id: int, data: bytes, draw: st.DataObject) -> None:
    raw = data_packet(connect_id, data)[5:]
    end = draw.draw(st.integers(0, len(raw) - 1))
    assert read_data(raw[:end]) is None
    # Even where the rest lies in the same buffer.
    assert read_data(raw, 0, end) is None
    if end > 2:
        try:
            parse(raw[:end])
        except ProtocolError:
            return
        raise AssertionError("a packet cut short was read")


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=40).map(lambda b: b"\x08\x04\x22" + b)))
@settings(max_examples=5 * settings().max_examples)
def test_garbage_raises_only_protocol_errors(raw: bytes) -> None:
    agrees(raw)
    try:
        parse(raw)
    except ProtocolError as exc:
        assert str(exc).startswith("konnectivity: ")
