"""A flag that comes twice: the last counts, unless a file or a listener would silently be lost."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from isthmus.cli.main import COMMANDS, cli, main
from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import FlagCommand
from isthmus.programs.agent.settings import AgentSettings
from isthmus.settings.options import Option
from isthmus.settings.parsing import load


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command there is, with the words that call it."""
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        yield from _below((name,), command)


def _below(
    words: tuple[str, ...], command: click.Command
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    for name, each in command.commands.items() if isinstance(command, click.Group) else ():
        yield from _below((*words, name), each)


COMMAND_LINES = dict(commands())
DECLARED = [
    (words, option)
    for words, command in COMMAND_LINES.items()
    if isinstance(command, FlagCommand)
    for option in command.declared
    if option.takes_one
]
PLAIN = [
    (words, param.opts[-1])
    for words, command in COMMAND_LINES.items()
    if not isinstance(command, FlagCommand)
    for param in command.params
    if isinstance(param, click.Option)
    and not (param.is_flag or param.multiple)
    and isinstance(param.type, click.types.StringParamType | click.Path)
]


def named(words: tuple[str, ...], flag: str) -> str:
    return f"{' '.join(words)} {flag}"


@pytest.mark.parametrize(
    ("words", "option"), DECLARED, ids=[named(words, option.flag) for words, option in DECLARED]
)
def test_a_flag_that_takes_one_value_is_refused_with_two(
    words: tuple[str, ...], option: Option, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, f"--{option.flag}=/first", f"--{option.flag}", "/second"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"isthmus: --{option.flag} is given more than once (/first and /second)")


@pytest.mark.parametrize(("words", "flag"), PLAIN, ids=[named(*each) for each in PLAIN])
def test_a_text_of_a_tool_that_is_given_twice_is_refused(
    words: tuple[str, ...], flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, flag, "first", flag, "second"]) == 2
    assert capsys.readouterr().err == (
        f"isthmus: {flag} is given more than once and takes one value\n"
    )


def test_the_flags_that_lose_something_are_among_them() -> None:
    flags = {(words[0], option.flag) for words, option in DECLARED}
    assert {
        ("agent", "crl-file"),
        ("node-proxy", "config"),
        ("apiserver-proxy", "config"),
        ("sni-router", "config"),
        ("server", "policy-file"),
        ("server", "cluster-crl-file"),
        ("server", "agent-bind-address"),
        ("node-proxy", "cluster-cidr"),
    } <= flags
    assert {(("dial",), "--config"), (("dashboard",), "--bind-address")} <= set(PLAIN)


def test_the_same_value_twice_is_no_mistake() -> None:
    found = load(AgentSettings, {"crl_file": ("/one.pem", "/one.pem")}, {})
    assert found.crl_file == "/one.pem"


def test_the_last_of_other_flags_counts_as_in_go() -> None:
    given = {"v": ("1", "4"), "agent_cert": ("a", "b"), "sync_interval_s": ("1s", "2s")}
    found = load(AgentSettings, given, {})
    assert (found.log.v, found.agent_cert, found.sync_interval_s) == (4, "b", 2.0)


def test_repeatable_flags_add_up() -> None:
    given = {"proxy_server_host": ("a", "b")}
    assert load(AgentSettings, given, {}).proxy_server_host == ("a", "b")


def test_a_list_says_how_to_write_it() -> None:
    from isthmus.programs.node_proxy.settings import NodeProxySettings

    with pytest.raises(ConfigError, match="give it once, with commas between the values"):
        load(NodeProxySettings, {"cluster_cidr": ("10.0.0.0/8", "fd00::/8")}, {})


def test_what_has_no_effect_is_not_refused() -> None:
    assert not Option(help="", once=True, ignored=True).takes_one
    assert not Option(help="", once=True, inert=True).takes_one
    assert not Option(help="", once=True, repeat=True).takes_one
