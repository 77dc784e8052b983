"""Counters of nfnetlink_acct, to which rules add packets (``-m nfacct``): made and read.

They belong to a network namespace: that of the thread that asks. Messages are those of
linux/netfilter/nfnetlink_acct.h; pyroute2 does not have them.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Sequence

from isthmus.programs.node_proxy.kernel.backend import ApplyError

_NETLINK_NETFILTER = 12
_SUBSYSTEM = 7 << 8  # NFNL_SUBSYS_ACCT
_NEW, _GET = 0, 1
_REQUEST, _ACK, _DUMP, _EXCLUSIVE, _CREATE = 0x1, 0x4, 0x300, 0x200, 0x400
_ERROR, _DONE = 2, 3
_NAME, _PACKETS = 1, 2
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_FAMILY = b"\0\0\0\0"  # nfgenmsg: any family, version 0
_TIMEOUT_S = 5.0
_MAX_READ = 1 << 16


def ensure_counters(names: Sequence[str]) -> None:
    """Make the counters that are not there.

    Raises:
        ApplyError: the kernel has no such counters, or does not let us.
    """
    for name in names:
        attribute = _attribute(_NAME, name.encode() + b"\0")
        code = _NEW, _REQUEST | _ACK | _CREATE | _EXCLUSIVE
        for error, _ in _ask(*code, attribute):
            if error not in (0, errno.EEXIST):
                raise ApplyError(f"cannot make the counter {name}: {os.strerror(error)}")


def counters_work(names: Sequence[str]) -> bool:
    """Whether the kernel has counters for us; the named ones are there then."""
    try:
        ensure_counters(names)
    except ApplyError:
        return False
    return True


def read_counters(names: Sequence[str]) -> dict[str, int]:
    """The packets that were counted, by counter; without those that are not there.

    Raises:
        ApplyError: the kernel has no such counters, or does not let us.
    """
    found: dict[str, int] = {}
    for error, attributes in _ask(_GET, _REQUEST | _DUMP):
        if error:
            raise ApplyError(f"cannot read counters: {os.strerror(error)}")
        name = attributes.get(_NAME, b"").rstrip(b"\0").decode(errors="replace")
        if name in names and len(attributes.get(_PACKETS, b"")) == 8:
            found[name] = int.from_bytes(attributes[_PACKETS], "big")
    return found


def _ask(command: int, flags: int, payload: bytes = b"") -> Iterator[tuple[int, dict[int, bytes]]]:
    """Send a request; yield an error number, 0 for none, and attributes for each answer."""
    size = _HEADER.size + len(_FAMILY) + len(payload)
    request = _HEADER.pack(size, _SUBSYSTEM | command, flags, 1, 0) + _FAMILY + payload
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as asking:
            asking.settimeout(_TIMEOUT_S)
            asking.bind((0, 0))
            asking.send(request)
            while True:
                for kind, body in _messages(asking.recv(_MAX_READ)):
                    if kind == _DONE:
                        return
                    if kind == _ERROR:
                        yield -struct.unpack_from("=i", body)[0], {}
                        return
                    yield 0, dict(_attributes(body[len(_FAMILY) :]))
    except OSError as error:
        raise ApplyError(f"cannot ask the kernel for counters: {error.strerror}") from error


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _HEADER.size:
        size, kind, *_ = _HEADER.unpack_from(data)
        if size < _HEADER.size:
            return
        yield kind, data[_HEADER.size : size]
        data = data[(size + 3) & ~3 :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        if size < 4:
            return
        yield kind & 0x3FFF, data[4:size]
        data = data[(size + 3) & ~3 :]


def _attribute(kind: int, value: bytes) -> bytes:
    size = 4 + len(value)
    return struct.pack("=HH", size, kind) + value + b"\0" * (-size % 4)
