"""Konnectivity's packets: the reader by hand says what protobuf says, however they are cut."""

from cutting import knobs, same, whole_and_cut

from isthmus.errors import ProtocolError
from isthmus.tunnel.message_reader import PacketReader
from isthmus.wire.grpc import MAX_MESSAGE_BYTES, MESSAGE_HEAD
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import DATA, data_packet, parse


class Keeper:
    """What came, payloads joined."""

    def __init__(self) -> None:
        self.got: list[tuple[int, bytes] | bytes] = []

    def got_payload(self, connect_id: int, piece: memoryview | bytes) -> None:
        """Begin a payload."""
        self.got.append((connect_id, bytes(piece)))

    def more_payload(self, piece: memoryview | bytes) -> None:
        """Go on with it."""
        last = self.got.pop()
        assert isinstance(last, tuple) and piece
        self.got.append((last[0], last[1] + bytes(piece)))

    def got_message(self, message: memoryview | bytes) -> None:
        """Keep any other."""
        self.got.append(parse(message).SerializeToString(deterministic=True))


def read(pieces: list[bytes]) -> tuple[object, ...]:
    """Read a stream; what came, the error, and where it stands.

    A payload whose packet is not whole may still wait for a byte: it is left out.
    """
    reader, keeper = PacketReader(), Keeper()
    try:
        for piece in pieces:
            reader.feed(memoryview(piece), keeper)
            assert reader.kept_bytes <= MAX_MESSAGE_BYTES + MESSAGE_HEAD
    except ProtocolError as error:
        return tuple(keeper.got), str(error)
    if not reader.at_boundary and reader._left:
        keeper.got.pop()
    return tuple(keeper.got), reader.at_boundary


def by_protobuf(raw: bytes) -> list[tuple[int, bytes] | bytes]:
    """What whole messages say, up to the first that says nothing."""
    found: list[tuple[int, bytes] | bytes] = []
    while len(raw) >= MESSAGE_HEAD and raw[0] == 0:
        end = MESSAGE_HEAD + int.from_bytes(raw[1:5], "big")
        if len(raw) < end:
            break
        try:
            packet = Packet.FromString(raw[MESSAGE_HEAD:end])
        except Exception:  # whatever protobuf raises: it is no packet
            break
        found.append(packet.SerializeToString(deterministic=True))
        raw = raw[end:]
    return found


def check(data: bytes) -> None:
    """Read a stream of packets."""
    sizes, raw = knobs(data)
    got, _ = same([read(pieces) for pieces in whole_and_cut(raw, sizes)])
    assert isinstance(got, tuple)
    for ours, theirs in zip(got, by_protobuf(raw), strict=False):
        if isinstance(ours, tuple):
            packet = Packet.FromString(theirs)  # type: ignore[arg-type]  # bytes, here
            assert (packet.data.connectID, packet.data.data) == ours and packet.type == DATA
            again = Packet.FromString(data_packet(*ours)[MESSAGE_HEAD:])
            assert (again.data.connectID, again.data.data) == ours
        else:
            assert ours == theirs
