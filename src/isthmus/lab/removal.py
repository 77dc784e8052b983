"""Taking a lab away by its token alone, whatever state it is in and whatever became of its maker.

Everything of a lab is found by name: its processes by a mark in their environment or by the
namespace they are in, its namespaces and hosts files by their prefix, its files by their directory.
Nothing of it is ever in the root namespace, so links and rules go with the namespaces.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from isthmus.lab.plan import Names
from isthmus.lab.state import HOME, MARK, Lab
from isthmus.net import namespaces

NETNS = Path("/run/netns")
ETC = Path("/etc/netns")
_PROC = Path("/proc")
_GONE_WITHIN_S = 10.0
_LOOK_AGAIN_S = 0.01


def remove(token: str) -> None:
    """Remove all of a lab; without any of it there, do nothing.

    Raises:
        TimeoutError: a process of it does not die.
    """
    prefix = Names(token).prefix
    _end_processes(token, _spaces(prefix))
    for name in _spaces(prefix):
        namespaces.remove(name)
    for directory in _named(ETC, prefix):
        shutil.rmtree(directory, ignore_errors=True)
    shutil.rmtree(Lab(token).directory, ignore_errors=True)
    for empty in (ETC, HOME, HOME.parent):
        with contextlib.suppress(OSError):
            empty.rmdir()  # only if nothing else is in it


def _named(directory: Path, prefix: str) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return [path for path in directory.iterdir() if path.name.startswith(prefix)]
    return []


def _spaces(prefix: str) -> list[str]:
    return [path.name for path in _named(NETNS, prefix)]


def _end_processes(token: str, spaces: Iterable[str]) -> None:
    inodes = set()
    for name in spaces:
        with contextlib.suppress(OSError):
            inodes.add((NETNS / name).stat().st_ino)
    spared = _ourselves()
    give_up_at = time.monotonic() + _GONE_WITHIN_S
    while pids := [pid for pid in pids_of(token, inodes) if pid not in spared]:
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"lab {token}: processes {pids} do not end")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_LOOK_AGAIN_S)


def pids_of(token: str, inodes: Iterable[int]) -> list[int]:
    """Find the processes of a lab: marked with its token, or in one of its namespaces."""
    mark = f"{MARK}={token}".encode()
    inodes = set(inodes)
    found = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        # A process may end while it is looked at, and a dead one that nobody waited for has none.
        with contextlib.suppress(OSError):
            marked = mark in (entry / "environ").read_bytes().split(b"\0")
            if marked or (entry / "ns/net").stat().st_ino in inodes:
                found.append(int(entry.name))
    return found


def _ourselves() -> set[int]:
    """This process and its ancestors: ``lab down`` may be typed into a shell of the lab."""
    spared, pid = set(), os.getpid()
    while pid > 1 and pid not in spared:
        spared.add(pid)
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name, in brackets, may have anything in it.
            pid = int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return spared
