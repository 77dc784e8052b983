"""The end: the one interface of the data path, and join, which makes two ends peers.

Data is calls: whoever reads bytes calls ``peer.write`` there and then. There is no queue, task,
await or object per chunk. Socket ends live in net/, streams in stream.py.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Protocol

EARLY_BYTES = 64 * 1024


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

    # Members are singletons. Enum's own hash is a Python function, and every ending is counted.
    __hash__ = object.__hash__


class End(Protocol):
    """One side of a byte stream.

    Nothing here raises, and every call is a no-op once the end is closed.
    """

    peer: End
    bytes_written: int

    def write(self, data: bytes) -> bool:
        """Take bytes towards this side; all of them, always.

        False means full now: stop delivering. The peer hears resume_reading() later.
        """

    def write_eof(self) -> None:
        """Half-close: nothing more will be written. What was written before arrives before it."""

    def abort(self, reason: Ending) -> None:
        """Reset this side, so that whoever is behind it sees an error and not an end of file."""

    def pause_reading(self) -> None:
        """Deliver nothing more to the peer (a stream: nothing past its credit) until resumed."""

    def resume_reading(self) -> None:
        """Deliver again; may be called from inside write()."""

    def start(self) -> None:
        """The peer is known: deliver what came early, EOF and abort included."""

    def let_go(self) -> None:
        """After write_eof: whoever is behind the peer reads nothing more, either.

        An end that can close does so when everything is written; others do nothing.
        """


def join(a: End, b: End) -> None:
    """Make two ends each other's peer and let both start."""
    a.peer, b.peer = b, a
    a.start()
    b.start()


class Early:
    """The peer of an end that has none yet: keeps what comes early, within a bound.

    Past the bound it answers False, so the end stops reading. EOF and abort are remembered.
    Handshake readers (a CONNECT head, a dial message) are subclasses that look at the bytes.
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

    def let_go(self) -> None:
        """Nobody is there to close."""

    def pass_on(self, to: End) -> bool:
        """Deliver what was kept to the real peer; True if it can take more at once."""
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
    """A peer that throws away what comes, for an end that only has to say goodbye."""

    __slots__ = ()

    def write(self, data: bytes) -> bool:
        return True


class Gone(Early):
    """The peer of every end that has finished: takes anything and does nothing.

    Two ends that kept each other would be freed only by the garbage collector, in pauses that
    grow with the number of open tunnels; with this, a finished tunnel is freed at once.
    """

    __slots__ = ()

    def __init__(self) -> None:
        self.peer = self
        self.bytes_written = 0

    def write(self, data: bytes) -> bool:
        return True

    def write_eof(self) -> None:
        """Nobody is there to half-close."""

    def abort(self, reason: Ending) -> None:
        """Nobody is there to reset."""


GONE = Gone()


def unsent(end: End) -> int:
    """How many bytes an end has taken and not passed on."""
    if isinstance(end, Early):
        return len(getattr(end, "buffer", b""))  # nobody's peer yet, or nobody's any more
    waiting = getattr(end, "backlog_bytes", None)
    return int(waiting if waiting is not None else getattr(end, "out_bytes", 0))


def nobody_listens(end: End, ending: Ending) -> None:
    """Do nothing: the ``on_done`` of an end that nobody asks about."""


class BaseEnd:
    """What every real end shares: the early keeper, the byte count, and the report when done.

    A mix-in without storage of its own, so that it can stand beside a socket class; the concrete
    class puts END_SLOTS into its ``__slots__``. ``on_done`` is called exactly once, when both
    directions have finished or on abort, and ``ending`` says how.
    """

    if not TYPE_CHECKING:  # a type checker would take them for the only fields
        __slots__ = ()

    peer: End
    bytes_written: int
    ending: Ending | None
    on_done: Callable[[End, Ending], None]
    _early: Early | None

    def init_end(self, early: Early | None = None) -> None:
        """Set the fields; ``early`` is a handshake reader, or None for one that only keeps."""
        self._early = self.peer = early if early is not None else Early()
        self._early.peer = self
        self.bytes_written = 0
        self.ending = None
        self.on_done = nobody_listens

    def start(self) -> None:
        """Hand over what came early to the peer that is now known."""
        early, self._early = self._early, None
        if early is None:
            if self.ending not in (None, Ending.CLEAN):  # reset before it had a peer to tell
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
        """Report once how this end finished, and let go of everything it knew."""
        self.ending = ending
        on_done, self.on_done = self.on_done, nobody_listens
        self.peer, self._early = GONE, None
        on_done(self, ending)

    if TYPE_CHECKING:  # given by the concrete class; at run time a stub here would hide it

        def write(self, data: bytes) -> bool: ...

        def write_eof(self) -> None: ...

        def abort(self, reason: Ending) -> None: ...

        def pause_reading(self) -> None: ...

        def resume_reading(self) -> None: ...


END_SLOTS = ("_early", "bytes_written", "ending", "on_done", "peer")
