"""Click commands from declared settings: Go-style flags, grouped help, examples.

settings/parsing.py parses the texts; here a flag is only a name and the texts after it. A program
with commands below it, or with one that sets something up, is still a command with flags: ``isthmus
server`` runs a server, as konnectivity's does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from isthmus.errors import IsthmusError
from isthmus.settings.options import Kind, Option, given_in_vain, options_of
from isthmus.settings.parsing import check_once, load

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# klog's level is the only short flag: -v 4, -v=4, -v4.
_VERBOSITY = re.compile(r"-v(?:=(.*)|([0-9]+))?", re.DOTALL)


class Settings(Protocol):
    """The interface of every program's settings."""

    def validate(self) -> None:
        """Raise ConfigError if the settings are invalid."""


S = TypeVar("S", bound=Settings)


#: A word that a shell may complete, and its description.
Words = Iterable[tuple[str, str]]
Complete = Callable[[click.Context, click.Parameter, str], "list[CompletionItem[str]]"]


def completing(find: Callable[[click.Context], Words], *, or_file: bool = False) -> Complete:
    """Complete a value with words that are looked up when a shell asks, or with a file name.

    A shell shows no errors: if the words cannot be looked up, there are none.
    """

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        from click.shell_completion import CompletionItem

        if or_file and ("/" in incomplete or incomplete.startswith(".")):
            return [CompletionItem(incomplete, type="file")]
        try:
            found = list(find(ctx))
        except (IsthmusError, OSError):
            return []
        return [CompletionItem(word, help=what) for word, what in found
                if word.startswith(incomplete)]  # fmt: skip

    return complete


class FlagCommand(click.Command):
    """A command whose flags are declared settings."""

    def __init__(self, name: str, declared: Sequence[Option], examples: str, **rest: Any) -> None:
        super().__init__(
            name,
            params=[_click_option(option) for option in declared],
            context_settings={"help_option_names": ["-h", "--help"]},
            **rest,
        )
        self.declared = declared
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line, including Go's spelling of booleans.

        Raises:
            ConfigError: a flag that takes one value has two.
        """
        args = go_style(args, self.declared)
        if not ctx.resilient_parsing:
            # Before missing values are reported.
            given, _, _ = self.make_parser(ctx).parse_args(args=list(args))
            for option in self.declared:
                check_once(option, given.get(option.attribute) or ())
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples before the flags, because there may be many flags."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_epilog(ctx, formatter)
        self.format_options(ctx, formatter)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the common flags, then the others by group, and the ignored ones in one line."""
        shown = [option for option in self.declared if not option.ignored]
        common = [option for option in shown if option.common]
        if common:
            with formatter.section("Most used flags"):
                formatter.write_dl([_help_row(option) for option in common])
        for group, options in grouped(option for option in shown if not option.common):
            with formatter.section(group):
                formatter.write_dl([_help_row(option) for option in options])
        ignored = ", ".join(f"--{option.flag}" for option in self.declared if option.ignored)
        if ignored:
            with formatter.section("Accepted and ignored"):
                formatter.write_text(ignored)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples exactly as typed."""
        with formatter.section("Example"):
            for line in self.examples.splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class FlagGroup(FlagCommand, click.Group):
    """A command with flags of its own and with commands below it."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags under their headings, then the commands."""
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def settings_command(
    name: str, settings: type[S], run: Callable[[S], int], *, help: str, examples: str
) -> click.Command:
    """A command that reads its flags into settings, validates them, and runs with them.

    Flags that were given and have no effect here are named on standard error, in one line.
    ``run`` returns the exit code. ConfigError passes through; cli/main.py prints it.
    """

    def callback(**given: tuple[str, ...]) -> int:
        return run(checked(settings, given))

    return FlagCommand(name, options_of(settings), examples, callback=callback, help=help)


def checked(settings: type[S], given: Mapping[str, Sequence[str]]) -> S:
    """Settings from the given texts; flags without effect are named on standard error.

    Raises:
        ConfigError: they are invalid.
    """
    loaded = load(settings, given, os.environ)
    loaded.validate()
    say_vain(settings, given)
    return loaded


def say_vain(settings: type[Any], given: Mapping[str, Sequence[str]]) -> None:
    """Name the flags that were given and have no effect here, in one line."""
    vain = given_in_vain(settings, given)
    if vain:
        click.echo(f"isthmus: these flags have no effect here: {', '.join(vain)}", err=True)


def go_style(args: Iterable[str], declared: Iterable[Option]) -> list[str]:
    """Rewrite the command line so that click reads it as Go's flag package would.

    A boolean never takes the word after it: ``--flag`` is ``--flag=true``. The word after any
    other flag is its value, whatever it looks like.
    """
    booleans: set[str] = set()
    valued: set[str] = set()
    for option in declared:
        names = {f"--{name}" for name in (option.flag, *option.aliases)}
        (booleans if option.kind is Kind.BOOL else valued).update(names)
    spelled: list[str] = []
    rest = iter(args)
    for arg in rest:
        if arg == "--":
            return [*spelled, arg, *rest]
        short = _VERBOSITY.fullmatch(arg)
        if short:
            level = short[1] if short[1] is not None else short[2]
            arg = "--v" if level is None else f"--v={level}"
        spelled.append(f"{arg}=true" if arg in booleans else arg)
        if arg in valued:
            spelled.extend(islice(rest, 1))
    return spelled


def grouped(declared: Iterable[Option]) -> list[tuple[str, list[Option]]]:
    """Settings by group; a program's own groups first, those of its base class after."""
    declared = list(declared)
    order = list(dict.fromkeys(option.group for option in declared))
    # Fields of the base class come first in a dataclass, but logging comes last in help.
    order.sort(key=lambda group: group == "Logging")
    ranked = sorted(declared, key=lambda option: order.index(option.group))
    return [(name, list(each)) for name, each in groupby(ranked, key=lambda option: option.group)]


def _click_option(option: Option) -> click.Option:
    names = [f"--{name}" for name in (option.flag, *option.aliases)]
    # Every flag may be repeated; its declaration decides whether the last wins or all count.
    return click.Option(
        [option.attribute, *names],
        multiple=True,
        type=str,
        help=option.help,
        metavar=option.takes or None,
    )


def _help_row(option: Option) -> tuple[str, str]:
    name = f"--{option.flag} {option.takes}".rstrip()
    notes = []
    if option.repeat:
        notes.append("repeatable")
    if option.env:
        notes.append(f"env {option.env}")
    if option.shown and option.shown != "false":
        notes.append(f"default {option.shown}")
    if option.inert:
        notes.append("no effect here")
    text = f"{option.help} ({', '.join(notes)})" if notes else option.help
    return name, text


class WithSetup(FlagCommand):
    """A program's flags; a first word ``setup-...`` is a separate command."""

    def __init__(self, plain: click.Command, setup: click.Command) -> None:
        assert isinstance(plain, FlagCommand)
        super().__init__(
            plain.name or "", plain.declared, plain.examples, callback=plain.callback,
            help=plain.help,
        )  # fmt: skip
        self.setup = setup

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **rest: Any,
    ) -> click.Context:
        """Read the command line, or that of the sub-command if the first word is one."""
        if args[:1] != [self.setup.name]:
            return super().make_context(info_name, args, parent, **rest)
        above = click.Context(self, parent=parent, info_name=info_name)
        return self.setup.make_context(self.setup.name, args[1:], above, **rest)
