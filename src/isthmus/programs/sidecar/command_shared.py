"""Shared by the commands of both sidecars: the word ``run``, which HyperShift passes."""

from __future__ import annotations

import click

from isthmus.frame.cli.flags import FlagCommand, checked
from isthmus.frame.program import Program
from isthmus.settings.options import options_of

RUN = "run"


class SidecarCommand(FlagCommand):
    """A command that accepts the word ``run`` before its flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line, without a ``run`` at its beginning."""
        return super().parse_args(ctx, args[1:] if args[:1] == [RUN] else args)


def sidecar_command(program: Program, *, examples: str) -> click.Command:
    """The command of a sidecar, which takes a leading ``run`` as well."""
    settings = program.settings_class

    def callback(**given: tuple[str, ...]) -> int:
        from isthmus.frame.running import main

        return main(program, checked(settings, given))

    return SidecarCommand(
        program.name, options_of(settings), examples, callback=callback, help=program.help
    )
