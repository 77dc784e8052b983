"""A non-blocking stream socket on the poller: events in, bytes out, and how it ends.

The base of every socket end and carrier. Subclasses handle readable data;
plain ends are socket_end.py, TLS is tls.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import sys
import termios
from collections import deque
from itertools import islice

from isthmus.net.poller import ERR, HUP, IN, OUT, RDHUP, Poller
from isthmus.tunnel.budget import Account

READ_BYTES = 64 * 1024
#: A sink is full above this many bytes not taken by the kernel, and resumes when all are sent.
FULL_BYTES = 64 * 1024
#: Early bytes that are not charged: the price of a connection includes them (rules_slots.py).
FREE_BYTES = 2048
_MOST_PARTS = 64
_SMALL_BYTES = 4096
#: The most reads of bytes before a reset, enough for everything that the kernel holds.
MOST_LAST_READS = 64
# socket.socket.family makes an enum of the number each time, which costs 1.4 µs (timeit).
_family_of = socket.SocketType.family.__get__
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def _take_away(out: deque[bytes | memoryview | bytearray], sent: int) -> None:
    """Drop ``sent`` bytes at the front: the kernel has them."""
    while sent:
        part = out[0]
        if sent < len(part):
            # A copy if it may grow: a view would prevent that.
            out[0] = memoryview(bytes(part) if type(part) is bytearray else part)[sent:]
            break
        sent -= len(part)
        out.popleft()


class RawSocket:
    """Owns one connected (or connecting) socket and its unsent bytes."""

    __slots__ = (
        "_is_tcp",
        "_kept",
        "_out",
        "_queued",
        "_recv",
        "_send",
        "_shut",
        "closed",
        "fd",
        "hung_up",
        "out_bytes",
        "paused",
        "payer",
        "peer_shut",
        "poller",
        "sock",
        "unread",
    )

    #: Edges of OUT are requested only while data waits: otherwise a UNIX socket has one for
    #: every read of the peer, and TCP one for the connection and one for our FIN. A long-lived
    #: connection that is often full always requests them.
    always_out = False

    def __init__(self, sock: socket.socket, poller: Poller) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.poller = poller
        self.closed = False
        self.paused = False
        self.unread = False  # an edge occurred while paused, or the last read filled its buffer
        self.peer_shut = False  # the peer's FIN arrived: read until the end of file
        self.hung_up = False  # both directions are shut: on a UNIX socket, the peer has closed
        self.out_bytes = 0
        self.payer: Account | None = None  # None: another object counts what waits here
        self._kept = 0  # charged to the payer: bytes read before they could be delivered
        self._out: deque[bytes | memoryview | bytearray] | None = None
        self._shut = False
        self._queued = False  # a second read is scheduled, at most one per round
        self._recv = sock.recv
        self._send = sock.send
        self._is_tcp = _family_of(sock) != socket.AF_UNIX
        if self._is_tcp:
            # An out-of-band byte would end a read early, which would be mistaken for empty.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        events = IN | RDHUP | OUT if self.always_out else IN | RDHUP
        poller.register(self.fd, events, self.on_events)

    @property
    def kernel_bytes(self) -> int:
        """Bytes in the kernel that the peer's kernel has not taken (SIOCOUTQ, tcp(7)).

        On a UNIX socket including the kernel's overhead; 0 if unavailable.
        """
        if self.closed:
            return 0
        try:
            answer = fcntl.ioctl(self.fd, termios.TIOCOUTQ, b"\0\0\0\0")
        except OSError:
            return 0
        return int.from_bytes(answer, sys.byteorder, signed=True)

    # Implemented by subclasses.

    def readable(self) -> None:
        """Read and deliver; called after an edge while reading is not paused."""
        raise NotImplementedError

    def drained(self) -> None:
        """The kernel has taken all unsent data."""
        raise NotImplementedError

    def last_words(self) -> None:
        """Read and deliver what arrived before a reset, usually an early answer."""
        raise NotImplementedError

    def broken(self) -> None:
        """The connection was reset or failed; nothing more can be sent or read."""
        raise NotImplementedError

    # Events.

    def on_events(self, mask: int) -> None:
        """Handle events of the poller."""
        if self.closed:
            return
        if mask & ERR and self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._break()
            return
        if mask & OUT and self._out is not None:
            self._flush()
        if mask & (IN | RDHUP | HUP) and not self.closed:
            if mask & (RDHUP | HUP):
                self.peer_shut = True
                self.hung_up = bool(mask & HUP)
            if self.paused:
                self.unread = True
            else:
                self.readable()

    def read_again(self) -> None:
        """Read after an earlier edge."""
        self._queued = False
        if self.closed:
            return
        if self.paused:
            self.unread = True
        else:
            self.readable()

    def pause_reading(self) -> None:
        """Leave what arrives in the kernel."""
        self.paused = True

    def resume_reading(self) -> None:
        """Read again, from the next round on."""
        if self.paused:
            self.paused = False
            if self.unread:
                self.unread = False
                if not self._queued:
                    self._queued = True
                    self.poller.again(self.read_again)

    # Output.

    def put(self, data: bytes) -> bool:
        """Send what the kernel takes now and keep the rest; False when too much is kept."""
        if self._out is not None:
            self._keep(data)
            self.out_bytes += len(data)
            if self.payer is not None:
                self.payer.hold(len(data))
            return self.out_bytes <= FULL_BYTES
        try:
            sent = self._send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The poller reports the error too, but only in its next round.
            self.poller.again(self._break)
            self.out_bytes += len(data)  # accepted, but never sent
            return True
        if sent == len(data):
            return True
        self._wait_to_send(deque((memoryview(data)[sent:],)), len(data) - sent)
        return self.out_bytes <= FULL_BYTES

    def put_parts(self, parts: list[bytes]) -> bool:
        """The same for several pieces, without joining them first."""
        size = sum(map(len, parts))
        if self._out is not None:
            self._out.extend(parts)
            self.out_bytes += size
            if self.payer is not None:
                self.payer.hold(size)
            return self.out_bytes <= FULL_BYTES
        try:
            sent = self.sock.sendmsg(islice(parts, _MOST_PARTS))
        except BlockingIOError:
            sent = 0
        except OSError:
            self.poller.again(self._break)
            self.out_bytes += size
            return True
        if sent == size:
            return True
        out: deque[bytes | memoryview | bytearray] = deque(parts)
        _take_away(out, sent)
        self._wait_to_send(out, size - sent)
        return self.out_bytes <= FULL_BYTES

    def _wait_to_send(self, out: deque[bytes | memoryview | bytearray], size: int) -> None:
        self._out = out
        self.out_bytes = size
        if self.payer is not None:
            self.payer.hold(size)
        if not self.always_out:
            self.poller.modify(self.fd, IN | RDHUP | OUT)

    def charge_to(self, payer: Account | None) -> None:
        """Charge this account for what waits here, until it is closed; None: no account.

        Not if the other end is a stream, which counts what its sink has not taken.
        """
        before, size = self.payer, self._kept
        if before is payer:
            return
        if self._out is not None:
            size += self.out_bytes
        if payer is not None:
            payer.users += 1
            if size:
                payer.hold(size)
        else:
            self._kept = 0
        self.payer = payer
        if before is not None:
            if size:
                before.give_back(size)
            before.close()

    def keeps(self, size: int) -> None:
        """Charge ``size`` bytes that were read and cannot be delivered yet.

        A small amount is included in the price of a connection.
        """
        payer = self.payer
        if payer is None:
            return
        before, self._kept = self._kept, size if size > FREE_BYTES else 0
        if self._kept > before:
            payer.hold(self._kept - before)
        elif self._kept < before:
            payer.give_back(before - self._kept)

    def _keep(self, data: bytes) -> None:
        """Queue bytes after unsent ones; small pieces are joined, to save 100 bytes each."""
        assert self._out is not None
        if len(data) >= _SMALL_BYTES:
            self._out.append(data)
            return
        tail = self._out[-1]
        if type(tail) is bytearray and len(tail) < READ_BYTES:
            tail += data
        else:
            self._out.append(bytearray(data))

    def _break(self) -> None:
        """The connection was reset or failed: deliver what arrived before, then report it."""
        if not self.closed:
            if not self.paused:
                self.last_words()
            self.broken()

    def _flush(self) -> None:
        out = self._out
        while out:
            try:
                sent = self.sock.sendmsg(islice(out, _MOST_PARTS) if len(out) > 1 else out)
            except BlockingIOError:
                return
            except OSError:
                self._break()
                return
            self.out_bytes -= sent
            _take_away(out, sent)
            if self.payer is not None:
                self.payer.give_back(sent)
        self._out = None
        if not self.always_out:
            self.poller.modify(self.fd, IN | RDHUP)
        if self._shut:
            self._shut_write()
        self.drained()

    def shut_write(self) -> None:
        """Send FIN after all unsent data."""
        if not self._shut:
            self._shut = True
            if self._out is None:
                self._shut_write()

    def _shut_write(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return  # already reset: the poller reports it

    # Ending.

    def close(self) -> None:
        """Close; the kernel still delivers what it has taken."""
        if not self.closed:
            self.closed = True
            if self.payer is not None:
                self.charge_to(None)
            self._out = None
            self.poller.close(self.sock)

    def reset(self) -> None:
        """Close so that a TCP peer sees a reset. A UNIX socket just closes."""
        if not self.closed:
            if self._is_tcp:
                # Only this causes an RST: a transport's abort() and close() send FIN, which reads
                # as success.
                with contextlib.suppress(OSError):
                    self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self.close()
