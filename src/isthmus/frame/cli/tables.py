"""What commands print: tables as kubectl prints them, bars, and texts that are safe on a terminal.

No boxes and upper-case heads, so that ``awk`` can split a line and people can read it. Text from a
peer in a cell cannot control the terminal.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from isthmus.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

#: Between two columns.
GAP = "   "
T = TypeVar("T", str | None, tuple[str, ...])
F = TypeVar("F", bound=Callable[..., object])
TEXT, WIDE, JSON, YAML = "text", "wide", "json", "yaml"
FORMATS = (TEXT, JSON, YAML)
_OUTPUT = ("-o", "--output")
_OUTPUT_SAYS: dict[str, Any] = {
    "default": TEXT,
    "show_default": True,
    "help": "Output format",
}
#: The width of output that is not a terminal; wider lines are folded.
_PIPE_WIDTH = 200
_BARS = "▁▂▃▄▅▆▇█"


def output_parameter(formats: Sequence[str] = FORMATS) -> click.Option:
    """-o/--output, the same for every command: text by default, also in a pipe."""
    return click.Option(_OUTPUT, type=click.Choice(formats), **_OUTPUT_SAYS)


def output_option(formats: Sequence[str] = FORMATS) -> Callable[[F], F]:
    """Give a command -o/--output, as a decorator; it gets ``output``."""
    return click.option(*_OUTPUT, type=click.Choice(formats), **_OUTPUT_SAYS)


def _without_colours(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not os.environ.get("NO_COLOR"):
        os.environ["NO_COLOR"] = "1"  # rich and the processes of a lab read it
        ctx.call_on_close(lambda: os.environ.pop("NO_COLOR", None))


#: --no-color, the same for every command; cli/main.py adds it.
NO_COLOR = click.Option(
    ["--no-color"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_without_colours,
    help="Do not use colours, as with the environment variable NO_COLOR",
)


def console() -> Console:
    """Standard output for rich: as wide as the terminal, and wide in a file or a pipe."""
    from rich.console import Console

    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return Console()
    return Console(width=_PIPE_WIDTH)


def table_lines(
    heads: Sequence[str], rows: Iterable[Sequence[str]], widths: list[int] | None = None
) -> list[str]:
    """Align rows under their heads; an empty cell is shown as a dash.

    A caller that prints a table in parts keeps ``widths``: columns only grow.
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
    """Print for machines; ``output`` is JSON or YAML."""
    if output == YAML:
        import yaml

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=1000)
        click.echo(text, nl=False)
    else:
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def has_colours() -> bool:
    """Whether standard output is a terminal whose user wants colours (no-color.org)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def coloured(text: str, colour: str) -> str:
    """The text in a colour, if colours are used."""
    return click.style(text, fg=colour) if has_colours() else text


def can_show(text: str) -> bool:
    """Whether the encoding of standard output has this text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def wrapped(text: str, hang: int) -> str:
    """The text in lines that fit the terminal, with spaces before all but the first.

    A word is never split. In a file or a pipe it stays one line.
    """
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    if len(text) < width:
        return text
    return textwrap.fill(
        text, width, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False
    )


def filled(ctx: click.Context, param: click.Parameter, value: T) -> T:
    """Check, as a callback of click, that a given text is not empty.

    Raises:
        ConfigError: a text is empty, for example from an unset variable.
    """
    texts = value if isinstance(value, tuple) else (value,)
    if any(text is not None and not text.strip() for text in texts):
        name = max(param.opts, key=len)
        if isinstance(param, click.Argument):
            name = (param.metavar or name).removesuffix("...")
        raise ConfigError(f"{name} is empty")
    return value


def complain(text: str) -> None:
    """Write an error to standard error, in the style of the running command.

    ``isthmus: …``, and ``error: …`` below a command of kubectl.
    """
    ctx = click.get_current_context(silent=True)
    name = ctx.find_root().command_path if ctx is not None else ""
    click.echo(f"{error_prefix(name)}: {one_line(text)}", err=True)


def error_prefix(program: str) -> str:
    """The prefix of errors of a program with this name."""
    return "error" if program.startswith("kubectl") else "isthmus"


def one_line(text: str) -> str:
    """The text with escapes for characters that a terminal would not show."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def bars(values: Sequence[float], width: int = 30) -> str:
    """Draw values, oldest first, as block characters; the maximum fills its cell.

    More values than ``width`` are summed in groups; zero is the lowest bar.
    """
    if not values:
        return ""
    group = -(-len(values) // width)
    # Groups are counted from the newest, so that a bar does not change while time goes on.
    cut = len(values) % group
    heads = [sum(values[:cut])] if cut else []
    sums = heads + [sum(values[at : at + group]) for at in range(cut, len(values), group)]
    top = max(sums)
    if top <= 0:
        return _BARS[0] * len(sums)
    # Any value above zero must be visible.
    return "".join(_BARS[max(value > 0, round(value / top * (len(_BARS) - 1)))] for value in sums)


def counted(number: int, one: str, many: str = "") -> str:
    """Write a count with its word: 1 agent, 3 agents."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"
