"""Holds a command line of ours against the declarations: commands, flags, values.

Nothing is run. Words in capitals and … stand for something: the value of such a flag is not looked
at, and neither is whether everything is there that has to be.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import click

from isthmus.cli.main import COMMANDS, cli
from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import FlagCommand, go_style
from isthmus.settings.parsing import load

_PLACEHOLDER = re.compile(r"…|\$[A-Z(]|(?<![A-Za-z0-9_$.-])[A-Z]{2,}(?![A-Za-z0-9_.-])|\[")


def objections(words: list[str]) -> str:
    """What is wrong with a command line, ``isthmus`` left out; nothing when it could be typed."""
    if not words or words[0] in {"--help", "--version", "-h"}:
        return ""
    if words[0] == "…" or _PLACEHOLDER.search(words[0]):
        return ""
    if words[0] not in COMMANDS:
        return f"there is no command {words[0]!r}"
    command = cli.get_command(click.Context(cli), words[0])
    assert command is not None
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest[0]
        if _PLACEHOLDER.search(name):
            return ""
        found = command.get_command(click.Context(command), name)
        if found is None:
            if command.invoke_without_command and not command.commands:
                break
            return f"{command.name} has no sub-command {name!r}"
        command, rest = found, rest[1:]
    whole = not any(_PLACEHOLDER.search(word) for word in rest)
    return _of_settings(command, rest, whole) or _of_click(command, rest, whole)


def _declared(command: click.Command) -> type[Any] | None:
    """The settings that a command reads; None for a command without."""
    callback = command.callback
    if not isinstance(command, FlagCommand) or callback is None:
        return None
    closed_over = inspect.getclosurevars(callback).nonlocals
    found: type[Any] | None = closed_over.get("settings") if "run" in closed_over else None
    return found


def _of_settings(command: click.Command, words: list[str], whole: bool) -> str:
    """Read the values, and check them against each other when all of them are there."""
    settings = _declared(command)
    if settings is None or not isinstance(command, FlagCommand):
        return ""
    if words and not words[0].startswith(("-", "…")):
        return ""  # a sub-command of a program that also runs without one
    given: dict[str, list[str]] = {}
    by_flag = {
        name: option for option in command.declared for name in (option.flag, *option.aliases)
    }
    spelled = iter(go_style([word for word in words if word != "…"], command.declared))
    for word in spelled:
        flag, equals, value = word.removeprefix("--").partition("=")
        if flag not in by_flag or not word.startswith("--"):
            continue
        value = value if equals else next(spelled, "…")
        if not _PLACEHOLDER.search(value):
            given.setdefault(by_flag[flag].attribute, []).append(value)
    try:
        loaded = load(settings, given, {})
        if whole and given:
            loaded.validate()
    except ConfigError as error:
        return str(error)
    return ""


def _takes_a_value(command: click.Command, word: str) -> bool:
    """Whether the word is a flag whose value is left to the reader."""
    options = [param for param in command.params if isinstance(param, click.Option)]
    return any(word in option.opts and not option.is_flag for option in options)


def _of_click(command: click.Command, words: list[str], whole: bool) -> str:
    """Read the words as click does."""
    kept = [word for word in words if word not in {"…", "…]"}]
    if not whole and kept and _takes_a_value(command, kept[-1]):
        kept.append("…")
    try:
        command.make_context(command.name, list(kept), resilient_parsing=False)
    except click.NoSuchOption as error:
        return f"{command.name}: there is no flag {error.option_name}"
    except (click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        return "" if not whole or not kept else f"{command.name}: something is missing"
    except click.BadParameter as error:
        # Whether a file is there is seen when the command is run.
        unknown = whole and "does not exist" not in error.message
        return error.format_message() if unknown else ""
    except click.exceptions.Exit:
        return ""
    except (click.UsageError, ConfigError) as error:
        return f"{command.name}: {error}" if whole else ""
    return ""
