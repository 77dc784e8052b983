"""Passes descriptors between processes, one message per connection (unix(7), SCM_RIGHTS).

What a peer has already sent stays in the kernel and moves with the connection. The message is the
flag of the listener that accepted it. The queue is the kernel's, a few hundred messages; when it is
full, the giver waits for ``writable``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import struct
from collections.abc import Callable

from isthmus.logs import OncePer
from isthmus.net.descriptors import for_a_peer
from isthmus.net.poller import IN, OUT, Poller

#: socket(7); Python has no name for it.
_CLOEXEC = 0x40000000
_MOST_FLAG = 64
_INT = struct.Struct("i")
_ROOM = socket.CMSG_SPACE(_INT.size)
_TAKEN_PER_EVENT = 64
_QUIET_S = 30.0
#: The errors of a queue full of messages or of descriptors in flight.
_FULL = frozenset({errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS})
_log = logging.getLogger("isthmus.workers")


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Make the two ends of a queue: the giver and the taker."""
    kind = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
    giver, taker = socket.socketpair(socket.AF_UNIX, kind)
    return giver, taker


class Giver:
    """The parent's end."""

    def __init__(self, sock: socket.socket, poller: Poller, writable: Callable[[], None]) -> None:
        self._sock = sock
        self._poller = poller
        self._writable = writable
        #: How many connections were given.
        self.given = 0
        poller.register(sock.fileno(), OUT, self._on_events)

    def _on_events(self, mask: int) -> None:
        self._writable()

    def give(self, flag: str, sock: socket.socket) -> bool:
        """Pass a connection; False if the queue is full or closed. The caller keeps its descriptor.

        Raises:
            OSError: the connection itself is broken.
        """
        try:
            socket.send_fds(self._sock, [flag.encode()], [sock.fileno()])
        except OSError as exc:
            if exc.errno in _FULL or isinstance(exc, ConnectionError):
                return False
            raise
        self.given += 1
        return True

    def close(self) -> None:
        """Stop giving."""
        self._poller.close(self._sock)


class Taker:
    """The worker's end; ``take`` gets each connection and the flag of its listener."""

    def __init__(
        self, sock: socket.socket, poller: Poller, take: Callable[[str, socket.socket], None]
    ) -> None:
        self._sock = sock
        self._poller = poller
        self._take = take
        self._once = OncePer()
        #: How many came, including those lost for lack of a descriptor.
        self.taken = 0
        poller.register(sock.fileno(), IN, self._on_events)

    def _on_events(self, mask: int) -> None:
        self._some()

    def _some(self) -> None:
        for _ in range(_TAKEN_PER_EVENT):
            if not self._one():
                return
        self._poller.again(self._some)

    def take_all(self) -> None:
        """Take everything in the queue."""
        while self._one():
            pass

    def _one(self) -> bool:
        try:
            # Not recv_fds(): it takes flags and ignores them (CPython 3.11).
            flag, given, _, _ = self._sock.recvmsg(_MOST_FLAG, _ROOM, _CLOEXEC)
        except OSError:
            return False  # nothing more now, or never
        if not flag:
            return False  # the parent process has exited; channel.py tells
        self.taken += 1
        if not given:
            self._lost()
            return True
        sock = socket.socket(fileno=_INT.unpack(given[0][2])[0])
        try:
            for_a_peer(sock)
            sock.setblocking(False)
            self._take(flag.decode(), sock)
        except OSError as exc:
            if exc.errno == errno.EMFILE:
                self._lost()
            with contextlib.suppress(OSError):
                sock.close()  # its peer has left, or there are too few descriptors
        except Exception:
            self._poller.again(self._some)  # the edge for waiting connections has passed already
            raise
        return True

    def _lost(self) -> None:
        self._once.log(
            "lost", _QUIET_S, _log, logging.WARNING, "connection lost: no free file descriptor"
        )

    def close(self) -> None:
        """Stop taking."""
        self._poller.close(self._sock)
