"""An end in memory: records what it receives, is full on request, and sends what a test feeds it.

It keeps the contract of tunnel/end.py, so that it can replace a socket in any pair of ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from isthmus.tunnel.end import BaseEnd, Early, Ending


def nothing_more(data: bytes) -> None:
    """Do nothing: the ``on_write`` of an end whose test does not interfere."""


class MemoryEnd(BaseEnd):
    """One side of a byte stream whose other side is the test.

    ``received``, ``eofs`` and ``aborted`` record the peer's calls; every half-close is counted, so
    that a test notices a second one. ``on_write`` runs inside ``write``, after the bytes are kept:
    the place to abort or join from inside a callback.
    """

    def __init__(self, *, early: Early | None = None) -> None:
        self.init_end(early)
        self.received = bytearray()
        self.eofs = 0
        self.aborted: Ending | None = None
        self.full = False
        self.paused = False
        self.resumes = 0
        self.on_write: Callable[[bytes], None] = nothing_more
        self._waiting: deque[bytes] = deque()
        self._eof_waits = False
        self._eof_fed = False
        self._pumping = False

    def __repr__(self) -> str:
        state = self.ending.value if self.ending else "full" if self.full else "open"
        return f"<MemoryEnd {state}, {len(self.received)} received, {self.waiting_bytes} waiting>"

    # Called by the peer.

    def write(self, data: bytes) -> bool:
        """Keep the bytes; False while full."""
        if self.ending is not None or self.eofs:
            return True
        self.bytes_written += len(data)
        self.took(data)
        self.on_write(data)
        return not self.full

    def took(self, data: bytes) -> None:
        """Record the written bytes; a subclass may count or hash them instead."""
        self.received += data

    def write_eof(self) -> None:
        """Count the half-close."""
        if self.ending is None:
            self.eofs += 1
            self._maybe_done()

    def abort(self, reason: Ending) -> None:
        """Record the reset."""
        if self.ending is None:
            self.aborted = reason
            self._finish(reason)

    def pause_reading(self) -> None:
        """Keep the bytes that a test feeds."""
        self.paused = True

    def resume_reading(self) -> None:
        """Deliver the bytes that a test fed."""
        self.paused = False
        self.resumes += 1
        self._pump()

    # Called by the test.

    @property
    def waiting_bytes(self) -> int:
        """The bytes that were fed and not yet delivered to the peer."""
        return sum(map(len, self._waiting))

    def feed(self, data: bytes) -> None:
        """Send bytes to the peer, now or when it has room."""
        self._waiting.append(data)
        self._pump()

    def feed_eof(self) -> None:
        """Half-close towards the peer, after everything fed before."""
        self._eof_waits = True
        self._pump()

    def reset(self) -> None:
        """Behave like a socket that the other side has reset: the peer is aborted."""
        if self.ending is None:
            peer = self.peer
            self._finish(Ending.RESET)
            peer.abort(Ending.RESET)

    def fill(self) -> None:
        """Be full from the next write on."""
        self.full = True

    def make_room(self) -> None:
        """Stop being full and let the peer go on, after an end of file too, as sockets do."""
        self.full = False
        if self.ending is None:
            self.peer.resume_reading()

    def _pump(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        while self._waiting and not self.paused and self.ending is None:
            data = self._waiting.popleft()
            # write returns the state after the call: a resume from inside must not be undone.
            self.paused = not self.peer.write(data)
        self._pumping = False
        if self._eof_waits and not self._waiting and not self._eof_fed and self.ending is None:
            self._eof_fed = True
            self.peer.write_eof()
            self._maybe_done()

    def _maybe_done(self) -> None:
        if self.eofs and self._eof_fed and self.ending is None:
            self._finish(Ending.CLEAN)

    def _finish(self, ending: Ending) -> None:
        self._waiting.clear()
        self.finish(ending)
