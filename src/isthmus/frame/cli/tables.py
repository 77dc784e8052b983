"""Tables as kubectl prints them, and the same things as JSON or YAML.

No boxes and upper-case heads, so that a line can be cut by ``awk`` and read by a person. What a
peer may have put into a cell cannot write to the terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from isthmus.frame.cli.texts import one_line

#: Between two columns.
GAP = "   "


def table_lines(
    heads: Sequence[str], rows: Iterable[Sequence[str]], widths: list[int] | None = None
) -> list[str]:
    """Align rows under their heads; an empty cell is shown as a dash.

    ``widths`` is kept by who prints a table bit by bit: columns only ever grow.
    """
    cells = [list(heads), *([one_line(cell) or "-" for cell in row] for row in rows)]
    widths = [] if widths is None else widths
    least = widths or [0] * len(heads)
    widths[:] = [max(least[at], *(len(row[at]) for row in cells)) for at in range(len(heads))]
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under their heads."""
    for line in table_lines(heads, rows):
        click.echo(line)


def print_data(data: Any, output: str) -> None:
    """Print for machines; ``output`` is json or yaml."""
    if output == "yaml":
        import yaml

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=1000)
        click.echo(text, nl=False)
    else:
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def has_colours() -> bool:
    """Tell whether standard output is a terminal whose user wants colours (no-color.org)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def coloured(text: str, colour: str) -> str:
    """The text in a colour where there are any."""
    return click.style(text, fg=colour) if has_colours() else text
