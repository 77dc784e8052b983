"""Every topology that comes with Isthmus holds what it says, and leaves nothing behind."""

from __future__ import annotations

import json
import shutil

import pytest
from machine import lab, nothing_left

from isthmus.lab import catalog

# The one with kube-apiserver is in test_apiserver.py: it needs programs that have to be built.
PLAIN = [name for name in catalog.names() if name != "apiserver"]


@pytest.mark.parametrize("name", PLAIN)
def test_holds(name: str) -> None:
    with nothing_left():
        report = json.loads(lab("run", name, "--json", check=False))
    broken = [step for step in report["steps"] if not step["held"]]
    assert report["held"] and not broken, broken
    assert len(report["steps"]) == report["stepsInAll"] > 0


@pytest.mark.parametrize("name", ["isolated-cluster", "dual-stack"])
@pytest.mark.skipif(not shutil.which("iptables-restore"), reason="there is no iptables-restore")
def test_holds_with_iptables(name: str) -> None:
    with nothing_left():
        report = json.loads(lab("run", name, "--json", "--firewall=iptables", check=False))
    assert report["held"], report
    assert report["firewall"] == "iptables"
