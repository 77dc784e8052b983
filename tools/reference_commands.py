"""Writes docs/reference/commands.md: every command but the programs, from click's declarations.

tools/reference_docs.py writes it with the other pages. Flags of the programs have pages of their
own (cli/flagdocs.py).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import click

from isthmus import __version__
from isthmus.cli.flagdocs import PAGES
from isthmus.cli.main import COMMANDS, cli
from isthmus.frame.cli.flags import FlagCommand
from isthmus.frame.cli.tables import NO_COLOR
from isthmus.settings.options import Kind, Option, options_of

NOTE = "<!-- Written by tools/reference_docs.py; a test fails when it is not current. -->\n"
_PROGRAMS = {program.name: page for page, program in PAGES.items()}
_FLAGS = {
    page: frozenset(f"--{option.flag}" for option in options_of(program.settings_class))
    for page, program in PAGES.items()
}
#: A command that has so many flags of a program takes that program's flags.
_MANY = 12
_HEAD = """\
Everything but the programs that run on, which have pages of their own: {programs}.

Every command also has `-h` and `--help`, and `--no-color`, which does what the environment variable
NO_COLOR does. An error is one line on standard error; a wrong flag or file has exit code 2.
"""


def commands() -> str:
    """The page."""
    programs = ", ".join(f"[{name}]({page})" for name, page in _PROGRAMS.items())
    lines = ["# Commands\n", NOTE, _HEAD.format(programs=programs)]
    context = click.Context(cli, info_name="isthmus")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        lines += _of(command, context, name)
    # An image's tag is the version: the page need not change with each.
    return "\n".join(lines).replace(f":{__version__}", ":VERSION")


def _of(command: click.Command, above: click.Context, name: str) -> Iterator[str]:
    context = click.Context(command, parent=above, info_name=name)
    if context.command_path.removeprefix("isthmus ") not in _PROGRAMS:
        yield f"## `{' '.join([context.command_path, *_arguments(command, context)])}`\n"
        yield f"{_sentence(command)}\n"
        rows = dict(_rows(command, context))
        page = _shared(rows)
        more = [row for flag, row in rows.items() if not page or flag not in _FLAGS[page]]
        if page:
            end = ", and these:" if more else "."
            yield f"It takes the flags of [isthmus {PAGES[page].name}]({page}){end}\n"
        if more:
            yield from ("| Flag | Default | What it does |", "|---|---|---|", *more, "")
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            if below is not None and not below.hidden:
                yield from _of(below, context, each)


def _rows(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """The flags of a command, and their descriptions."""
    known: set[str | None] = set()
    if isinstance(command, FlagCommand):
        known = {declared.attribute for declared in command.declared}
        for declared in command.declared:
            if not declared.ignored:
                yield f"--{declared.flag}", _declared(declared)
    everywhere = ("--help", *NO_COLOR.opts)
    for one in command.get_params(context):
        if not isinstance(one, click.Option) or one.hidden:
            continue
        if one.name not in known and not set(everywhere).intersection(one.opts):
            yield one.opts[-1], _row(one, context)


def _shared(flags: Collection[str]) -> str:
    """The page of the program whose flags a command takes; empty if there is none."""
    page = max(_FLAGS, key=lambda each: len(_FLAGS[each].intersection(flags)))
    return page if len(_FLAGS[page].intersection(flags)) >= _MANY else ""


def _arguments(command: click.Command, context: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        yield from () if command.invoke_without_command else ("COMMAND",)
        return
    for one in command.get_params(context):
        if isinstance(one, click.Argument):
            yield one.make_metavar(context)


def _sentence(command: click.Command) -> str:
    text = command.help or command.short_help or ""
    first = " ".join(text.split("\n\n")[0].split()).rstrip(".")
    assert first, f"{command.name} does not say what it does"
    return f"{_escaped(first)}."


def _declared(option: Option) -> str:
    takes = "" if option.kind is Kind.BOOL else f"={option.takes}"
    what = f"{option.help}; repeatable" if option.repeat else option.help
    return f"| `--{option.flag}{_escaped(takes)}` | {_escaped(option.shown)} | {_escaped(what)} |"


def _row(option: click.Option, context: click.Context) -> str:
    takes = "" if option.is_flag else f" {option.make_metavar(context)}"
    takes = takes.replace(" INTEGER RANGE", " N").replace(" FLOAT RANGE", " N")
    names = ", ".join(f"`{name}{takes}`" for name in reversed(option.opts))
    notes = [(option.help or "").rstrip(".")]
    if option.multiple and "repeatable" not in notes[0]:
        notes.append("repeatable")
    if option.envvar and str(option.envvar) not in notes[0]:
        notes.append(f"or the environment variable `{option.envvar}`")
    if option.required:
        notes.append("needed")
    what, default = _default("; ".join(note for note in notes if note), option)
    assert what, f"{context.command_path} {option.opts}: no help"
    return f"| {_escaped(names)} | {_escaped(default)} | {_escaped(what)} |"


def _default(what: str, option: click.Option) -> tuple[str, str]:
    """Help without the default that it may contain, and that default."""
    stated = re.search(r"\s*\[default: ([^\]]*)\]", what)
    if stated:
        return what.replace(stated[0], ""), stated[1]
    value = option.default
    plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return what, str(value) if plain and not option.is_flag else ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
