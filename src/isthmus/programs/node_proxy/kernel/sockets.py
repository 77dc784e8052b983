"""Finds the owners of TCP sockets on this machine by sock_diag (sock_diag(7)).

Each query is for one socket, and is fast however many sockets there are.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from isthmus.programs.node_proxy.kernel.netlink import ACK, Netlink
from isthmus.wire.proxy_protocol import IpPort

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h
_SOCK_DIAG = 4
_BY_FAMILY = 20
_EVERY_STATE = 0xFFFFFFFF
_NO_COOKIE = b"\xff" * 8
_REQUEST = struct.Struct("=BBBBI")
_ID = struct.Struct("!HH16s16s")  # ports and addresses; an interface and the cookie follow
#: What precedes user and inode in an answer: states, the socket's id, a timer and two queues.
_OWNER = struct.Struct("=II")
_OWNER_AT = 4 + 48 + 12


@dataclass(frozen=True, slots=True)
class SocketOwner:
    """The user of a socket, and the inode that identifies it among descriptors."""

    uid: int
    inode: int


def client_owner(client: IpPort, ours: IpPort) -> SocketOwner | None:
    """The owner of the other end of a connection on this machine; None if unknown."""
    return _owner(client, ours)


def listener_owner(at: IpPort) -> SocketOwner | None:
    """The owner of the listener for an address and port; None if there is none."""
    return _owner(at, None)


def _owner(local: IpPort, remote: IpPort | None) -> SocketOwner | None:
    family = socket.AF_INET6 if local.ip.version == 6 else socket.AF_INET
    there = remote.ip.packed if remote is not None else b""
    body = (
        _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _EVERY_STATE)
        + _ID.pack(local.port, remote.port if remote is not None else 0, local.ip.packed, there)
        + struct.pack("=I", 0)
        + _NO_COOKIE
    )
    try:
        with Netlink(_SOCK_DIAG) as kernel:
            for answer in kernel.ask(_BY_FAMILY, ACK, body):
                return SocketOwner(*_OWNER.unpack_from(answer, _OWNER_AT))
    except OSError:  # there is no such socket, or the kernel has no sock_diag
        pass
    return None


def processes_of(inodes: Collection[int], proc: Path = Path("/proc")) -> dict[int, list[str]]:
    """The processes that have these sockets, as ``name (pid)``, as far as they are visible.

    Reads every descriptor of every process: call it in a thread.
    """
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, list[str]] = {}
    for directory in proc.iterdir():
        if directory.name.isdigit():
            for inode in {wanted[each] for each in _targets(directory / "fd") if each in wanted}:
                name = f"{_read(directory / 'comm') or '?'} ({directory.name})"
                found.setdefault(inode, []).append(name)
    return found


def _targets(descriptors: Path) -> Iterator[str]:
    try:
        with os.scandir(descriptors) as entries:
            for entry in entries:
                yield _target(entry.path)
    except OSError:  # the process has ended, or belongs to another user
        return


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
