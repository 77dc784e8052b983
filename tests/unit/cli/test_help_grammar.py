"""Every help text reads alike: a capital verb first, no full stop last, an example per command."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from isthmus.cli.main import COMMANDS, cli, main
from isthmus.frame.cli.flags import FlagCommand
from isthmus.settings.program import V_HELP

# A verb in the imperative is hard to tell by rule; words that begin so are never one.
NOT_A_VERB = re.compile(
    r"(A|An|The|This|These|If|When|Whether|How|What|Where|Which|Is|Are|Will|Can|Should|Must"
    r"|Path|Port|Name|File|Directory|Address|Number|Size|Time|Timeout|Duration|Maximum|Minimum"
    r"|List|Default|Optional|True|False|[A-Z][a-z]+[a-rt-z]s|[A-Z][a-z]+ing)"
)


def walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        with click.Context(command, info_name=path) as ctx:
            names = command.list_commands(ctx)
            children = [command.get_command(ctx, name) for name in names]
        for name, child in zip(names, children, strict=True):
            assert child is not None
            yield from walk(f"{path} {name}", child)


def tree(name: str) -> list[tuple[str, click.Command]]:
    if name == "isthmus":
        return [("isthmus", cli)]
    command = cli.get_command(click.Context(cli, info_name="isthmus"), name)
    assert command is not None
    return list(walk(f"isthmus {name}", command))


def texts(path: str, command: click.Command) -> Iterator[tuple[str, str]]:
    """Every help text of a command and its options, the first paragraph of the command's."""
    yield path, (command.help or "").split("\n\n")[0].strip()
    if isinstance(command, FlagCommand):
        for option in command.declared:
            yield f"{path} --{option.flag}", option.help
        return
    for param in command.params:
        if isinstance(param, click.Option):
            yield f"{path} {param.opts[-1]}", (param.help or "").strip()


@pytest.mark.parametrize("name", ["isthmus", *COMMANDS])
def test_help_starts_with_a_capital_verb_and_has_no_full_stop(name: str) -> None:
    wrong = []
    for path, command in tree(name):
        for where, text in texts(path, command):
            first = text.split()[0] if text else ""
            verb = first.istitle() and first.isalpha() and not NOT_A_VERB.fullmatch(first)
            if not verb or text.endswith("."):
                wrong.append(f"{where}: {text!r}")
    assert wrong == []


@pytest.mark.parametrize("name", ["isthmus", *COMMANDS])
def test_every_command_has_an_example(name: str) -> None:
    for path, command in tree(name):
        with click.Context(command, info_name=path) as ctx:
            text = ctx.get_help()
        assert "Example" in text, path
        assert re.search(rf"^ +(sudo )?{path}", text.split("Example", 1)[1], re.M), path


@pytest.mark.parametrize("name", COMMANDS)
def test_dash_h_shows_it_whole(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for path, _ in tree(name):
        assert main([*path.split()[1:], "-h"]) == 0, path
        usage, *lines = capsys.readouterr().out.splitlines()
        assert usage.startswith(f"Usage: {path}")
        cut = [line for line in lines if re.search(r"[a-z]\.\.\.$", line)]
        assert cut == [], "click cuts what it lists, unless it is a short_help"


@pytest.mark.parametrize("name", ["server", "agent"])
def test_flags_are_grouped(name: str) -> None:
    ((_, command),) = tree(name)
    assert isinstance(command, FlagCommand)
    assert all(option.group for option in command.declared)


def test_v_means_the_same_everywhere() -> None:
    every = [
        one for name in COMMANDS for path, command in tree(name) for one in texts(path, command)
    ]
    assert {text for where, text in every if where.endswith(" --v")} == {V_HELP}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_the_command_says(name: str) -> None:
    ((_, command), *_) = tree(name)
    assert (command.help or "").split("\n\n")[0].strip() == COMMANDS[name]
