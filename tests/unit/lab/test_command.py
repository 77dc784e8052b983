"""``isthmus lab`` without root: what it says, and what it can do all the same."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.lab import catalog

NEEDS_ROOT = "isthmus: isthmus lab needs root to create network namespaces: use sudo\n"


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be nobody in particular: the tests may well run as root."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.parametrize(
    "args",
    [
        ["up", "isolated-cluster"],
        ["run", "isolated-cluster"],
        ["down"],
        ["down", "--all"],
        ["show"],
        ["shell", "pod"],
    ],
    ids=" ".join,
)
def test_one_sentence_without_root(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", *args]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", NEEDS_ROOT)


def test_topologies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "list", "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed["topologies"]] == catalog.names()
    assert main(["lab", "list"]) == 0
    assert "isolated-cluster" in capsys.readouterr().out


@pytest.mark.parametrize("name", catalog.names())
def test_a_topology_is_drawn(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "show", name]) == 0
    drawn = capsys.readouterr().out
    for host in catalog.load(name).hosts:
        assert host.name in drawn
    assert main(["lab", "show", name, "--svg", str(tmp_path / "picture.svg")]) == 0
    assert (tmp_path / "picture.svg").read_text().startswith("<svg")


def test_a_picture_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "show", "combined", "--svg", "/nowhere/picture.svg"]) == 2
    assert "--svg=/nowhere/picture.svg: No such file or directory" in capsys.readouterr().err
