"""The commands of ``kubectl isthmus``: those of isthmus, with kubectl's flags."""

from __future__ import annotations

import tomllib
from pathlib import Path
from pkgutil import resolve_name

import click
import pytest

from isthmus.cli.plugin import NAME, PluginGroup, cli, main

NAMES = PluginGroup().list_commands(click.Context(cli))


def command_named(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", NAMES)
def test_flags_are_kubectls_and_mean_one_thing(name: str) -> None:
    context = click.Context(cli, info_name=NAME)
    names = [opt for one in command_named(name).params for opt in one.opts if opt[0] == "-"]
    assert len(names) == len(set(names))
    assert {"-n", "-A", "-l", "--context", "--kubeconfig"} <= set(names)
    assert "--admin" not in names and "--target" not in names
    text = command_named(name).get_help(click.Context(command_named(name), context, name))
    assert f"kubectl isthmus {name}" in text and "  isthmus " not in text


def test_flags_before_the_command_are_the_same() -> None:
    before = {opt for one in cli.params for opt in one.opts}
    after = {opt for one in command_named("status").params for opt in one.opts}
    assert before - {"--version", "--help", "-h"} <= after


def test_the_package_installs_both_programs() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    found = {name: resolve_name(where) for name, where in project["scripts"].items()}
    assert found["kubectl-isthmus"] is main
    assert callable(found["kubectl_complete-isthmus"])


def test_errors_are_as_kubectls(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["status"]) == 2  # there is no kubectl
    assert main(["stats"]) == 2
    no_kubectl, unknown = capsys.readouterr().err.splitlines()
    assert no_kubectl.startswith("error: ") and "PATH" in no_kubectl
    assert unknown.startswith("error: ") and "status" in unknown
