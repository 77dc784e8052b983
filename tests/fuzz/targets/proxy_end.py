"""A client's call of konnectivity at our server: whatever it says, one dial and one answer."""

from cutting import cut, knobs
from sinks import ServerBed, sink

from isthmus.testing import MemoryEnd
from isthmus.tunnel.end import join
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.proxy_end import ProxyEnd
from isthmus.wire.http2 import Headers


class Client:
    """Who dials: at once, never, or not."""

    settle_s = 0.01

    def __init__(self, role: int, behaviour: int) -> None:
        self.role, self.behaviour = role, behaviour
        self.wanted = self.gone = 0
        self.far: MemoryEnd | None = None
        self.bed = ServerBed(self.request)

    def request(self, stream: Http2Stream, headers: Headers) -> ProxyEnd:
        """Make the end."""
        self.end = ProxyEnd(stream, self.bed_clock)
        self.end.client = self
        return self.end

    def bed_clock(self) -> float:
        """Time stands still."""
        return 1000.0

    def wants(self, protocol: str, address: str) -> None:
        """It asks for a target."""
        self.wanted += 1
        if self.role % 3 == 0:
            self.end.accept(7)
            self.far = sink(self.behaviour)
            join(self.end, self.far)
        elif self.role % 3 == 1:
            self.end.refuse("no")

    def left(self) -> None:
        """It gave up."""
        self.gone += 1

    def settle_later(self, end: ProxyEnd, delay_s: float) -> None:
        """Not now: what was kept stays."""

    def broke_rules(self, what: str) -> None:
        """It was told."""


def check(data: bytes) -> None:
    """Feed packets to a call."""
    (role, behaviour, *sizes), raw = knobs(data)
    client = Client(role, behaviour)
    for piece in cut(raw, bytes(sizes)):
        client.bed.send(piece)
        assert client.wanted <= 1 and client.gone <= 1
    if role & 0x80:
        client.bed.send(b"", end=True)
    if client.far is not None:
        client.far.feed(b"the target's")
        client.far.feed_eof()
        client.end.settle()
    client.bed.over()
    assert client.end.ending is not None or not client.wanted
    assert client.far is None or client.far.ending is not None
