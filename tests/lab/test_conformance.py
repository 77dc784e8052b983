"""A short selection of Kubernetes' own tests passes in the lab's cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from machine import environment, nothing_left

from isthmus.errors import ConfigError
from isthmus.lab.kubernetes import bundle
from isthmus.lab.kubernetes.programs import CONFORMANCE, NotBuiltError

ROOT = Path(__file__).parents[2]
LIMIT_S = 1500.0


@pytest.mark.timeout(3600)
def test_the_short_selection_passes(tmp_path: Path) -> None:
    try:
        bundle.check()
        bundle.build(print, more=CONFORMANCE)
    except (ConfigError, NotBuiltError) as exc:
        pytest.skip(str(exc))
    with nothing_left():
        done = subprocess.run(
            [sys.executable, "-m", "conformance.run", "--only=short", "--no-control",
             f"--output={tmp_path}"],
            cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=LIMIT_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    passed = int((tmp_path / "report.md").read_text().split("nftables | ")[1].split(" |")[0])
    assert passed > 80
