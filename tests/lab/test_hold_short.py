"""What of ``make hold`` needs namespaces: an agent cut off, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 110.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hold.run", *arguments]


def test_dials_go_elsewhere_when_an_agent_is_cut_off(tmp_path: Path) -> None:
    report = tmp_path / "b"
    arguments = ["--only=B", "--set=cases=('cut off',)", "--set=settle_s=0.5", f"--json={report}"]
    done = subprocess.run(
        command(*arguments),
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(report.read_text())["scenarios"]
    figures = {each["name"]: each["value"] for each in found["figures"]}
    for link in ("mux", "grpc"):
        assert figures[f"cut off, {link} link: dials since it happened"] > 0
    assert "left out" not in " ".join(found["notes"])


def started_by(pid: int) -> set[int]:
    """The children of a process; those of its children too."""
    found: set[int] = set()
    todo = [pid]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            children = {int(each) for each in task.read_text().split()}
            todo += children - found
            found |= children
    return found


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    run = subprocess.Popen(
        command("--only=B", "--set=cases=('cut off',)"),
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + LIMIT_S
        # A target, a namespace, two servers and four agents: all of it is there.
        while len(children := started_by(run.pid)) < 8:
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        assert run.wait(LIMIT_S) == 130
    finally:
        run.kill()
        run.wait()
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("isthmus-bench-")]
