"""A client's KEP-1281 call at our server: what is not payloads ends that call, and no more."""

from cutting import cut, knobs, prefixes, same, whole_and_cut
from sinks import ServerBed, sink

from isthmus.testing import MemoryEnd
from isthmus.tunnel.end import join
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.payload import PayloadEnd
from isthmus.wire.grpc import Status
from isthmus.wire.http2 import Headers


class Client:
    """Who dials: at once, never, or not."""

    def __init__(self, role: int, behaviour: int) -> None:
        self.role = role
        self.broken = self.gone = 0
        self.far: MemoryEnd | None = None
        self.bed = ServerBed(self.request)
        if role % 3 == 0:
            self.end.accept()
            self.far = sink(behaviour)
            join(self.end, self.far)
        elif role % 3 == 1:
            self.end.refuse(Status.UNAVAILABLE, "no")

    def request(self, stream: Http2Stream, headers: Headers) -> PayloadEnd:
        """Make the end."""
        self.end = PayloadEnd(stream, half_closes=bool(self.role & 0x40))
        self.end.client = self
        return self.end

    def left(self) -> None:
        """It gave up."""
        self.gone += 1

    def broke_rules(self, what: str) -> None:
        """It was told."""
        self.broken += 1


def _outcome(role: int, behaviour: int, pieces: list[bytes]) -> tuple[bytes, object]:
    client = Client(role, behaviour)
    for piece in pieces:
        client.bed.send(piece)
        assert client.broken <= 1 and client.gone <= 1
    if role & 0x80:
        client.bed.send(b"", end=True)
    client.bed.over()
    assert client.end.ending is not None
    if client.far is None:
        return b"", client.broken
    assert client.far.ending is not None
    return bytes(client.far.received), (client.broken, client.far.eofs)


def check(data: bytes) -> None:
    """Feed payloads to a call."""
    (role, behaviour, *sizes), raw = knobs(data)
    raw = raw[:2000]
    if not behaviour:
        outcomes = [_outcome(role, 0, pieces) for pieces in whole_and_cut(raw, bytes(sizes))]
        same([verdict for _, verdict in outcomes])
        prefixes([data for data, _ in outcomes])
    _outcome(role, behaviour, list(cut(raw, bytes(sizes))))
