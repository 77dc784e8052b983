"""A netlink socket for asking the kernel, and the attributes that its messages are made of.

For long tables, which pyroute2 reads six to ten times as slowly (conntrack.py has the numbers).
Which messages there are is for the callers. Blocks.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

# linux/netlink.h
NETFILTER = 12
REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
NESTED = 0x8000
_NOOP, _ERROR, _DONE = 1, 2, 3
_INTERRUPTED = 0x10
_TYPE = 0x3FFF
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_READ_BYTES = 1 << 20
_RECEIVE_BYTES = 8 << 20
_TIMEOUT_S = 10.0


class Netlink:
    """One socket, of the namespace of the thread that makes it."""

    def __init__(self, protocol: int) -> None:
        """Open it.

        Raises:
            OSError: the kernel has no such protocol.
        """
        self._sequence = 0
        self._sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        self._sock.settimeout(_TIMEOUT_S)

    def __enter__(self) -> Netlink:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def ask(self, kind: int, flags: int, body: bytes) -> Iterator[memoryview]:
        """Send a message and give the bodies of all answers, up to the last.

        Raises:
            OSError: the kernel says no, by its number; InterruptedError if what was read changed
                meanwhile, so that it may not fit together.
        """
        self._sequence += 1
        size = _HEADER.size + len(body)
        self._sock.send(_HEADER.pack(size, kind, flags | REQUEST, self._sequence, 0) + body)
        marks = 0
        while True:
            read = memoryview(self._sock.recv(_READ_BYTES))
            while read:
                size, kind, flags, sequence, _ = _HEADER.unpack_from(read)
                message, read = read[_HEADER.size : size], read[(size + 3) & ~3 :]
                if sequence != self._sequence or kind == _NOOP:
                    continue
                # The kernel marks the first message after a change, not the last of the answer.
                marks |= flags
                if kind not in (_DONE, _ERROR):
                    yield message
                    continue
                (code,) = struct.unpack_from("=i", message)
                if code:
                    raise OSError(-code, os.strerror(-code))
                if marks & _INTERRUPTED:
                    raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
                return


def attribute(kind: int, value: bytes) -> bytes:
    padding = -len(value) % 4
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(padding)


def attributes(data: memoryview) -> dict[int, memoryview]:
    """Read attributes by their kind; the last of a kind counts."""
    found = {}
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        found[kind & _TYPE] = data[_ATTRIBUTE.size : size]
        data = data[(max(size, _ATTRIBUTE.size) + 3) & ~3 :]
    return found
