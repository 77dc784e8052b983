"""HTTP/2 in memory: a recording handler, and two connections coupled without sockets or a loop.

Nothing moves by itself, as in carriers.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from isthmus.testing.carriers import Coupled
from isthmus.testing.clock import ManualClock
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import Handler, Http2Stream
from isthmus.tunnel.limits import Http2Limits
from isthmus.wire.http2 import HEADER_BYTES, PREFACE, Headers, unpack_head


class Http2Frame(NamedTuple):
    """One frame that a connection sent."""

    kind: int
    flags: int
    stream_id: int
    payload: bytes


def take_http2_frames(buffer: bytearray) -> list[Http2Frame]:
    """Consume a preface and every complete frame; the beginning of the next stays."""
    if buffer.startswith(PREFACE):
        del buffer[: len(PREFACE)]
    frames = []
    while len(buffer) >= HEADER_BYTES:
        high, low, kind, flags, stream_id = unpack_head(buffer)
        end = HEADER_BYTES + (high << 8 | low)
        if len(buffer) < end:
            break
        frames.append(Http2Frame(kind, flags, stream_id, bytes(buffer[HEADER_BYTES:end])))
        del buffer[:end]
    return frames


class Recorder:
    """A handler that records its calls, in order, with the bytes joined.

    While ``full`` it gives no credit, and its received bytes count as held. Before it returns from
    any of its methods it calls ``on_call`` with the name: the place to close from inside.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.headers: list[Headers] = []
        self.received = bytearray()
        self.reset: tuple[int, str] | None = None
        self.full = False
        self.on_call: Callable[[str, Http2Stream], None] = lambda name, stream: None

    def _note(self, name: str, stream: Http2Stream) -> None:
        self.calls.append(name)
        self.on_call(name, stream)

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """Record them."""
        self.headers.append(headers)
        self._note("headers", stream)

    def got_data(self, stream: Http2Stream, view: memoryview) -> None:
        """Record the bytes."""
        self.received += view
        if self.calls[-1:] == ["data"]:
            self.calls.pop()  # the boundaries between pieces are not recorded
        self._note("data", stream)

    def batch_over(self, stream: Http2Stream) -> None:
        """Give credit, unless full."""
        self.on_call("batch", stream)
        if self.full:
            stream.hold()
        else:
            stream.release()

    def got_end(self, stream: Http2Stream) -> None:
        """Record the half-close."""
        self._note("end", stream)

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        """Record why."""
        self.reset = (code, text)
        self._note("reset", stream)

    def can_write(self, stream: Http2Stream) -> None:
        """Record the wake-up."""
        self._note("can_write", stream)


class Http2Pair(Coupled):
    """Two connections coupled: a client and a server, each with its own carrier.

    ``accepted`` has the server's streams with their Recorders, unless ``on_request`` makes other
    handlers.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] | None = None,
        limits: Http2Limits | None = None,
        room_bytes: int | None = None,
        on_request: Callable[[Http2Stream, Headers], Handler] | None = None,
    ) -> None:
        self.clock = clock if clock is not None else ManualClock()
        limits = limits if limits is not None else Http2Limits()
        self.accepted: list[tuple[Http2Stream, Recorder]] = []
        super().__init__(room_bytes=room_bytes)
        self.client_out.session = self.client = Http2Connection(
            self.client_out, client=True, clock=self.clock, limits=limits
        )
        self.server_out.session = self.server = Http2Connection(
            self.server_out,
            client=False,
            clock=self.clock,
            limits=limits,
            on_request=on_request or self._accept,
        )

    def _accept(self, stream: Http2Stream, headers: Headers) -> Recorder:
        handler = Recorder()
        handler.headers.append(headers)
        self.accepted.append((stream, handler))
        return handler
