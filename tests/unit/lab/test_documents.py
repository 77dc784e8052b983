"""The lab's documents name what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.frame.cli.tables import NO_COLOR
from isthmus.lab import catalog
from isthmus.lab.command import command

LAB = (Path(__file__).parents[3] / "docs" / "lab.md").read_text()


@pytest.mark.parametrize("name", catalog.names())
def test_every_topology_is_explained(name: str) -> None:
    assert f"| `{name}` |" in LAB


@pytest.mark.parametrize("name", sorted(command.commands))
def test_every_command_is_explained(name: str) -> None:
    assert f"`isthmus lab {name}" in LAB


def test_every_flag_of_run_is_explained() -> None:
    params = [one for one in command.commands["run"].params if one is not NO_COLOR]
    flags = [flag for param in params for flag in param.opts]
    for flag in flags:
        assert not flag.startswith("--") or f"`{flag}" in LAB


def test_the_list_reads_topologies_as_the_lab_does() -> None:
    whole = [catalog.load(name) for name in catalog.names()]
    assert catalog.summaries() == [(one.name, one.title, one.needs) for one in whole]
