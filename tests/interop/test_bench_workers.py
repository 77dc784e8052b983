"""bench/workers.py: both of two workers are used, and its CPU limits are removed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.interop


@pytest.mark.timeout(300)
def test_both_workers_have_their_share(tmp_path: Path) -> None:
    written = tmp_path / "found.json"
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "bench" / "workers.py"), "--workers=1,2", "--rounds=1",
            "--seconds=1", f"--json={written}",
        ],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    one, two = json.loads(written.read_text())
    for name in ("requests", "dials"):
        assert one["per_s"][name][0] > 0
        (cores,) = two["cores"][name]
        assert len(cores) == 2
        assert min(cores) > max(cores) / 4, cores
    assert not list(Path("/sys/fs/cgroup").glob("cpu/isthmus-bench-*"))
