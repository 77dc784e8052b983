"""A command that runs a program and has one sub-command, which prepares something for it.

No group: ``isthmus server`` and ``isthmus agent`` run a program, as konnectivity's do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from isthmus.frame.cli.flags import FlagCommand


class WithSetup(FlagCommand):
    """A program's flags; a first word ``setup-...`` is a command of its own."""

    def __init__(self, plain: click.Command, word: str, setup: Callable[[], click.Command]) -> None:
        """``setup`` imports the command for ``word``, when it is asked for."""
        assert isinstance(plain, FlagCommand)
        super().__init__(
            plain.name or "", plain.declared, plain.examples, callback=plain.callback,
            help=plain.help,
        )  # fmt: skip
        self._word = word
        self._setup = setup

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **rest: Any,
    ) -> click.Context:
        """Read the command line, of the sub-command if the first word is one."""
        if args[:1] != [self._word]:
            return super().make_context(info_name, args, parent, **rest)
        above = click.Context(self, parent=parent, info_name=info_name)
        return self._setup().make_context(self._word, args[1:], above, **rest)
