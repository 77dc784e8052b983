"""Sinks that behave badly, and one HTTP/2 stream in memory, for the targets of sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isthmus.testing import ManualClock, MemoryCarrier, MemoryEnd
from isthmus.tunnel.end import Ending
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import Handler, Http2Stream
from isthmus.tunnel.limits import Http2Limits
from isthmus.wire.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS_ACK,
    Headers,
    Http2Error,
    encode_headers,
    frame,
    settings,
)

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/ProxyService/Proxy"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
RESPONSE = ((b":status", b"200"), (b"content-type", b"application/grpc"))


def sink(behaviour: int) -> MemoryEnd:
    """An end that takes bytes, takes none, answers, leaves, or does so in the middle of a call."""
    end = MemoryEnd()
    end.full = bool(behaviour & 1)
    acts: Sequence[Callable[[bytes], None]] = (
        lambda data: None,
        end.feed,
        lambda data: end.feed_eof(),
        lambda data: end.reset(),
        lambda data: end.make_room(),
        lambda data: _end_both(end),
    )
    end.on_write = acts[(behaviour >> 1) % len(acts)]
    return end


def _end_both(end: MemoryEnd) -> None:
    """What whoever owns a tunnel does when it is over, here from inside a write."""
    peer = end.peer
    peer.abort(Ending.CANCELLED)
    end.abort(Ending.CANCELLED)


class ServerBed:
    """The server's side of a connection with one call, whose data a target sends."""

    def __init__(
        self, on_request: Callable[[Http2Stream, Headers], Handler], *, more: Headers = ()
    ) -> None:
        self.clock = ManualClock()
        self.carrier = MemoryCarrier()
        self.connection = Http2Connection(
            self.carrier, client=False, clock=self.clock, on_request=on_request,
            limits=Http2Limits(),
        )  # fmt: skip
        self.carrier.session = self.connection
        opening = frame(HEADERS, END_HEADERS, 1, encode_headers((*REQUEST, *more)))
        self.connection.receive(memoryview(PREFACE + settings() + SETTINGS_ACK + opening))

    def send(self, piece: bytes, *, end: bool = False) -> None:
        """Send data of the call; a connection that is over takes nothing."""
        if not self.connection.closed:
            flags = END_STREAM if end else 0
            self.connection.receive(memoryview(frame(DATA, flags, 1, piece)))
            self.carrier.flush()

    def over(self) -> None:
        """The connection is lost: nothing may be left of it."""
        self.connection.lost()
        assert not self.connection.streams and not self.connection.held
        assert not self.connection.holders


class ClientBed:
    """The client's side of a connection with one call, whose answers a target sends."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.carrier = MemoryCarrier()
        self.connection = Http2Connection(self.carrier, client=True, clock=self.clock)
        self.carrier.session = self.connection
        self.connection.receive(memoryview(settings() + SETTINGS_ACK))

    def answer(self, more: Headers = ()) -> None:
        """Send the head of the response."""
        block = encode_headers((*RESPONSE, *more))
        self.receive(frame(HEADERS, END_HEADERS, 1, block))

    def send(self, piece: bytes) -> None:
        """Send data of the call."""
        self.receive(frame(DATA, 0, 1, piece))

    def trailers(self, headers: Headers) -> None:
        """End the call."""
        block = encode_headers(headers)
        self.receive(frame(HEADERS, END_HEADERS | END_STREAM, 1, block))

    def receive(self, raw: bytes) -> None:
        """Whatever the server's side says; a frame on a call that is over is its own affair."""
        if not self.connection.closed:
            try:
                self.connection.receive(memoryview(raw))
            except Http2Error:
                self.connection.lost()
            self.carrier.flush()
