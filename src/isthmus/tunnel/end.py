"""The end, the one interface of the data path, and join, which makes two ends peers.

Data moves by calls: the reader of bytes calls ``peer.write`` immediately. There is no queue, task,
await or object per chunk. Socket ends are in net/, streams in stream.py.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Protocol

EARLY_BYTES = 64 * 1024


class Ending(Enum):
    """How an end finished. Everything but CLEAN is a reset and is propagated as one."""

    CLEAN = "closed"
    RESET = "reset by peer"
    LINK_LOST = "link lost"
    TIMED_OUT = "timed out"
    STALLED = "reset to stay inside the memory budget"
    PROTOCOL = "protocol error"
    DRAINED = "drain deadline passed"
    CANCELLED = "cancelled"
    ADMIN = "ended by an administrator"

    # Members are singletons. Enum's own hash is a Python function, and every ending is counted.
    __hash__ = object.__hash__


class End(Protocol):
    """One side of a byte stream.

    Nothing here raises, and every call is a no-op once the end is closed.
    """

    peer: End
    bytes_written: int

    def write(self, data: bytes) -> bool:
        """Take bytes towards this side; always accepts all of them.

        False means full: stop delivering until the peer's resume_reading() is called.
        """

    def write_eof(self) -> None:
        """Half-close: nothing more will be written. Bytes written before arrive first."""

    def abort(self, reason: Ending) -> None:
        """Reset this side, so that the program behind it sees an error and not an end of file."""

    def pause_reading(self) -> None:
        """Stop delivering to the peer (a stream: beyond its credit) until resumed."""

    def resume_reading(self) -> None:
        """Continue delivering; may be called from inside write()."""

    def start(self) -> None:
        """The peer is set: deliver early bytes, EOF and abort."""

    def let_go(self) -> None:
        """After write_eof: the program behind the peer no longer reads, either.

        An end that can close does so when everything is written; others do nothing.
        """


def join(a: End, b: End) -> None:
    """Make two ends each other's peer and let both start."""
    a.peer, b.peer = b, a
    a.start()
    b.start()


class Early:
    """The peer of an end that has none yet: keeps early bytes, within a bound.

    Past the bound it returns False, so the end stops reading. EOF and abort are remembered.
    Handshake readers (a CONNECT head, a dial message) are subclasses that parse the bytes.
    """

    __slots__ = ("aborted", "buffer", "bytes_written", "eof", "limit", "peer")

    def __init__(self, limit: int = EARLY_BYTES) -> None:
        self.peer: End = GONE
        self.buffer = bytearray()
        self.bytes_written = 0
        self.limit = limit
        self.eof = False
        self.aborted: Ending | None = None

    def write(self, data: bytes) -> bool:
        self.buffer += data
        return len(self.buffer) < self.limit

    def write_eof(self) -> None:
        self.eof = True

    def abort(self, reason: Ending) -> None:
        self.aborted = reason

    def pause_reading(self) -> None:
        """Do nothing: this end sends nothing."""

    def resume_reading(self) -> None:
        """Do nothing: this end sends nothing."""

    def start(self) -> None:
        """Do nothing: this end sends nothing."""

    def let_go(self) -> None:
        """Do nothing: there is nothing to close."""

    def pass_on(self, to: End) -> bool:
        """Deliver the kept bytes to the real peer; True if it can take more at once."""
        if self.aborted is not None:
            to.abort(self.aborted)
            return True
        more = True
        if self.buffer:
            more = to.write(bytes(self.buffer))
            self.buffer.clear()
        if self.eof:
            to.write_eof()
        return more


class Discard(Early):
    """A peer that discards everything, for an end that only has to finish."""

    __slots__ = ()

    def write(self, data: bytes) -> bool:
        return True


class Gone(Early):
    """The peer of every finished end: accepts anything and does nothing.

    Two ends that refer to each other would be freed only by the garbage collector, in pauses that
    grow with the number of open tunnels; with this peer, a finished tunnel is freed at once.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self.peer = self
        self.bytes_written = 0

    def write(self, data: bytes) -> bool:
        return True

    def write_eof(self) -> None:
        """Do nothing: there is nothing to half-close."""

    def abort(self, reason: Ending) -> None:
        """Do nothing: there is nothing to reset."""


GONE = Gone()


def unsent(end: End) -> int:
    """The number of bytes that an end has accepted and not passed on."""
    if isinstance(end, Early):
        return len(getattr(end, "buffer", b""))  # not a peer yet, or no longer
    waiting = getattr(end, "backlog_bytes", None)
    return int(waiting if waiting is not None else getattr(end, "out_bytes", 0))


def nobody_listens(end: End, ending: Ending) -> None:
    """Do nothing: the ``on_done`` of an end without an observer."""


class BaseEnd:
    """The common part of real ends: the keeper of early bytes, the byte count, and the final
    report.

    A mix-in without storage of its own, so that it can be combined with a socket class; the
    concrete class puts END_SLOTS into its ``__slots__``. ``on_done`` is called exactly once, when
    both directions have finished or on abort, with ``ending``.
    """

    if not TYPE_CHECKING:  # a type checker would treat these as the only fields
        __slots__ = ()

    peer: End
    bytes_written: int
    ending: Ending | None
    on_done: Callable[[End, Ending], None]
    _early: Early | None

    def init_end(self, early: Early | None = None) -> None:
        """Set the fields; ``early`` is a handshake reader, or None to only keep bytes."""
        self._early = self.peer = early if early is not None else Early()
        self._early.peer = self
        self.bytes_written = 0
        self.ending = None
        self.on_done = nobody_listens

    def start(self) -> None:
        """Hand over early bytes to the peer that is now set."""
        early, self._early = self._early, None
        if early is None:
            if self.ending not in (None, Ending.CLEAN):  # reset before it had a peer
                peer, self.peer = self.peer, GONE
                peer.abort(self.ending)
            return
        early.peer = GONE
        if early.pass_on(self.peer):
            self.resume_reading()
        else:
            self.pause_reading()

    def let_go(self) -> None: ...

    def finish(self, ending: Ending) -> None:
        """Report once how this end finished, and drop all references."""
        self.ending = ending
        on_done, self.on_done = self.on_done, nobody_listens
        self.peer, self._early = GONE, None
        on_done(self, ending)

    if TYPE_CHECKING:  # implemented by the concrete class; a stub here would hide it

        def write(self, data: bytes) -> bool: ...

        def write_eof(self) -> None: ...

        def abort(self, reason: Ending) -> None: ...

        def pause_reading(self) -> None: ...

        def resume_reading(self) -> None: ...


END_SLOTS = ("_early", "bytes_written", "ending", "on_done", "peer")
