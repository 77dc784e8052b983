"""The cgroups of a lab's machines: made, entered and removed, in version 1 and 2.

A machine has one cgroup in each hierarchy, ``isthmus-lab-TOKEN/HOST``. All that it runs is in
there or below, containers included, so that what is left of a lab is found there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import ConfigError
from isthmus.lab.plan import PREFIX

_MOUNTINFO = Path("/proc/self/mountinfo")
_PROCS = "cgroup.procs"
_CONTROLLERS = "cgroup.controllers"
_SUBTREE = "cgroup.subtree_control"
#: In version 2 only leaves have processes.
_LEAF = "machine"
#: A cgroup of version 1 takes no process before it has these.
_CPUSET = ("cpuset.cpus", "cpuset.mems")
_NEEDED = frozenset({"cpu", "memory", "pids"})
_NOT_OPTIONS = frozenset({"rw", "ro", "xattr", "noprefix", "clone_children"})
_GONE_WITHIN_S = 10.0
_LOOK_AGAIN_S = 0.02


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One cgroup filesystem of this machine; ``options`` mount it again."""

    point: Path
    kind: str
    options: str

    @property
    def controllers(self) -> set[str]:
        if self.kind == "cgroup":
            return set(self.options.split(","))
        return set((self.point / _CONTROLLERS).read_text().split())


def hierarchies() -> list[Hierarchy]:
    """Those that are mounted, where the first of each is."""
    found: dict[tuple[str, str], Hierarchy] = {}
    for line in _MOUNTINFO.read_text().splitlines():
        place, _, filesystem = line.partition(" - ")
        kind, _, words = filesystem.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            given = [word for word in words.split(",") if word not in _NOT_OPTIONS]
            named = [word for word in given if word.startswith("name=")]
            options = ",".join(["none", *named] if named else given) if kind == "cgroup" else ""
            here = Hierarchy(Path(place.split(" ")[4]), kind, options)
            found.setdefault((kind, options), here)
    return list(found.values())


def check() -> None:
    """See whether containers could be limited here.

    Raises:
        ConfigError: controllers are missing, or nobody may make cgroups.
    """
    there: set[str] = set()
    for one in hierarchies():
        there |= one.controllers
        if not os.access(one.point, os.W_OK) or os.statvfs(one.point).f_flag & os.ST_RDONLY:
            raise ConfigError(f"a cluster needs cgroups, and {one.point} is read-only")
    if missing := sorted(_NEEDED - there):
        raise ConfigError(
            f"a cluster needs the cgroup controllers {', '.join(missing)}, not found here"
        )


def _folder(token: str, hierarchy: Hierarchy) -> Path:
    return hierarchy.point / f"{PREFIX}{token}"


def make(token: str, host: str) -> list[str]:
    """Make a machine's cgroups; the files that take the numbers of processes in.

    Raises:
        OSError: the kernel does not allow it.
    """
    files = []
    for one in hierarchies():
        lab = _folder(token, one)
        machine = lab / host
        for parent, child in ((one.point, lab), (lab, machine)):
            if one.kind == "cgroup2":
                _pass_on(parent)
            child.mkdir(exist_ok=True)
            for name in _CPUSET if one.kind == "cgroup" else ():
                if (parent / name).exists():
                    (child / name).write_text((parent / name).read_text())
        if one.kind == "cgroup2":
            _pass_on(machine)
            machine /= _LEAF
            machine.mkdir(exist_ok=True)
        files.append(str(machine / _PROCS))
    return files


def _pass_on(folder: Path) -> None:
    """Let the cgroups below have all controllers of this one."""
    for controller in (folder / _CONTROLLERS).read_text().split():
        with contextlib.suppress(OSError):  # some cannot be, and nobody needs those
            (folder / _SUBTREE).write_text(f"+{controller}")


def remove(token: str, spared: Collection[int]) -> None:
    """End what is left in a lab's cgroups, and remove them; without any do nothing.

    Raises:
        TimeoutError: a process of it does not die.
    """
    give_up_at = time.monotonic() + _GONE_WITHIN_S
    for one in hierarchies():
        folder = _folder(token, one)
        while folder.exists():
            _end(folder, spared)
            for each in sorted(_all(folder), key=lambda path: len(path.parts), reverse=True):
                with contextlib.suppress(OSError):  # somebody in it has not quite ended yet
                    each.rmdir()
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"lab {token}: processes in {folder} do not end")
            if folder.exists():
                time.sleep(_LOOK_AGAIN_S)


def _all(folder: Path) -> Iterator[Path]:
    for parent, _, _ in os.walk(folder):
        yield Path(parent)


def _end(folder: Path, spared: Collection[int]) -> None:
    for each in _all(folder):
        with contextlib.suppress(OSError):
            for pid in map(int, (each / _PROCS).read_text().split()):
                if pid not in spared:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
