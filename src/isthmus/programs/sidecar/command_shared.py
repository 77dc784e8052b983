"""What the commands of both sidecars share: the word ``run``, which HyperShift gives them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import click

from isthmus.frame.cli.flags import FlagCommand
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.settings.options import given_in_vain, options_of
from isthmus.settings.parsing import load

S = TypeVar("S", bound=SidecarSettings)
RUN = "run"


class SidecarCommand(FlagCommand):
    """A command that may be told to run in so many words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line, without a ``run`` at its beginning."""
        return super().parse_args(ctx, args[1:] if args[:1] == [RUN] else args)


def sidecar_command(
    name: str,
    settings: type[S],
    validate: Callable[[S], None],
    run: Callable[[S], int],
    *,
    help: str,
    examples: str,
) -> click.Command:
    """A command as flags.settings_command makes it, which takes a leading ``run`` as well."""

    def callback(**given: tuple[str, ...]) -> int:
        loaded = load(settings, given, os.environ)
        validate(loaded)
        vain = given_in_vain(settings, given)
        if vain:
            click.echo(f"isthmus: these flags have no effect here: {', '.join(vain)}", err=True)
        return run(loaded)

    return SidecarCommand(name, options_of(settings), examples, callback=callback, help=help)
