"""Our client's calls of both protocols, and a server that lies: told once, and nothing left."""

from cutting import cut, knobs
from sinks import REQUEST, ClientBed, sink

from isthmus.testing import MemoryEnd
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.http2_stream import NOBODY, Http2Stream
from isthmus.tunnel.payload import PayloadCall
from isthmus.tunnel.proxy_call import ProxyClientCall
from isthmus.wire.grpc import Status, status_headers
from isthmus.wire.http2 import ErrorCode


class Caller:
    """Who wants the connection."""

    def __init__(self, role: int, behaviour: int) -> None:
        self.behaviour = behaviour
        self.told: list[str] = []
        self.far: MemoryEnd | None = None
        self.bed = ClientBed()
        stream = self.bed.connection.open(NOBODY)
        assert stream is not None
        self.end: ProxyClientCall | PayloadCall
        if role & 1:
            self.end = PayloadCall(self)
            self.end.call(stream, REQUEST)
        else:
            self.end = ProxyClientCall(self, random=7, clock=self.bed.clock)
            self.end.call(stream, REQUEST, "a:1")

    def dialed(self) -> None:
        """The target is reached."""
        self.told.append("dialed")
        self.far = sink(self.behaviour)
        join(self.far, self.end)

    def refused(self, error: str) -> None:
        """It is not."""
        self.told.append("refused")

    def call_failed(self, status: Status, text: str) -> None:
        """The server does not want to."""
        self.told.append("failed")

    def not_called(self, text: str) -> None:
        """The server has not looked at it."""
        self.told.append("not called")

    def connection_lost(self, text: str) -> None:
        """The server is gone."""
        self.told.append("lost")

    def hang_up(self, stream: Http2Stream) -> None:
        """End the call."""
        stream.reset(ErrorCode.CANCEL)

    def look_later(self, end: ProxyClientCall, delay_s: float) -> None:
        """Not now."""


def check(data: bytes) -> None:
    """Answer a call with anything."""
    (role, behaviour, *sizes), raw = knobs(data)
    caller = Caller(role, behaviour)
    half = ((b"isthmus-half-close", b"1"),) if role & 2 else ()
    if not role & 4:
        caller.bed.answer(half)
    for piece in cut(raw, bytes(sizes)):
        caller.bed.send(piece)
        assert len(caller.told) <= 1, caller.told
    if caller.far is not None and role & 8:
        caller.far.feed(b"the client's")
        caller.far.feed_eof()
    if role & 16:
        caller.bed.trailers(tuple(status_headers(Status(role >> 5), "over")))
    caller.bed.connection.lost()
    assert len(caller.told) <= 1 and not caller.bed.connection.streams
    if caller.far is not None:
        if caller.far.ending is None:  # closed in good order: its own half is its own affair
            assert caller.far.eofs == 1
            caller.far.make_room()
            caller.far.feed_eof()
        assert caller.far.ending is not None
    else:
        caller.end.abort(Ending.CANCELLED)
        assert caller.told or caller.end.ending is not None
