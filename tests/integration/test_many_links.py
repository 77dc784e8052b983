"""Many links to one server, by bench/links.py: all carry, all come back, and none is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINKS = 200


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("key", ["ec", "rsa"])
def test_links_that_come_back_after_a_restart(tmp_path: Path, key: str) -> None:
    written = tmp_path / "found.json"
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "bench" / "links.py"), f"--links={LINKS}", f"--key={key}",
            "--bytes=65536", "--seconds=0.5", f"--json={written}",
        ],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    found = json.loads(written.read_text())
    assert found["answered"] == LINKS
    assert found["back"] == LINKS
    assert found["left_descriptors"] == 0
