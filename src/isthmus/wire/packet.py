"""Konnectivity's packets: its programs exchange one packet per gRPC message.

The messages are declared in konnectivity.proto; konnectivity_pb2.py is generated from it. DATA,
which is nearly all of the traffic, is read and written here by hand, with the same result. The
read loop is in tunnel/message_reader.py; tunnel/proxy_end.py and tunnel/packet_link.py handle the
packets.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from isthmus.errors import ProtocolError
from isthmus.text.text_limits import MAX_ADDRESS_CHARS, MAX_DETAIL_CHARS, MAX_PACKET_BYTES, cut
from isthmus.wire.grpc import message_head
from isthmus.wire.konnectivity_pb2 import Packet

# Plain ints, as in packet.type: comparing an IntEnum member costs four times as much.
DIAL_REQ, DIAL_RSP, CLOSE_REQ, CLOSE_RSP, DATA, DIAL_CLS, DRAIN = range(7)

# The keys of the fields, as the protobuf encoding writes them: number << 3 | wire type.
_TYPE_KEY = 0x08  # Packet.type
_DATA_KEY = 0x22  # Packet.data
_CONNECT_ID_KEY = 0x08  # Data.connectID
_BYTES_KEY = 0x1A  # Data.data
_DATA_PREFIX = bytes((_TYPE_KEY, DATA, _DATA_KEY))

# The first numbers whose varints have three, four, five and six bytes.
_THREE_BYTES, _FOUR_BYTES, _FIVE_BYTES, _SIX_BYTES = 1 << 14, 1 << 21, 1 << 28, 1 << 35
#: Type 2, key 1 and length 3, connect id 1 + 5, key 1 and length 3.
MOST_DATA_PREFIX = 16


# Reading.


# Parsed by hand instead of protobuf, in place in the read buffer. timeit, CPython 3.11 and
# protobuf 7 (upb), a memoryview, connect id 300, the copy of the payload included:
#                        64 B      32 KiB
#   find_data           0.7 µs    1.9 µs
#   Packet.FromString   1.0 µs    2.7 µs
def find_data(buffer: bytes | memoryview, start: int, end: int) -> tuple[int, int] | None:
    """Find the payload of a DATA packet between two offsets: (connect id, offset of the payload).

    The payload reaches to ``end``, which may be beyond the bytes received: the first
    MOST_DATA_PREFIX bytes suffice. None means not plainly such a packet, or too few bytes; parse()
    decides once the packet is complete: another type, a field that is unusual, empty or out of
    order, a connect id past 2**35 or negative, or garbage. Both functions agree on what this one
    finds.
    """
    try:
        if (
            buffer[start] != _TYPE_KEY
            or buffer[start + 1] != DATA
            or buffer[start + 2] != _DATA_KEY
        ):
            return None
        size = buffer[start + 3]
        pos = start + 4
        if size > 0x7F:
            size += (buffer[pos] << 7) - 0x80
            pos += 1
            if size >= _THREE_BYTES:
                size += (buffer[pos] << 14) - _THREE_BYTES
                pos += 1
                if size >= _FOUR_BYTES:
                    return None
        if pos + size != end or buffer[pos] != _CONNECT_ID_KEY:
            return None
        connect_id = buffer[pos + 1]
        pos += 2
        if connect_id > 0x7F:
            connect_id += (buffer[pos] << 7) - 0x80
            pos += 1
            if connect_id >= _THREE_BYTES:
                connect_id += (buffer[pos] << 14) - _THREE_BYTES
                pos += 1
                if connect_id >= _FOUR_BYTES:
                    connect_id += (buffer[pos] << 21) - _FOUR_BYTES
                    pos += 1
                    if connect_id >= _FIVE_BYTES:
                        connect_id += (buffer[pos] << 28) - _FIVE_BYTES
                        pos += 1
                        if connect_id >= _SIX_BYTES:
                            return None
        if buffer[pos] != _BYTES_KEY:
            return None
        size = buffer[pos + 1]
        pos += 2
        if size > 0x7F:
            size += (buffer[pos] << 7) - 0x80
            pos += 1
            if size >= _THREE_BYTES:
                size += (buffer[pos] << 14) - _THREE_BYTES
                pos += 1
    except IndexError:
        return None
    # Nothing above checked ``end``; this comparison proves that no byte past it was used, and
    # a fourth byte of the size could not pass it.
    if pos + size != end or pos > len(buffer):
        return None
    return connect_id, pos


def parse(message: bytes | memoryview) -> Packet:
    """Read any packet.

    ``type`` and the payload that is set need not agree, and the type may be unknown. A
    payload that is not set reads as one of zeros, as in Go; ``HasField`` tells which. Texts
    are cut to the limits of text_limits.py: an address that was cut is no longer an address.

    Raises:
        ProtocolError: not a packet, or one without data of more than MAX_PACKET_BYTES.
    """
    try:
        packet = Packet.FromString(bytes(message))
    except (DecodeError, ValueError) as exc:  # ValueError: a text that is not UTF-8
        raise ProtocolError(f"konnectivity: {len(message)} bytes are not a packet") from exc
    if packet.type != DATA and len(message) > MAX_ADDRESS_CHARS:
        if len(message) > MAX_PACKET_BYTES:
            raise ProtocolError(
                f"konnectivity: a packet of type {packet.type} of {len(message)} bytes"
            )
        _cut_texts(packet)
    return packet


def _cut_texts(packet: Packet) -> None:
    kind = packet.WhichOneof("payload")
    if kind == "dialRequest":
        dial = packet.dialRequest
        dial.address = cut(dial.address, MAX_ADDRESS_CHARS)
        dial.protocol = cut(dial.protocol, MAX_ADDRESS_CHARS)
    elif kind == "dialResponse":
        answer = packet.dialResponse
        answer.error = cut(answer.error, MAX_DETAIL_CHARS)
        answer.isthmus_address = cut(answer.isthmus_address, MAX_ADDRESS_CHARS)
    elif kind == "closeResponse":
        packet.closeResponse.error = cut(packet.closeResponse.error, MAX_DETAIL_CHARS)


# Writing. Every function here returns the gRPC message with its head.


class DataHead:
    """Writes the prefix of each DATA packet's payload for one connection.

    The payload follows unchanged, so it is never copied.
    """

    __slots__ = ("_fields", "_head", "_size")

    def __init__(self, connect_id: int) -> None:
        if not -(1 << 63) <= connect_id < 1 << 63:
            raise ProtocolError(f"konnectivity: invalid connect id: {connect_id}")
        id_ = bytes((_CONNECT_ID_KEY,)) + _varint(connect_id % (1 << 64)) if connect_id else b""
        self._fields = id_ + bytes((_BYTES_KEY,))
        self._size = -1
        self._head = b""

    # Built by hand instead of protobuf. A bulk connection sends full reads of one size, so
    # the last head is worth caching. timeit, CPython 3.11 and protobuf 7 (upb):
    #                                    64 B       32 KiB
    #   of(size), the same again        0.07 µs    0.07 µs
    #   of(size), another size          0.5  µs    1.0  µs
    #   lru_cache on (id, size), hit    0.12 µs    0.12 µs
    #   Packet(…).SerializeToString()   1.9  µs    6.8  µs
    def of(self, size: int) -> bytes:
        """The gRPC head and the packet up to the first byte of a payload of this size."""
        if size != self._size:
            self._head = self._build(size)
            self._size = size
        return self._head

    def _build(self, size: int) -> bytes:
        # proto3 leaves empty fields out.
        inside = self._fields + _varint(size) if size else self._fields[:-1]
        packet = _DATA_PREFIX + _varint(len(inside) + size) + inside
        return message_head(len(packet) + size) + packet


def _varint(value: int) -> bytes:
    if value < 0x80:
        return b"%c" % value
    if value < _THREE_BYTES:
        return b"%c%c" % (value & 0x7F | 0x80, value >> 7)
    if value < _FOUR_BYTES:
        return b"%c%c%c" % (value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14)
    return b"%c" % (value & 0x7F | 0x80) + _varint(value >> 7)


def data_packet(connect_id: int, data: bytes) -> bytes:
    """Write one whole DATA packet, for callers that send too few to keep a DataHead."""
    return DataHead(connect_id).of(len(data)) + data


def end_of_data(connect_id: int) -> bytes:
    """Write the half-close of a connection, an Isthmus extension for peers that agreed to it.

    Konnectivity has no packet for it; its DATA has an unused error field.
    """
    return _framed(DATA, data={"connectID": connect_id, "error": "EOF"})


def dial_request(protocol: str, address: str, random: int, ours: bytes = b"") -> bytes:
    """Write DIAL_REQ: open a connection; the answer will carry the same ``random``.

    ``ours`` is read only by Isthmus agents: a Dial of link.proto.
    """
    dial = {"protocol": protocol, "address": address, "random": random, "isthmus_dial": ours}
    return _framed(DIAL_REQ, dialRequest=dial)


def dial_response(random: int, connect_id: int = 0, error: str = "", *, reached: str = "") -> bytes:
    """Write DIAL_RSP: the connection that was opened, or the error.

    ``reached`` is the address that was dialed, read only by Isthmus servers.
    """
    answer = {"random": random, "connectID": connect_id, "error": _utf8(error)}
    return _framed(DIAL_RSP, dialResponse={**answer, "isthmus_address": reached})


def close_request(connect_id: int) -> bytes:
    """Write CLOSE_REQ: end a connection."""
    return _framed(CLOSE_REQ, closeRequest={"connectID": connect_id})


def close_response(connect_id: int, error: str = "") -> bytes:
    """Write CLOSE_RSP: a connection ended, cleanly or with an error."""
    return _framed(CLOSE_RSP, closeResponse={"connectID": connect_id, "error": _utf8(error)})


def close_dial(random: int) -> bytes:
    """Write DIAL_CLS: the dial is cancelled."""
    return _framed(DIAL_CLS, closeDial={"random": random})


def drain() -> bytes:
    """Write DRAIN: send this agent no new dials."""
    return _framed(DRAIN, drain={})


def _framed(type_: int, **payload: dict[str, Any]) -> bytes:
    try:
        body = Packet(type=type_, **payload).SerializeToString()  # type: ignore[arg-type]  # plain int
    except ValueError as exc:  # a number past int64, or a text not encodable as UTF-8
        raise ProtocolError(f"konnectivity: not encodable as a packet: {payload}") from exc
    return message_head(len(body)) + body


def _utf8(text: str) -> str:
    # Error texts of the system may contain bytes that are not UTF-8; they must not break an answer.
    return text.encode("utf-8", "replace").decode("utf-8")
