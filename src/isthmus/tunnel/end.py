"""The end: the one interface of the data path, and join, which makes two ends peers.

Data is calls: whoever reads bytes calls ``peer.write`` there and then. There is no queue, task,
await or object per chunk. Socket ends live in net/, streams in tunnel/stream.py.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol


class Ending(Enum):
    """How an end finished. Everything but CLEAN is a reset and travels as one."""

    CLEAN = "closed"
    RESET = "reset by peer"
    LINK_LOST = "link lost"
    TIMED_OUT = "timed out"
    STALLED = "reset to stay inside the memory budget"
    PROTOCOL = "protocol error"
    DRAINED = "drain deadline passed"
    CANCELLED = "cancelled"
    ADMIN = "ended by an administrator"


class End(Protocol):
    """One side of a byte stream.

    Nothing here raises, and every call is a no-op once the end is closed.
    """

    peer: End
    bytes_written: int

    def write(self, data: bytes) -> bool:
        """Take bytes towards this side. False: full now, pause; my peer will hear resume_reading()."""

    def write_eof(self) -> None:
        """Half-close: nothing more will be written. What was written before arrives before it."""

    def abort(self, reason: Ending) -> None:
        """Reset this side, so that whoever is behind it sees an error and not an end of file."""

    def pause_reading(self) -> None:
        """Deliver nothing more to the peer until resume_reading()."""

    def resume_reading(self) -> None:
        """Deliver again; may be called from inside write()."""

    def start(self) -> None:
        """The peer is known: deliver what came early, EOF and abort included."""


def join(a: End, b: End) -> None:
    """Make two ends each other's peer and let both start."""
    a.peer, b.peer = b, a
    a.start()
    b.start()


def nobody_listens(end: BaseEnd, ending: Ending) -> None:
    """The default ``on_done``: nobody wants to know."""


EARLY_BYTES = 64 * 1024


class Early:
    """The peer of an end that has none yet: keeps what comes early, within a bound.

    Past the bound it answers False, so the end stops reading. EOF and abort are remembered.
    Handshake readers (a CONNECT head, a dial message) are subclasses that look at the bytes.
    """

    __slots__ = ("aborted", "buffer", "bytes_written", "eof", "limit", "peer")

    def __init__(self, limit: int = EARLY_BYTES) -> None:
        self.peer: End = self
        self.buffer = bytearray()
        self.bytes_written = 0
        self.limit = limit
        self.eof = False
        self.aborted: Ending | None = None

    def write(self, data: bytes) -> bool:
        """Keep the bytes; False once the bound is reached."""
        self.buffer += data
        return len(self.buffer) < self.limit

    def write_eof(self) -> None:
        """Remember the end of file."""
        self.eof = True

    def abort(self, reason: Ending) -> None:
        """Remember the reset."""
        self.aborted = reason

    def pause_reading(self) -> None:
        """Nothing comes from here."""

    def resume_reading(self) -> None:
        """Nothing comes from here."""

    def start(self) -> None:
        """Nothing comes from here."""

    def pass_on(self, to: End) -> bool:
        """Deliver what was kept to the real peer; True if it can take more at once."""
        if self.aborted is not None:
            to.abort(self.aborted)
            return False
        more = True
        if self.buffer:
            more = to.write(bytes(self.buffer))
            self.buffer.clear()
        if self.eof:
            to.write_eof()
        return more


class BaseEnd:
    """What every real end shares: the early keeper, the byte count, and the report when done.

    ``on_done`` is called exactly once, when both directions have finished or on abort.
    """

    __slots__ = ("__weakref__", "_early", "bytes_written", "ending", "on_done", "peer")

    def __init__(self) -> None:
        self._early: Early | None = Early()
        self.peer: End = self._early
        self.bytes_written = 0
        self.ending: Ending | None = None
        self.on_done: Callable[[BaseEnd, Ending], None] = nobody_listens
