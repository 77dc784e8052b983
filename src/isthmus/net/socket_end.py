"""Ends over sockets: the common part, and the end over a plain TCP or UNIX socket.

The end over TLS is in tls.py.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from typing import TYPE_CHECKING

from isthmus.net.poller import Poller
from isthmus.net.raw import MOST_LAST_READS, READ_BYTES, RawSocket
from isthmus.tunnel.end import END_SLOTS, BaseEnd, Early, Ending

SOCKET_END_SLOTS = (*END_SLOTS, "_eof_in", "_eof_out")


class SocketEndBase(BaseEnd):
    """The life of an end over a socket: half-closes, resets, and the report when done.

    A mix-in for a RawSocket, whose fields it uses; see BaseEnd for why it has no storage.
    """

    if not TYPE_CHECKING:  # a type checker would treat these as the only fields
        __slots__ = ()

    closed: bool
    paused: bool
    fd: int
    out_bytes: int
    _queued: bool
    _out: deque[bytes | memoryview | bytearray] | None
    _eof_in: bool
    _eof_out: bool

    def init_socket_end(self, early: Early | None) -> None:
        """Set the fields, before the socket is registered."""
        self.init_end(early)
        self._eof_in = False
        self._eof_out = False

    def __repr__(self) -> str:
        state = self.ending.value if self.ending else "paused" if self.paused else "open"
        return f"<{type(self).__name__} fd {self.fd} {state}, {self.out_bytes} unsent>"

    if TYPE_CHECKING:  # implemented by the concrete class

        def send_eof(self) -> None:
            """Half-close as this kind of connection does."""

        def reset(self) -> None: ...

        def close(self) -> None: ...

    @property
    def half_closed(self) -> bool:
        """Exactly one direction has ended."""
        return self.ending is None and self._eof_in != self._eof_out

    def got_eof(self) -> None:
        """The other side sends nothing more: half-close our peer."""
        if not self._eof_in:
            self._eof_in = True
            self.peer.write_eof()
            self._maybe_done()

    def write_eof(self) -> None:
        """Half-close after unsent data."""
        if not self.closed and not self._eof_out:
            self._eof_out = True
            self.send_eof()
            self._maybe_done()

    def let_go(self) -> None:
        """Close once everything is sent: the kernel answers later data with a reset."""
        if self._eof_out:
            self.got_eof()

    def drained(self) -> None:
        """Tell the peer that there is room, and finish if everything is done."""
        # Also after its end of file: a stream counts what it holds until this call.
        self.peer.resume_reading()
        if self._eof_out:
            self._maybe_done()

    def abort(self, reason: Ending) -> None:
        if self.ending is None:
            self.reset()
            self.finish(reason)

    def broken(self) -> None:
        """The connection was reset or cut: reset the peer."""
        if self.ending is None:
            self.reset()
            peer = self.peer
            self.finish(Ending.RESET)
            peer.abort(Ending.RESET)

    def _maybe_done(self) -> None:
        if self._eof_in and self._eof_out and self._out is None and self.ending is None:
            self.close()
            self.finish(Ending.CLEAN)


class SocketEnd(SocketEndBase, RawSocket):
    """One side of a tunnel that is a connected TCP or UNIX socket."""

    __slots__ = SOCKET_END_SLOTS

    def __init__(self, sock: socket.socket, poller: Poller, early: Early | None = None) -> None:
        self.init_socket_end(early)
        RawSocket.__init__(self, sock, poller)

    def readable(self) -> None:
        """Read once and pass it on; the poller calls again if there may be more."""
        try:
            data = self._recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.broken()
            return
        if data:
            # A short read emptied the socket, and later data triggers a new edge; but an
            # end of file that was already announced does not.
            if not self.peer.write(data):
                self.paused = True
            if (len(data) == READ_BYTES or self.peer_shut) and not self.closed:
                if self.paused:
                    self.unread = True
                elif not self._queued:
                    self._queued = True
                    self.poller.again(self.read_again)
        else:
            peer = self.peer
            self.got_eof()
            if self.hung_up:  # a UNIX socket whose client has closed, not half-closed
                peer.let_go()

    def last_words(self) -> None:
        """Deliver what arrived before a reset; an end of file then does not count."""
        with contextlib.suppress(OSError):
            for _ in range(MOST_LAST_READS):
                data = self._recv(READ_BYTES)
                if not data:
                    return
                self.peer.write(data)

    def write(self, data: bytes) -> bool:
        if self.closed or self._eof_out:
            return True
        self.bytes_written += len(data)
        return self.put(data)

    def send_eof(self) -> None:
        """Half-close by FIN; when both directions are done, the close that follows sends it."""
        if not self._eof_in or self._out is not None:
            self.shut_write()
