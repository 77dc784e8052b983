"""Carriers in memory: record what a session sends, or couple two sessions without sockets.

Nothing moves by itself: a test decides when a batch ends (flush), how many bytes cross (deliver),
and whether a direction has room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from isthmus.testing.clock import ManualClock
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.session import Session
from isthmus.tunnel.stream import Stream
from isthmus.wire.yamux import DATA, HEADER_BYTES, Flags, FrameType, Header, take_header


class Frame(NamedTuple):
    """One frame that a session sent."""

    header: Header
    payload: bytes

    @property
    def type(self) -> FrameType:
        """The type of the frame."""
        return self.header.type

    @property
    def flags(self) -> Flags:
        """The frame's effect on its stream."""
        return self.header.flags


def take_frames(buffer: bytearray) -> list[Frame]:
    """Consume every complete frame; the beginning of the next stays in the buffer."""
    frames = []
    while (header := take_header(buffer[:HEADER_BYTES])) is not None:
        end = HEADER_BYTES + (header.length if header.type == DATA else 0)
        if len(buffer) < end:
            break
        frames.append(Frame(header, bytes(buffer[HEADER_BYTES:end])))
        del buffer[:end]
    return frames


class Carried(Protocol):
    """The interface of a session, of any protocol, for its carrier."""

    def heard(self) -> None:
        """Bytes arrived."""

    def receive(self, view: memoryview) -> None:
        """Take them."""

    def flush(self) -> None:
        """Write the output of a batch of events."""

    def resume(self) -> None:
        """There is room to write again."""


class MemoryCarrier:
    """One direction of a carrier: keeps sent bytes until a test takes them.

    It is full above ``room_bytes``, like a socket whose kernel buffer is full; ``take`` makes room
    and tells the session.
    """

    def __init__(self, *, room_bytes: int | None = None) -> None:
        self.session: Carried | None = None
        self.room_bytes = room_bytes
        self.sent = bytearray()
        self.woken = False
        self.most_bytes = 0
        self._was_full = False

    @property
    def full(self) -> bool:
        """Whether more bytes are waiting than there is room for."""
        return self.room_bytes is not None and len(self.sent) > self.room_bytes

    def send(self, data: bytes) -> bool:
        """Accept all bytes; False when full."""
        self.sent += data
        self.most_bytes = max(self.most_bytes, len(self.sent))
        self._was_full = self.full
        return not self._was_full

    def wake(self) -> None:
        """Record that the session requested a flush."""
        self.woken = True

    def wake_in_time(self) -> None:
        """Record the request like ``wake``: in a test no time passes."""
        self.woken = True

    def flush(self) -> None:
        """End a batch: flush if the session requested it."""
        if self.woken and self.session is not None:
            self.woken = False
            self.session.flush()

    def take(self, size: int | None = None) -> bytes:
        """Take the sent bytes, all or at most ``size``, and tell the session about the room."""
        taken = bytes(self.sent if size is None else self.sent[:size])
        del self.sent[: len(taken)]
        if self._was_full and not self.full:
            self._was_full = False
            if self.session is not None:
                self.session.resume()
        return taken

    def frames(self) -> list[Frame]:
        """Flush, and take every complete frame; the carrier becomes empty."""
        self.flush()
        buffer = bytearray()
        while chunk := self.take():
            buffer += chunk
        return take_frames(buffer)


class Coupled:
    """Two carriers, each of which delivers to the other's session."""

    def __init__(self, *, room_bytes: int | None = None) -> None:
        self.client_out = MemoryCarrier(room_bytes=room_bytes)
        self.server_out = MemoryCarrier(room_bytes=room_bytes)

    def flush(self) -> None:
        """End a batch on both sides."""
        self.client_out.flush()
        self.server_out.flush()

    def deliver(self, *, to_server: bool, size: int | None = None) -> int:
        """Deliver at most ``size`` bytes in one direction; return how many."""
        out, into = self.client_out, self.server_out
        if not to_server:
            out, into = into, out
        receiver = into.session
        data = out.take(size)
        if data and receiver is not None:
            receiver.heard()
            receiver.receive(memoryview(data))
        return len(data)

    def run(self, *, piece_bytes: int | None = None, max_rounds: int = 100_000) -> None:
        """Deliver everything in both directions until nothing moves.

        Raises:
            RuntimeError: the sessions did not become idle.
        """
        for _ in range(max_rounds):
            self.flush()
            moved = self.deliver(to_server=True, size=piece_bytes)
            moved += self.deliver(to_server=False, size=piece_bytes)
            if not moved and not self.client_out.woken and not self.server_out.woken:
                return
        raise RuntimeError("the sessions did not become idle")


class MemoryLink(Coupled):
    """Two sessions coupled: a client and a server, each with its own carrier."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] | None = None,
        limits: Limits | None = None,
        room_bytes: int | None = None,
        on_client_stream: Callable[[Stream], None] | None = None,
        on_server_stream: Callable[[Stream], None] | None = None,
    ) -> None:
        clock = clock if clock is not None else ManualClock()
        limits = limits if limits is not None else Limits()
        self.accepted: list[Stream] = []
        super().__init__(room_bytes=room_bytes)
        self.client_out.session = self.client = Session(
            self.client_out,
            client=True,
            clock=clock,
            on_stream=on_client_stream or self.accepted.append,
            limits=limits,
        )
        self.server_out.session = self.server = Session(
            self.server_out,
            client=False,
            clock=clock,
            on_stream=on_server_stream or self.accepted.append,
            limits=limits,
        )
