"""Removes a lab by its token alone, whatever state it is in and whatever happened to its maker.

Everything of a lab is found by name: processes by a mark in their environment, by their namespace
or by the session in which they were started; namespaces and hosts files by their prefix; files by
their directory. Nothing is ever in the root namespace, so links and rules disappear with the
namespaces.
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
#: A process that forks may be missed by one look at /proc, as may its child.
_LOOKS_PER_ROUND = 10
_EMPTY_ROUNDS = 3

#: The states of a process that has ended and waits for its parent.
_DEAD = ("Z", "X")

Space = tuple[int, int]


def remove(token: str) -> None:
    """Remove everything of a lab; does nothing if there is nothing.

    Raises:
        TimeoutError: a process does not die.
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
            empty.rmdir()  # only if it is empty


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
    """Identifies a namespace, given any file that refers to it.

    Raises:
        OSError: the namespace is gone.
    """
    found = path.stat()
    return found.st_dev, found.st_ino


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Recognises the processes of a lab."""

    mark: bytes
    spaces: Collection[Space]
    sessions: Collection[int]

    def is_one(self, entry: Path) -> bool:
        # A process may end while it is examined, and a zombie has no namespace.
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
            raise TimeoutError(f"lab {lab.token}: processes {ended} did not end")


def _end_groups(lab: Lab, spared: Collection[int]) -> None:
    """Kill each program's process group: the kernel does it at once, however fast members fork.

    On a busy machine a process that forks every few milliseconds has a new pid whenever /proc is
    read, and would never be caught.
    """
    for session in _sessions(lab).difference(spared):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(session, signal.SIGKILL)


def _round(wanted: _Wanted, spared: Collection[int]) -> list[int]:
    """Examine every process, then new ones a few times, to catch those that fork."""
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
    """Kill a process if it belongs to the lab; returns whether it did."""
    entry = _PROC / str(pid)
    if not wanted.is_one(entry):
        return False
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            # The pid may have been reused since, but the pidfd has not.
            if wanted.is_one(entry):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
    return True


def _sessions(lab: Lab) -> set[int]:
    """The sessions in which the lab's programs were started.

    A session's number is in use as long as it has a member. If its leader is not the process that
    was started, the number has been reused.
    """
    found = set()
    for path in _named(lab.directory / PIDS, ""):
        with contextlib.suppress(OSError, ValueError):
            pid, began = path.read_text().split()
            if began_at(int(pid)) in (began, ""):
                found.add(int(pid))
    return found


def began_at(pid: int) -> str:
    """The start time of a process in clock ticks; empty if it does not exist."""
    with contextlib.suppress(OSError, IndexError):
        return _stat(_PROC / str(pid))[19]
    return ""


def _stat(entry: Path) -> list[str]:
    """The fields of stat(5) from the third on: the second, in brackets, can contain anything."""
    return (entry / "stat").read_text().rpartition(")")[2].split()


def _ourselves() -> set[int]:
    """This process and its ancestors: ``lab down`` may run in a shell of the lab."""
    spared, pid = set(), os.getpid()
    while pid > 1 and pid not in spared:
        spared.add(pid)
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int(_stat(_PROC / str(pid))[1])
    return spared
