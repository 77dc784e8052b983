"""Checks that ports are free or the program's own, and that UNIX sockets can be created."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from isthmus.frame.finding import Asked, CheckId, Finding
from isthmus.frame.layout import ListeningPort, SocketFile
from isthmus.frame.patient import Patient
from isthmus.tools.doctor.layout import layout_of, listeners

# struct sockaddr_un has 108 bytes for the path, one of them for the final NUL (unix(7)).
_MAX_UDS_BYTES = 107


def see_ports(patient: Patient) -> Iterator[Finding]:
    """Check every port that the settings open."""
    for listener in listeners(patient.settings):
        where = f"{listener.host or '*'}:{listener.port}"
        about = f"{listener.flag} {where}"
        running = patient.running
        if not listener.port:
            asked = Asked(CheckId.PORTS, about, "checked the number")
            yield asked.ok("0: the program takes any that is free")
        elif running is not None:
            asked = Asked(CheckId.PORTS, about, f"looked who listens on port {listener.port}")
            held = holds(running.pid, listener.port) if running.pid else None
            yield judge_held(asked, held, holders(listener.port), running.pid)
        else:
            asked = Asked(CheckId.PORTS, about, "tried to listen there")
            yield judge_free(asked, listener, try_port(listener), patient.program)


def try_port(listener: ListeningPort) -> int:
    """Listen for a moment as the programs do; returns the errno, or 0."""
    host = listener.host
    family = socket.AF_INET6 if ":" in host or not host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                plain.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, bool(host))
            plain.bind((host or "::", listener.port))
            plain.listen(1)
    except socket.gaierror:
        return errno.EADDRNOTAVAIL
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def judge_free(asked: Asked, listener: ListeningPort, number: int, program: str) -> Finding:
    """Can the program open the port?"""
    match number:
        case 0:
            return asked.ok("it is free")
        case errno.EADDRINUSE:
            return _judge_taken(asked, listener, holders(listener.port), program)
        case errno.EACCES | errno.EPERM:
            return asked.fail(
                "ports below 1024 need a privilege that we do not have",
                f"give the program CAP_NET_BIND_SERVICE, or choose another {listener.flag}",
            )
        case errno.EADDRNOTAVAIL if listener.brought:
            return asked.ok(f"no interface has {listener.host} yet: the program puts it there")
        case errno.EADDRNOTAVAIL:
            return asked.fail(
                f"no interface of this machine has {listener.host}",
                "give an address of this machine, or leave it out for all",
            )
        case _:
            return asked.fail(os.strerror(number).lower(), f"choose another {listener.flag}")


def _judge_taken(
    asked: Asked, listener: ListeningPort, who: list[PortHolder], program: str
) -> Finding:
    named = ", ".join(map(str, who)) or f"a process that is not visible ({_why_unseen()})"
    if any(one.is_ours and program in one.words for one in who):
        return asked.warn(
            f"{named} has it: it seems to run already",
            "run isthmus doctor without a program to examine the one that runs",
        )
    return asked.fail(f"{named} has it", f"stop it, or choose another {listener.flag}")


def _why_unseen() -> str:
    # Root sees every process but those of a namespace above its own.
    return "run as root" if os.geteuid() else "run outside of this container"


def judge_held(asked: Asked, held: bool | None, who: list[PortHolder], pid: int) -> Finding:
    """Does the program listen there?"""
    if held:
        return asked.ok(f"process {pid}, the program, does")
    if not who:
        if held is None:
            return asked.skip(f"its process is not visible; {_why_unseen()}")
        return asked.fail("no process does", "see the program's log for why it closed the port")
    named = ", ".join(map(str, who))
    if held is None:
        return asked.ok(f"{named} does")
    return asked.fail(f"{named} does, not the program", "stop it, and restart the program")


def see_sockets(patient: Patient) -> Iterator[Finding]:
    """Check every UNIX socket that the settings name."""
    for file in layout_of(patient.settings).socket_files():
        asked = Asked(CheckId.SOCKETS, f"{file.flag} {file.path}", "checked the path")
        yield judge_socket(asked, file, running=patient.running is not None)


def judge_socket(asked: Asked, file: SocketFile, *, running: bool) -> Finding:
    """Can the socket exist, does it, and who can access it?"""
    path = Path(file.path)
    if len(os.fsencode(file.path)) > _MAX_UDS_BYTES:
        return asked.fail(
            f"the path has {len(os.fsencode(file.path))} bytes; the kernel takes {_MAX_UDS_BYTES}",
            "choose a shorter path",
        )
    try:
        above = path.parent.stat()
        there = path.lstat() if os.path.lexists(path) else None
    except FileNotFoundError:
        return asked.fail(
            f"the directory {path.parent} does not exist", f"run: mkdir -m 750 {path.parent}"
        )
    except OSError as error:
        return asked.fail((error.strerror or str(error)).lower(), f"see {path.parent}")
    if there is not None and not stat.S_ISSOCK(there.st_mode):
        return asked.fail("the file is not a socket", f"remove it, or change {file.flag}")
    if there is None and (running or not file.ours):
        return asked.fail(
            "there is no socket",
            "check that the server runs, and that both have the same directory",
        )
    if file.ours and above.st_mode & 0o002 and not above.st_mode & stat.S_ISVTX:
        return asked.fail(
            f"every user may write to {path.parent} (mode {above.st_mode & 0o7777:04o}), and so"
            " put another socket there",
            f"run: chmod o-w {path.parent}",
        )
    if not os.access(path.parent, os.W_OK | os.X_OK if file.ours and not running else os.X_OK):
        return asked.fail(
            f"user {os.geteuid()} may not use {path.parent}", "change its owner or group"
        )
    return asked.ok("it is there" if there is not None else "it can be made there")


# The thread's own: /proc/net is that of the process, which may be in another namespace.
_NET = Path("/proc/thread-self/net")
_LISTEN = "0A"
_SOCKET = re.compile(r"socket:\[([0-9]+)\]")
_MOST_WORD_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PortHolder:
    """A process that listens. ``words`` is its command without parts that may be secret."""

    pid: int
    name: str
    words: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} ({self.words or self.name})"

    @property
    def is_ours(self) -> bool:
        """Whether it looks like a program of isthmus."""
        return "isthmus" in self.words


def listening(port: int) -> dict[str, str]:
    """The sockets that listen on a port: their inodes, and the addresses as /proc writes them."""
    return {words[9]: words[1].rpartition(":")[0] for words in _rows(port)}


def users_of(port: int) -> set[int]:
    """The user IDs that listen on a port; every user may read them."""
    return {int(words[7]) for words in _rows(port)}


def _rows(port: int) -> Iterator[list[str]]:
    for name in ("tcp", "tcp6"):
        try:
            lines = (_NET / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            if words[3] == _LISTEN and int(words[1].rpartition(":")[2], 16) == port:
                yield words


def holders(port: int) -> list[PortHolder]:
    """The processes that listen on a port; none if access is denied."""
    inodes = set(listening(port))
    if not inodes:
        return []
    return [holder_of(pid) for pid in _pids() if inodes & (_inodes(pid) or set())]


def holds(pid: int, port: int) -> bool | None:
    """Whether a process listens on a port; None if access is denied."""
    inodes = set(listening(port))
    if not inodes:
        return False
    held = _inodes(pid)
    return bool(inodes & held) if held is not None else None


def _pids() -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            yield int(name)


def _inodes(pid: int) -> set[str] | None:
    """The sockets of a process; None if it is gone, or another user's."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    found = set()
    for name in names:
        with contextlib.suppress(OSError):  # closed meanwhile
            match = _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{name}"))
            if match:
                found.add(match[1])
    return found


def holder_of(pid: int) -> PortHolder:
    """A process from /proc."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        args = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return PortHolder(pid=pid, name="gone")
    # The program, what it runs and its first word; flags may contain secrets.
    plain = [os.path.basename(word) for word in args[:4] if word and not word.startswith("-")]
    return PortHolder(pid=pid, name=name, words=" ".join(plain)[:_MOST_WORD_CHARS])
