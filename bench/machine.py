"""The machine of a run: its properties, and whether other programs use it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

# Programs whose versions are reported: the command, and the position of the version in its output.
_VERSIONS = {"haproxy": ("-v", 2), "curl": ("--version", 1)}


def busy_share(seconds: float) -> float:
    """The share of all CPUs that any program uses while this one waits."""

    def ticks() -> tuple[int, int]:
        fields = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
        return sum(fields), fields[3] + fields[4]  # all; idle and waiting for disks

    total, idle = ticks()
    time.sleep(seconds)
    total_after, idle_after = ticks()
    return 1 - (idle_after - idle) / max(1, total_after - total)


def machine() -> str:
    """The machine, in a few words."""
    cpus = len(os.sched_getaffinity(0))
    versions = [
        f"{cpus} CPUs",
        f"Linux {platform.release()}",
        f"Python {platform.python_version()}",
    ]
    for name, (flag, place) in _VERSIONS.items():
        if shutil.which(name):
            said = subprocess.run([name, flag], capture_output=True, text=True, timeout=10).stdout
            versions.append(f"{name} {said.split()[place]}")
    return ", ".join(versions)
