"""Every topology that comes with Isthmus holds what it says, and leaves nothing behind."""

from __future__ import annotations

import json
import shutil

import pytest
from machine import lab, nothing_left

from isthmus.lab import catalog

# Those with kube-apiserver are in test_apiserver.py: they need programs that have to be built.
PLAIN = [name for name in catalog.names() if "kube-apiserver" not in catalog.load(name).needs]
# The longest waits for links that are cut, and starts its programs again and again.
LIMIT_S = 300.0


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.timeout(LIMIT_S + 60)
def test_holds(name: str) -> None:
    missing = [program for program in catalog.load(name).needs if not shutil.which(program)]
    if missing:
        pytest.skip(f"there is no {' and no '.join(missing)}")
    with nothing_left():
        report = json.loads(lab("run", name, "--output=json", check=False, limit_s=LIMIT_S))
    broken = [step for step in report["steps"] if not step["held"]]
    assert report["held"] and not broken, broken
    assert len(report["steps"]) == report["stepsInAll"] > 0


@pytest.mark.parametrize("name", ["isolated-cluster", "dual-stack"])
@pytest.mark.skipif(not shutil.which("iptables-restore"), reason="there is no iptables-restore")
def test_holds_with_iptables(name: str) -> None:
    with nothing_left():
        report = json.loads(lab("run", name, "--output=json", "--firewall=iptables", check=False))
    assert report["held"], report
    assert report["firewall"] == "iptables"
