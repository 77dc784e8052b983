"""Who has a TCP port of this machine: by the sockets of /proc, as far as we may look."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A thread's own: /proc/net is that of the process, which may be in another namespace.
_NET = Path("/proc/thread-self/net")
_LISTEN = "0A"
_SOCKET = re.compile(r"socket:\[([0-9]+)\]")
_MOST_WORD_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A process that listens. ``words`` is how it was started, without what may be secret."""

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
    """The users who listen on a port, by number; everybody may see that."""
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


def holders(port: int) -> list[Holder]:
    """The processes that listen on a port; none where that may not be looked at."""
    inodes = set(listening(port))
    if not inodes:
        return []
    return [holder_of(pid) for pid in _pids() if inodes & (_inodes(pid) or set())]


def holds(pid: int, port: int) -> bool | None:
    """Whether a process listens on a port; None where that may not be looked at."""
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


def holder_of(pid: int) -> Holder:
    """What /proc tells of a process."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        args = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return Holder(pid=pid, name="gone")
    # The program, what it runs and its first word: flags may have secrets in them.
    plain = [os.path.basename(word) for word in args[:4] if word and not word.startswith("-")]
    return Holder(pid=pid, name=name, words=" ".join(plain)[:_MOST_WORD_CHARS])
