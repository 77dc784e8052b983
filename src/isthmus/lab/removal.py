"""Taking a lab away by its token alone, whatever state it is in and whatever became of its maker.

Everything of a lab is found by name: processes by a mark in their environment, by the namespace
they are in or by the session they were started in, namespaces and hosts files by their prefix, and
files by their directory. Nothing of it is ever in the root namespace, so links and rules go with
the namespaces.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from isthmus.lab import namespaces, state
from isthmus.lab.kubernetes import cgroups
from isthmus.lab.plan import Names
from isthmus.lab.state import HOME, MARK, PIDS, STATE, Lab

NETNS = Path("/run/netns")
ETC = Path("/etc/netns")
_PROC = Path("/proc")
_GONE_WITHIN_S = 10.0
_LOOK_AGAIN_S = 0.001
#: A process that forks may be behind a look at /proc, and its child before it.
_LOOKS_PER_ROUND = 10
_EMPTY_ROUNDS = 3

#: The states of a process that only waits to be waited for.
_DEAD = ("Z", "X")

Space = tuple[int, int]


def remove(token: str) -> None:
    """Remove all of a lab; without any of it there, do nothing.

    Raises:
        TimeoutError: a process of it does not die.
    """
    lab, prefix = Lab(token), Names(token).prefix
    _end_processes(lab, _spaces(prefix))
    # What is in containers has neither the mark nor a namespace of the lab.
    cgroups.remove(token, _ourselves())
    kept = lab.directory / STATE
    if kept.is_symlink() and (folder := kept.resolve()).name == token:
        shutil.rmtree(folder, ignore_errors=True)
    for name in _spaces(prefix):
        namespaces.remove(name)
    for directory in (*_named(ETC, prefix), lab.directory, lab.unborn):
        shutil.rmtree(directory, ignore_errors=True)
    for empty in (ETC, HOME, HOME.parent):
        with contextlib.suppress(OSError):
            empty.rmdir()  # only if nothing else is in it


def sweep() -> None:
    """Remove what crashes left."""
    for lab in state.unborn():
        remove(lab.token)
    for lab in state.labs():
        if lab.left_over:
            with lab.owned() as ours:
                if ours and not lab.kept:
                    remove(lab.token)


def _named(directory: Path, prefix: str) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return [path for path in directory.iterdir() if path.name.startswith(prefix)]
    return []


def _spaces(prefix: str) -> list[str]:
    return [path.name for path in _named(NETNS, prefix)]


def space_of(path: Path) -> Space:
    """What a namespace is known by, from any file that stands for it.

    Raises:
        OSError: it is gone.
    """
    found = path.stat()
    return found.st_dev, found.st_ino


@dataclass(frozen=True, slots=True)
class _Wanted:
    """How a process of a lab is told from others."""

    mark: bytes
    spaces: Collection[Space]
    sessions: Collection[int]

    def is_one(self, entry: Path) -> bool:
        # A process may end while it is looked at, and a dead one that nobody waited for has none.
        with contextlib.suppress(OSError):
            if self.mark in (entry / "environ").read_bytes().split(b"\0"):
                return True
            if space_of(entry / "ns/net") in self.spaces:
                return True
        with contextlib.suppress(OSError, ValueError, IndexError):
            found = _stat(entry)
            return found[0] not in _DEAD and int(found[3]) in self.sessions
        return False


def _end_processes(lab: Lab, spaces: Collection[str]) -> None:
    found = set()
    for name in spaces:
        with contextlib.suppress(OSError):
            found.add(space_of(NETNS / name))
    wanted = _Wanted(f"{MARK}={lab.token}".encode(), found, _sessions(lab))
    spared = _ourselves()
    give_up_at = time.monotonic() + _GONE_WITHIN_S
    empty = 0
    while empty < _EMPTY_ROUNDS:
        _end_groups(lab, spared)
        ended = _round(wanted, spared)
        empty = 0 if ended else empty + 1
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"lab {lab.token}: processes {ended} do not end")


def _end_groups(lab: Lab, spared: Collection[int]) -> None:
    """Kill each program's process group: at once in the kernel, however fast its members fork.

    On a busy machine a process that forks every few milliseconds is another one whenever it is
    looked at, and no look catches it.
    """
    for session in _sessions(lab).difference(spared):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session, signal.SIGKILL)


def _round(wanted: _Wanted, spared: Collection[int]) -> list[int]:
    """Look at every process, then a few times at those that are new: quick, to catch the quick."""
    known = set(spared)
    ended = []
    for _ in range(_LOOKS_PER_ROUND):
        fresh = [pid for pid in _pids() if pid not in known]
        known.update(fresh)
        ended += [pid for pid in fresh if _end(pid, wanted)]
        time.sleep(_LOOK_AGAIN_S)
    return ended


def _pids() -> list[int]:
    return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]


def _end(pid: int, wanted: _Wanted) -> bool:
    """Kill a process if it is the lab's; whether it was."""
    entry = _PROC / str(pid)
    if not wanted.is_one(entry):
        return False
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            # The number may have gone to somebody else since; the handle cannot.
            if wanted.is_one(entry):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
    return True


def _sessions(lab: Lab) -> set[int]:
    """The sessions that the lab's programs were started in.

    A session's number is taken as long as anybody is in it. If its leader is another process than
    the one that was started, the number has a new owner.
    """
    found = set()
    for path in _named(lab.directory / PIDS, ""):
        with contextlib.suppress(OSError, ValueError):
            pid, began = path.read_text().split()
            if began_at(int(pid)) in (began, ""):
                found.add(int(pid))
    return found


def began_at(pid: int) -> str:
    """When a process began, as the kernel counts; empty when there is none."""
    with contextlib.suppress(OSError, IndexError):
        return _stat(_PROC / str(pid))[19]
    return ""


def _stat(entry: Path) -> list[str]:
    """The fields of stat(5) from the third on: the name, in brackets, may have anything in it."""
    return (entry / "stat").read_text().rpartition(")")[2].split()


def _ourselves() -> set[int]:
    """This process and its ancestors: ``lab down`` may be typed into a shell of the lab."""
    spared, pid = set(), os.getpid()
    while pid > 1 and pid not in spared:
        spared.add(pid)
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int(_stat(_PROC / str(pid))[1])
    return spared
