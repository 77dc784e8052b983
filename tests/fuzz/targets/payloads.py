"""KEP-1281: payloads as protobuf reads them, however cut; options that name a target or fail."""

from contextlib import suppress

from cutting import knobs, prefixes, same, whole_and_cut

from isthmus.errors import ProtocolError
from isthmus.tunnel.payload import PayloadStream
from isthmus.values import HostPort
from isthmus.wire.grpc import MAX_MESSAGE_BYTES, MESSAGE_HEAD
from isthmus.wire.kep1281_pb2 import Payload
from isthmus.wire.payload import connect_options, read_connect_options


def read(pieces: list[bytes], hears_end: bool) -> tuple[bytes, tuple[object, ...]]:
    """Read a stream; the data, and what became of it."""
    end, got = PayloadStream(), bytearray()
    end.hears_end = hears_end
    error = ""
    try:
        for piece in pieces:
            end.reader.feed(memoryview(piece), end)
            assert end.reader.kept_bytes <= MAX_MESSAGE_BYTES + MESSAGE_HEAD
            got += b"".join(end.pieces)
            end.pieces.clear()
    except ProtocolError as exc:
        error = str(exc)
        got += b"".join(end.pieces)
    return bytes(got), (error, bool(error) or end.reader.at_boundary, end.saw_end)


def by_protobuf(raw: bytes) -> bytes:
    """The data of whole messages, up to the first that is none."""
    found = b""
    while len(raw) >= MESSAGE_HEAD and raw[0] == 0:
        end = MESSAGE_HEAD + int.from_bytes(raw[1:5], "big")
        if len(raw) < end:
            break
        try:
            found += Payload.FromString(raw[MESSAGE_HEAD:end]).data
        except Exception:  # whatever protobuf raises: it is no payload
            break
        raw = raw[end:]
    return found


def check(data: bytes) -> None:
    """Read a stream of payloads, and the same bytes as options."""
    sizes, raw = knobs(data)
    hears_end = bool(sizes[0] & 1)
    outcomes = [read(pieces, hears_end) for pieces in whole_and_cut(raw, sizes)]
    error, whole, _ = same([verdict for _, verdict in outcomes])
    deliveries = [data for data, _ in outcomes]
    got = same(deliveries) if whole and not error else prefixes(deliveries)
    if not hears_end:
        assert got.startswith(by_protobuf(raw))
    with suppress(ProtocolError):
        target = read_connect_options(raw)
        assert isinstance(target, HostPort)
        assert read_connect_options(connect_options(target)) == target
