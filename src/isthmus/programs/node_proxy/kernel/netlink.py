"""A netlink socket for requests to the kernel, and encoding of message attributes.

Used for long tables, which pyroute2 reads six to ten times as slowly (figures in conntrack.py).
Callers build the messages. Blocks.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence

from isthmus.programs.node_proxy.kernel.backend import ApplyError

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
    """One socket, in the network namespace of the thread that opens it."""

    def __init__(self, protocol: int) -> None:
        """Open the socket.

        Raises:
            OSError: the kernel does not support the protocol.
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
        """Send a request and yield the bodies of all answers.

        Raises:
            OSError: the kernel refused, with its error number; InterruptedError if the table
                changed while it was read, so that the result may be inconsistent.
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
                # The kernel flags the first message after a change, not the last of the answer.
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
    """Decode attributes by kind; the last of a kind wins."""
    found = {}
    while len(data) >= _ATTRIBUTE.size:
        size, kind = _ATTRIBUTE.unpack_from(data)
        found[kind & _TYPE] = data[_ATTRIBUTE.size : size]
        data = data[(max(size, _ATTRIBUTE.size) + 3) & ~3 :]
    return found


_SUBSYSTEM = 7 << 8  # NFNL_SUBSYS_ACCT
_NEW, _GET = _SUBSYSTEM | 0, _SUBSYSTEM | 1
_EXCLUSIVE, _CREATE = 0x200, 0x400
_NAME, _PACKETS = 1, 2
_FAMILY = b"\0\0\0\0"  # nfgenmsg: any family, version 0


def ensure_counters(names: Sequence[str]) -> None:
    """Create missing counters.

    Raises:
        ApplyError: the kernel has no nfacct counters, or access is denied.
    """
    try:
        with Netlink(NETFILTER) as kernel:
            for name in names:
                body = _FAMILY + attribute(_NAME, name.encode() + b"\0")
                try:
                    list(kernel.ask(_NEW, ACK | _CREATE | _EXCLUSIVE, body))
                except FileExistsError:
                    continue
                except OSError as error:
                    why = error.strerror or str(error)
                    raise ApplyError(f"cannot create nfacct counter {name}: {why}") from error
    except OSError as error:
        raise ApplyError(f"cannot create nfacct counters: {error.strerror}") from error


def counters_work(names: Sequence[str]) -> bool:
    """Whether the kernel has nfacct counters; if so, the named ones exist afterwards."""
    try:
        ensure_counters(names)
    except ApplyError:
        return False
    return True


def read_counters(names: Sequence[str]) -> dict[str, int]:
    """Packet counts by counter, without missing counters.

    Raises:
        ApplyError: the kernel has no nfacct counters, or access is denied.
    """
    found: dict[str, int] = {}
    try:
        with Netlink(NETFILTER) as kernel:
            for message in kernel.ask(_GET, DUMP, _FAMILY):
                given = attributes(message[len(_FAMILY) :])
                name = bytes(given.get(_NAME, b"")).rstrip(b"\0").decode(errors="replace")
                packets = given.get(_PACKETS, b"")
                if name in names and len(packets) == 8:
                    found[name] = int.from_bytes(packets, "big")
    except OSError as error:
        raise ApplyError(f"cannot read nfacct counters: {error.strerror or error}") from error
    return found
