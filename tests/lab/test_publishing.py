"""The labs of the worked examples hold what their plans say, and one that was changed does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from machine import environment, lab, nothing_left

EXAMPLES = Path(__file__).parents[2] / "examples" / "publishing"
PUBLISH = [sys.executable, "-m", "isthmus.cli.main", "publish"]
LIMIT_S = 180.0


def topology(tmp_path: Path, name: str, *args: str) -> Path:
    """The lab of an example's plan, as the command writes it."""
    command = [*PUBLISH, "render", str(EXAMPLES / f"{name}.yaml"), "--part=lab.yaml", *args]
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=60, check=True)
    path = tmp_path / f"{name}.yaml"
    path.write_bytes(done.stdout)
    return path


def run(path: Path) -> dict[str, Any]:
    with nothing_left():
        report: dict[str, Any] = json.loads(
            lab("run", str(path), "--json", check=False, limit_s=LIMIT_S)
        )
    return report


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.yaml")))
@pytest.mark.timeout(LIMIT_S + 60)
def test_the_plan_holds(tmp_path: Path, name: str) -> None:
    report = run(topology(tmp_path, name))
    broken = [step for step in report["steps"] if not step["held"]]
    assert report["held"] and not broken, broken
    assert len(report["steps"]) == report["stepsInAll"] > 30
    failing = [step for step in report["steps"] if step["expected"] == "unreachable"]
    assert {step["from"] for step in failing} >= {"kube-apiserver", "user", "node", "operator"}


@pytest.mark.timeout(LIMIT_S + 60)
def test_nodes_that_the_allowed_blocks_forgot_are_found_out(tmp_path: Path) -> None:
    report = run(topology(tmp_path, "public-loadbalancer", "--nodes-from=192.0.2.11"))
    broken = {(step["from"], step["what"]) for step in report["steps"] if not step["held"]}
    assert ("node", "get https://api.spring.example.com:6443/") in broken
    assert ("node", "get https://172.20.0.1:6443/") in broken
    assert {who for who, _ in broken} == {"node", "pod"}  # nobody else, and the tunnel is up
