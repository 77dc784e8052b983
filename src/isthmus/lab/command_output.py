"""What ``isthmus lab`` prints: progress while it works, tables on a terminal, JSON for machines."""

from __future__ import annotations

import contextlib
import io
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from isthmus.frame.cli.tables import TEXT, console, has_colours, print_data
from isthmus.lab import catalog, state
from isthmus.lab.kubernetes.programs import NotBuiltError
from isthmus.lab.picture import LabPicture
from isthmus.lab.picture_text import draw
from isthmus.lab.play import Display, RunReport
from isthmus.lab.stage import LabError, ToldToStopError
from isthmus.lab.state import Lab
from isthmus.lab.steps import StepResult
from isthmus.lab.topology import Topology
from isthmus.text.units import took

if TYPE_CHECKING:
    from rich.status import Status

_LEAST_WIDTH = 60


class _Lines:
    """Progress for a pipe or a log: a line for every event."""

    def doing(self, what: str) -> None:
        click.echo(f"lab: {what}", err=True)

    def say(self, sentence: str) -> None:
        click.echo(f"lab: {sentence}", err=True)

    def seen(self, number: int, of: int, seen: StepResult) -> None:
        mark = "ok  " if seen.held else "FAIL"
        click.echo(f"lab: {mark} {number}/{of} {_sentence(seen)}", err=True)


class _Spinner:
    """Progress for a terminal: one changing line, and a line for each finished step."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def doing(self, what: str) -> None:
        self._status.update(what)

    def say(self, sentence: str) -> None:
        self._status.console.print(sentence, markup=False)

    def seen(self, number: int, of: int, seen: StepResult) -> None:
        if not seen.held:
            self._status.console.print(f"✗ {number}/{of} {_sentence(seen)}", markup=False)


def _sentence(seen: StepResult) -> str:
    through = f" through {seen.through}" if seen.through not in ("", "direct") else ""
    wanted = "" if seen.held else f" (expected {seen.expected})"
    return f"{seen.source} {seen.what}{through}: {seen.seen}{wanted}".strip()


@contextlib.contextmanager
def display() -> Iterator[Display]:
    """Show progress on standard error during the block."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console

    with Console(stderr=True).status("beginning") as status:
        yield _Spinner(status)


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Turn an exception that ends a lab early into a message and an exit code."""
    try:
        yield
    except (LabError, NotBuiltError) as exc:
        raise click.ClickException(str(exc)) from exc
    except ToldToStopError as exc:
        raise click.Abort from exc


def show_report(report: RunReport, output: str) -> None:
    if output != TEXT:
        print_data(_report(report), output)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "From", "What", "Through", "Expected", "Seen", "", box=None, pad_edge=False)
    table.columns[6].justify = "right"
    for column in table.columns:
        column.overflow = "fold"
    good, bad = ("✓", "✗") if _shows_all() else ("ok", "FAIL")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the verdict matters more than its quotes
    for seen in report.steps:
        table.add_row(
            Text(good, "green") if seen.held else Text(bad, "bold red"),
            Text(seen.source),
            Text(seen.what),
            Text(seen.through),
            Text(seen.expected),
            Text(seen.seen, "" if seen.held else "red"),
            Text(took(seen.took_s)),
        )
    if sys.stdout is None:
        return  # standard output is closed: the exit code tells the verdict
    console = Console() if sys.stdout.isatty() else Console(width=160)
    console.print(table)
    click.echo(_verdict(report))


def _shows_all() -> bool:
    """Whether the output can show any character."""
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    return encoding in ("utf8", "utf16")


def _verdict(report: RunReport) -> str:
    held = sum(seen.held for seen in report.steps[: report.of])
    kept = f"; lab {report.token} is still up" if report.kept else ""
    return (
        f"{report.topology}: {held} of {report.of} held"
        f" ({report.firewall}, up in {took(report.up_s)}, {took(report.took_s)} in all){kept}"
    )


def _report(report: RunReport) -> dict[str, object]:
    return {
        "topology": report.topology,
        "lab": report.token,
        "firewall": report.firewall,
        "held": report.held,
        "kept": report.kept,
        "upSeconds": round(report.up_s, 3),
        "tookSeconds": round(report.took_s, 3),
        "stepsInAll": report.of,
        "steps": [
            {
                "from": seen.source,
                "what": seen.what,
                "through": seen.through,
                "expected": seen.expected,
                "seen": seen.seen,
                "held": seen.held,
                "tookSeconds": round(seen.took_s, 3),
            }
            for seen in report.steps
        ],
    }


def show_up(lab: Lab, topology: Topology) -> None:
    """Print what is up, and the commands for it."""
    hosts = ", ".join(host.name for host in topology.hosts)
    click.echo(f"lab {lab.token} is up: {topology.title}")
    click.echo(f"hosts: {hosts}; files: {lab.directory}")
    if topology.door is not None:
        click.echo(f"export KUBECONFIG={lab.directory / state.KUBECONFIG}")
    click.echo("isthmus lab show | shell HOST | down")


def show_list(output: str) -> None:
    topologies = catalog.summaries()
    there = state.labs()
    if output != TEXT:
        found = {
            "topologies": [
                {"name": one.name, "title": one.title, "needs": list(one.needs)}
                for one in topologies
            ],
            "labs": [
                {"id": lab.token, "topology": lab.topology, "kept": lab.kept} for lab in there
            ],
        }
        print_data(found, output)
        return
    from rich.table import Table

    table = Table("Topology", "What it is", "Needs", box=None, pad_edge=False)
    for one in topologies:
        table.add_row(one.name, one.title, ", ".join(one.needs))
    console().print(table)
    if not there:
        return
    table = Table("\nLab", "\nTopology", box=None, pad_edge=False)
    for lab in there:
        table.add_row(lab.token, f"{lab.topology}{' (its command was killed)' * lab.left_over}")
    console().print(table)


def show_picture(picture: LabPicture) -> None:
    """Draw on standard output in the terminal's width."""
    width = max(_LEAST_WIDTH, shutil.get_terminal_size((100, 24)).columns)
    click.echo(draw(picture, width=width, color=has_colours(), ascii=not _shows_all()))
