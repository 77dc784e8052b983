"""The labs of the worked examples hold what their plans say, and one that was changed does not."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from machine import LAB, PREFIX, environment, wait_until

from isthmus.lab import state
from isthmus.lab.removal import NETNS
from isthmus.lab.state import Lab

EXAMPLES = Path(__file__).parents[2] / "examples" / "publishing"
PUBLISH = [sys.executable, "-m", "isthmus.cli.main", "publish"]
LIMIT_S = 180.0


def topology(tmp_path: Path, name: str, *args: str) -> Path:
    """The lab of an example's plan, as the command writes it."""
    command = [*PUBLISH, "render", str(EXAMPLES / f"{name}.yaml"), "--part=lab.yaml", *args]
    done = subprocess.run(command, env=environment(), capture_output=True, timeout=60, check=True)
    path = tmp_path / f"{Path(name).name}.yaml"
    path.write_bytes(done.stdout)
    return path


def run(path: Path) -> dict[str, Any]:
    """What was seen in a lab that is gone afterwards; others may run at the same time."""
    with subprocess.Popen(
        [*LAB, "run", str(path), "--output=json"],
        env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            ours = lab_of(process)
            out, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.terminate()
    sys.stderr.write(err)  # pytest shows it when the test fails
    wait_until(lambda: not processes(ours), "its processes are gone")
    assert not namespaces(ours)
    assert not ours.directory.exists()
    report: dict[str, Any] = json.loads(out)
    return report


def lab_of(process: subprocess.Popen[str]) -> Lab:
    """The lab that it owns, once all that could be left of it is seen."""
    found: list[Lab] = []

    def look() -> bool:
        assert process.poll() is None, process.communicate()
        found[:] = [one for one in state.labs() if one.owner == process.pid]
        return any(processes(one) and namespaces(one) for one in found)

    wait_until(look, "it has a lab")
    return found[0]


def namespaces(one: Lab) -> list[Path]:
    """Its network namespaces, and what names mean in them."""
    homes = (NETNS, Path("/etc/netns"))
    return [path for home in homes for path in home.glob(f"{PREFIX}{one.token}-*")]


def processes(one: Lab) -> list[int]:
    """Those that bear its mark."""
    found, mark = [], f"{state.MARK}={one.token}".encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


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
