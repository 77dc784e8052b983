"""The user of the process at the other end of a loopback connection, from the kernel's tables.

Linux lists every TCP socket with its user in /proc/net/tcp and tcp6. On loopback both ends of a
connection are sockets of this machine, so the client's is there as well.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_ESTABLISHED = "01"
_MAPPED = "0000000000000000FFFF0000"
#: The kernel's number for users without a number in this user namespace.
_OVERFLOW_UID = 65534
#: The other processes of this program, by number: its workers.
OTHERS: set[int] = set()
Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The user of a socket, and its inode."""

    uid: int
    inode: int

    @property
    def user(self) -> str:
        """The user's name, or its number."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"


def owner_of(client: Address, ours: Address, proc: Path = Path("/proc")) -> Owner | None:
    """The user of the socket at ``client``, connected to ``ours``; None if unknown.

    Reads kernel files that can be long: call it in a thread.
    """
    v4 = ":" not in client[0]
    for name in ("tcp", "tcp6") if v4 else ("tcp6",):
        mapped = v4 and name == "tcp6"
        try:
            with open(proc / "self" / "net" / name, encoding="ascii") as table:
                found = find(table, _hex(client, mapped=mapped), _hex(ours, mapped=mapped))
        except OSError:
            continue
        if found is not None:
            return None if found.uid == _OVERFLOW_UID and not _sees_every_user(proc) else found
    return None


def find(table: Iterable[str], local: str, remote: str) -> Owner | None:
    """Find a row of /proc/net/tcp by its two addresses in that file's notation.

    A socket closed by its process is listed under user 0, no matter which user had it: only sockets
    that are open on their side and have an inode count.
    """
    for row in table:
        columns = row.split()
        if len(columns) < 10 or columns[1] != local or columns[2] != remote:
            continue
        uid, inode = columns[7], columns[9]
        if columns[3] != _ESTABLISHED or not (uid.isdigit() and inode.isdigit()):
            return None
        return Owner(uid=int(uid), inode=int(inode)) if int(inode) else None
    return None


def descriptors_of(inode: int, proc: Path = Path("/proc")) -> Iterator[int]:
    """The descriptors of this process for the socket; call it in a thread."""
    wanted = f"socket:[{inode}]"
    with os.scandir(proc / "self" / "fd") as entries:
        for entry in entries:
            try:
                if os.readlink(entry.path) == wanted:
                    yield int(entry.name)
            except OSError:
                continue  # closed meanwhile


def is_of_others(inode: int, proc: Path = Path("/proc")) -> bool:
    """Whether another process of this program has the socket; call it in a thread."""
    wanted = f"socket:[{inode}]"
    for pid in tuple(OTHERS):
        try:
            with os.scandir(proc / str(pid) / "fd") as entries:
                if any(_target(entry.path) == wanted for entry in entries):
                    return True
        except FileNotFoundError:
            continue  # ended meanwhile
        except OSError:
            return True  # unknown
    return False


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _hex(address: Address, *, mapped: bool) -> str:
    """Write an address in the tables' notation: words in the machine's byte order."""
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    packed = socket.inet_pton(family, host.partition("%")[0])
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    text = "".join(f"{word:08X}" for word in words)
    return f"{_MAPPED if mapped else ''}{text}:{port:04X}"


def _sees_every_user(proc: Path) -> bool:
    """Whether this process is in a user namespace in which every user has a number."""
    try:
        rows = (proc / "self" / "uid_map").read_text().split()
    except OSError:
        return False
    return rows == ["0", "0", "4294967295"]
