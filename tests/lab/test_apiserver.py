"""The topologies with a real kube-apiserver; their programs are those of tests/interop/kube."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from machine import lab, nothing_left

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

from kube.build import NotBuiltError, build


@pytest.mark.parametrize(
    "name", ["apiserver", "hosted-apiserver", "kubelet-behind-wall", "services", "whole"]
)
@pytest.mark.timeout(3600)
def test_holds(name: str) -> None:
    try:
        programs = build(print)
    except NotBuiltError as exc:
        pytest.skip(str(exc))
    paths = {
        path.parent
        for path in (
            programs.etcd, programs.kube_apiserver, programs.kubectl, programs.kubemark,
            programs.fakenode,
        )
    }  # fmt: skip
    with nothing_left():
        flags = [f"--path={path}" for path in paths]
        report = json.loads(lab("run", name, "--output=json", *flags, check=False, limit_s=300))
    assert report["held"], [step for step in report["steps"] if not step["held"]]


def test_programs_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    with nothing_left():
        assert lab("run", "apiserver", check=False) == ""
