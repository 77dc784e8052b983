"""The topology with a real cluster: it comes up, holds, and leaves nothing, however it is ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from machine import LAB, environment, lab, nothing_left, wait_until

from isthmus.errors import ConfigError
from isthmus.lab.kubernetes import bundle, cgroups
from isthmus.lab.kubernetes.programs import NotBuiltError, cache

LIMIT_S = 900.0
NODES = cache() / "nodes"


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Everything that the cluster is built of, which takes its time where it is not there."""
    try:
        bundle.check()
        bundle.build(print)
    except (ConfigError, NotBuiltError) as exc:
        pytest.skip(str(exc))


def left(of: str = "") -> list[str]:
    """What a cluster could leave besides what every lab could; ``of`` one lab, or of any."""
    points = [one.point for one in cgroups.hierarchies()]
    groups = [str(path) for point in points for path in point.glob("isthmus-lab-*")]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    nodes = NODES.iterdir() if NODES.is_dir() else ()
    found = [*groups, *(line for line in mounts if str(NODES) in line), *map(str, nodes)]
    return [each for each in found if of in each]


@pytest.mark.timeout(3600)
def test_holds() -> None:
    with nothing_left():
        report = json.loads(lab("run", "kubernetes", "--output=json", check=False, limit_s=LIMIT_S))
    assert report["held"], [step for step in report["steps"] if not step["held"]]
    assert left(report["lab"]) == []


@pytest.mark.timeout(3600)
def test_kubectl_of_this_machine_gets_in_and_down_leaves_nothing() -> None:
    with nothing_left():
        said = lab("up", "kubernetes", limit_s=LIMIT_S)
        try:
            (name,) = [line for line in said.splitlines() if line.startswith("export KUBECONFIG=")]
            found = {**os.environ, "KUBECONFIG": name.partition("=")[2]}
            kubectl = bundle.programs.APISERVER.path("kubectl")
            nodes = subprocess.run(
                [kubectl, "get", "nodes", "-o", "name"], env=found, capture_output=True, text=True
            )
            assert nodes.stdout.split() == ["node/node1", "node/node2"], nodes.stderr
            assert "node1" in lab("shell", "node1", "hostname")
            assert lab("shell", "node1", "kubectl", "get", "--raw", "/readyz") == "ok"
        finally:
            lab("down")
    assert left(Path(name.partition("=")[2]).parent.name) == []


KILLS = [
    pytest.param(number, step, marks=[pytest.mark.nightly] if nightly else [])
    for number, step, nightly in (
        (signal.SIGKILL, "waiting for cluster", False),
        (signal.SIGTERM, "machine node2", False),
        (signal.SIGKILL, "waiting for bootstrap", True),
        (signal.SIGINT, "waiting for cluster", True),
        (signal.SIGKILL, "step 40 of", True),
        (signal.SIGTERM, "step 20 of", True),
    )
]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("number", "step"), KILLS)
def test_ended_early_it_leaves_nothing(number: signal.Signals, step: str) -> None:
    before = left()
    with (
        nothing_left(),
        subprocess.Popen(
            [*LAB, "run", "kubernetes"], env=environment(), text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as process,
    ):  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            if step in line:
                break
        process.send_signal(number)
        process.communicate(timeout=120)
    wait_until(lambda: left() == before, "nothing of the cluster is left")
