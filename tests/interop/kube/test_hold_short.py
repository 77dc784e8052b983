"""The one scenario of ``make hold`` with a real kube-apiserver, once, with small numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kube.build import Binaries

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parents[3]
LIMIT_S = 220.0


@pytest.mark.timeout(LIMIT_S + 20)
def test_a_killed_server_leaves_the_apiserver_ready(
    kube_binaries: Binaries, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root, ip and nft")
    report = tmp_path / "report"
    command = [sys.executable, "-m", "hold.run", "--only=I", "--quick", f"--json={report}"]
    done = subprocess.run(
        [*command, "--set=up_s=1.0", "--set=down_s=1.0"],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(report.read_text())["scenarios"]
    figures = {each["name"]: each["value"] for each in found["figures"]}
    name = "HTTPConnect, mux link"
    assert figures[f"{name}: kills that it came back from"] == 1
    assert figures[f"{name}: times that it was not ready"] == 0
    assert figures[f"{name}: times that the apiserver was asked and ready"] > 0
    assert figures[f"{name}: requests answered"] > 0
