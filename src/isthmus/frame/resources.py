"""Limits of a process: memory held on behalf of peers, descriptors for their connections.

Both are as configured, or a share of what the machine allows. net/descriptors.py has the reserve
of descriptors.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from isthmus.net.descriptors import MANY, MOST_KEPT_BACK, descriptors, kept_back
from isthmus.settings.program import LEAST_BYTES, MemorySettings
from isthmus.tunnel.budget import Budget

_PART, _OF = 2, 5  # 40 %: the rest is for code, TLS and the kernel's socket buffers
_MOST_BYTES = 2 * 2**30
#: A cgroup of version 1 without a limit has a number that no machine reaches.
_NO_LIMIT = 2**60
#: Descriptors in use from the start: listeners, files, the event loop's.
_FIRST = 32


def open_budget(settings: MemorySettings, workers: int = 1) -> Budget:
    """Create the budget of this process, one of ``workers`` processes; 0 is one for each CPU."""
    total = settings.budget_bytes
    if total is None:
        total = default_bytes()
    return Budget(max(total // (workers or len(os.sched_getaffinity(0))), LEAST_BYTES))


def default_bytes(root: Path = Path("/")) -> int:
    """The default for all workers together."""
    limit = cgroup_limit(root)
    if limit is not None:
        return limit * _PART // _OF
    return min(_ram_bytes() * _PART // _OF, _MOST_BYTES)


def _ram_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cgroup_limit(root: Path = Path("/")) -> int | None:
    """The smallest memory limit of this process's cgroup and its parents, of either version."""
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
    # In a container the path may be the host's, which is not mounted there: what is mounted is
    # then the container's own.
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


def allow_all() -> None:
    """Raise the soft limit to the hard limit, as Go programs do by default.

    It is 1,024 on most systems because of select(2), which is not used here.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY if hard == resource.RLIM_INFINITY else min(hard, MANY)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections(asked: int) -> int:
    """How many connections the descriptors of this process allow, two each; at most ``asked``."""
    limit = descriptors()
    return max(1, min(asked, (limit - kept_back(limit) - _FIRST) // 2))


def places(asked: int, share: int) -> int:
    """How many connections a port allows: the configured number, or a share of descriptors."""
    return asked or max(2, descriptors() // share)


def allow_connections(connections: int) -> None:
    """Raise the soft limit of this process as far as allowed, for this many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _FIRST + MOST_KEPT_BACK
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
