"""Every help text reads alike: a phrase without a full stop for a flag, a verb for a command."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import odd_phrases
import pytest

from isthmus.cli.main import COMMANDS, cli, main
from isthmus.frame.cli.flags import FlagCommand, WithSetup
from isthmus.programs import programs
from isthmus.settings.program import V_HELP

# A verb in the imperative is hard to tell by rule; words that begin so are never one.
NOT_A_VERB = re.compile(
    r"(A|An|The|This|These|If|When|Whether|How|What|Where|Which|Is|Are|Will|Can|Should|Must"
    r"|Path|Port|Name|File|Directory|Address|Number|Size|Time|Timeout|Duration|Maximum|Minimum"
    r"|Default|Optional|True|False|[A-Z][a-z]+[a-rt-z]s|[A-Z][a-z]+ing)"
)
# The help of a flag starts with a noun or a verb. None of these is either.
NOT_A_START = re.compile(
    r"(A|An|The|This|These|It|If|When|Whether|What|Where|Which|Who|While|With|Among|Is|Are|Will"
    r"|Can|Should|Must|Have|Be|Call|True|False)"
)
ODD = odd_phrases.pattern(odd_phrases.IN_HELP)


def odd(text: str, *, verb: bool) -> str:
    """What is wrong with a help text, in a word; ``verb`` where it must start with one."""
    first, _, rest = text.partition(" ")
    first = first.rstrip(",")
    if not rest:
        return "too short"
    if text.endswith("."):
        return "full stop"
    if verb and not (first.istitle() and first.isalpha() and not NOT_A_VERB.fullmatch(first)):
        return "no verb first"
    if not (first[0].isupper() or first[0].isdigit()) or NOT_A_START.fullmatch(first):
        return f"starts with {first!r}"
    phrase = ODD.search(text)
    return f"{phrase[0]!r}" if phrase else ""


def walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        with click.Context(command, info_name=path) as ctx:
            names = command.list_commands(ctx)
            children = [command.get_command(ctx, name) for name in names]
        for name, child in zip(names, children, strict=True):
            assert child is not None
            yield from walk(f"{path} {name}", child)
    if isinstance(command, WithSetup):
        yield f"{path} {command.setup.name}", command.setup


def tree(name: str) -> list[tuple[str, click.Command]]:
    if name == "isthmus":
        return [("isthmus", cli)]
    command = cli.get_command(click.Context(cli, info_name="isthmus"), name)
    assert command is not None
    return list(walk(f"isthmus {name}", command))


def texts(path: str, command: click.Command) -> Iterator[tuple[str, str]]:
    """Every help text of a command and its options, the first paragraph of the command's."""
    yield path, (command.help or "").split("\n\n")[0].strip()
    for param in command.params:
        if isinstance(param, click.Option):
            yield f"{path} {max(param.opts, key=len)}", (param.help or "").strip()


def test_help_is_a_phrase_without_a_full_stop() -> None:
    wrong = {
        text: why
        for name in ("isthmus", *COMMANDS)
        for path, command in tree(name)
        for where, text in texts(path, command)
        if (why := odd(text, verb=where == path))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "text",
    [
        "Call this server so",
        "Let it be so many in a row",
        "Tell traffic of this node's pods by this",
        "End a connection whose request is not here after this long",
        "What is not wrong and may still not be meant",
        "An agent of ours that meets a server of ours",
        "Keep the rules for who changes them",
        "Carry so many connections",
        "Program the kernel by this",
        "Take this for the node's address",
        "Show on one screen how the programs here are",
        "opened a TCP connection: connection refused",
        "Address to listen on.",
        "Quiet",
    ],
)
def test_odd_help_is_found(text: str) -> None:
    assert odd(text, verb=False)
    assert odd(text, verb=True)


@pytest.mark.parametrize(
    "text",
    [
        "Server ID",
        "API request burst",
        "Address to listen on",
        "TLS certificate of the health port",
        "How to recognise traffic from this node's pods",
        "Close connections that have not sent a request within this time",
        "99th percentile of all dials",
    ],
)
def test_a_noun_phrase_is_fine_for_a_flag(text: str) -> None:
    assert odd(text, verb=False) == ""


@pytest.mark.parametrize("text", ["Address to listen on", "How to recognise traffic"])
def test_a_command_needs_a_verb(text: str) -> None:
    assert odd(text, verb=True)


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


@pytest.mark.parametrize("name", [program.name for program in programs()])
def test_programs_show_an_example_and_the_common_flags_first(name: str) -> None:
    (_, command), *_ = tree(name)
    assert isinstance(command, FlagCommand)
    common = [f"--{option.flag}" for option in command.declared if option.common]
    assert 5 <= len(common) <= 12
    with click.Context(command, info_name=f"isthmus {name}") as ctx:
        _, rest = command.get_help(ctx).split("Example:")
    example, shown, *_ = re.split(r"\n\n(?=[A-Z])", rest)
    assert f"isthmus {name}" in example
    assert re.findall(r"^  (--\S+)", shown, re.M) == common
    assert all(len(line) <= 80 for line in example.splitlines())


@pytest.mark.parametrize("name", ["server", "agent"])
def test_flags_are_grouped(name: str) -> None:
    (_, command), *_ = tree(name)
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
