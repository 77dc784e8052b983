"""The memory budget of a process: what was said, a cgroup's limit of either version, the RAM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.errors import ConfigError
from isthmus.frame.resources import cgroup_limit, default_bytes, open_budget
from isthmus.settings.program import MemorySettings

MIB, GIB = 2**20, 2**30


def tree(root: Path, cgroup: str, **files: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def test_a_limit_of_version_2_around_us_counts(tmp_path: Path) -> None:
    root = tree(
        tmp_path, "0::/system.slice/isthmus.service\n",
        system_DOT_slice__isthmus_DOT_service__memory_DOT_max="max",
        system_DOT_slice__memory_DOT_max=str(500 * MIB),
    )  # fmt: skip
    assert cgroup_limit(root) == 500 * MIB
    assert default_bytes(root) == 200 * MIB


def test_a_limit_of_version_1_in_a_container_counts(tmp_path: Path) -> None:
    """The path is the host's; what is mounted is the container's own."""
    root = tree(
        tmp_path, "5:memory,other:/kubepods/pod1/abc\n4:cpu:/x\n0::/\n",
        memory__memory_DOT_limit_in_bytes=str(1 * GIB),
    )  # fmt: skip
    assert cgroup_limit(root) == GIB


def test_a_cgroup_without_a_limit_has_none(tmp_path: Path) -> None:
    root = tree(
        tmp_path, "5:memory:/a\n", memory__a__memory_DOT_limit_in_bytes="9223372036854771712"
    )
    assert cgroup_limit(root) is None
    ram = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert default_bytes(root) == min(ram * 2 // 5, 2 * GIB)


def test_without_cgroups_the_machine_counts(tmp_path: Path) -> None:
    assert cgroup_limit(tmp_path) is None
    assert 0 < default_bytes(tmp_path) <= 2 * GIB


@pytest.mark.parametrize(("workers", "size"), [(1, 400 * MIB), (4, 100 * MIB), (64, 8 * MIB)])
def test_what_was_said_is_for_all_workers(workers: int, size: int) -> None:
    assert open_budget(MemorySettings(budget="400Mi"), workers).total_bytes == size


@pytest.mark.parametrize("text", ["200", "1Mi", "lots", "-5Mi", "200MB"])
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--memory-budget"):
        MemorySettings(budget=text).check()
