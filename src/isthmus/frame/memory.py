"""The memory budget of a process: as it was set, or a part of what the process may have."""

from __future__ import annotations

import os
from pathlib import Path

from isthmus.settings.program import LEAST_BYTES, MemorySettings
from isthmus.tunnel.budget import Budget

_PART, _OF = 2, 5  # 40 %: the rest is for code, TLS and what the kernel keeps for sockets
_MOST_BYTES = 2 * 2**30
#: A cgroup of version 1 without a limit has one that no machine reaches.
_NO_LIMIT = 2**60


def open_budget(settings: MemorySettings, workers: int = 1) -> Budget:
    """Make the budget of this process, one of so many workers; 0 is one for each CPU."""
    total = settings.budget_bytes
    if total is None:
        total = default_bytes()
    return Budget(max(total // (workers or len(os.sched_getaffinity(0))), LEAST_BYTES))


def default_bytes(root: Path = Path("/")) -> int:
    """What all workers have together where nothing was said."""
    limit = cgroup_limit(root)
    if limit is not None:
        return limit * _PART // _OF
    return min(_ram_bytes() * _PART // _OF, _MOST_BYTES)


def _ram_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cgroup_limit(root: Path = Path("/")) -> int | None:
    """The smallest memory limit of our cgroup and those around it, of either version."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    found: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            found += _limits(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            found += _limits(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
    return min(found, default=None)


def _limits(mount: Path, path: str, name: str) -> list[int]:
    # In a container the path may be that of the host, which is not mounted there: what is
    # mounted is then the container's own.
    places = [Path(path.lstrip("/"))]
    places += places[0].parents
    found = []
    for place in dict.fromkeys((*places, Path())):
        try:
            text = (mount / place / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < _NO_LIMIT:
            found.append(int(text))
    return found
