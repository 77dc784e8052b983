"""bench/turns.py: the table of a comparison, its exit code, and a folder without a checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.interop


def turns(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "bench" / "turns.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.timeout(220)
def test_a_row_for_each_figure_and_what_is_worse() -> None:
    short = ("--starts=1", "--rounds=1", "--seconds=0.2", "--only=dial", "--ways=isthmus")
    done = turns(str(ROOT), *short, "--allow=-10000")  # everything is worse than that
    assert done.returncode == 1, done.stderr
    rows = [line for line in done.stdout.splitlines() if "per_s" in line or "cpu_us" in line]
    assert len(rows) == 4 and all("worse" in row for row in rows)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    done = turns(str(tmp_path))
    assert done.returncode == 2
    assert "is not a checkout of Isthmus" in done.stderr
