"""``make hold``: plays the scenarios one after the other, with figures and a verdict for each.

docs/hold.md describes the scenarios and how to read the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Self

from machine import busy_share, machine
from processes import BenchError
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hold import (
    cancelled,
    churn,
    closing,
    dead_agents,
    draining,
    killed_server,
    rotation,
    source_hash,
    stalled,
    starved,
)
from hold.network import own_network
from hold.outcome import Outcome
from hold.playing import play

SCENARIOS: dict[str, ModuleType] = {
    module.LETTER: module
    for module in (
        stalled,
        dead_agents,
        cancelled,
        draining,
        source_hash,
        starved,
        rotation,
        closing,
        killed_server,
        churn,
    )
}
_MIN_COLUMNS = 120
_STYLES = {"held": "green", "NOT held": "red", "left out": "yellow"}
#: Time limits of one scenario, and of all. On two idle cores a scenario takes half its limit, and
#: all of them a quarter of an hour. With --set the user determines the duration.
SCENARIO_S, RUN_S, SET_S = 300.0, 1080.0, 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The parsed command line."""

    letters: tuple[str, ...]
    quick: bool
    numbers: dict[str, object]
    json: Path | None
    check: bool


def parse(arguments: Sequence[str]) -> Asked:
    """Parse the command line; argparse ends the program on an error."""
    parser = argparse.ArgumentParser(prog="python -m hold.run", description=__doc__)
    letters = "".join(SCENARIOS)
    add = parser.add_argument
    add("--only", type=_letters, default=tuple(SCENARIOS), help=f"some of {','.join(letters)}")
    add("--quick", action="store_true", help="smaller numbers: for development")
    add("--set", type=_setting, action="append", default=[], metavar="NAME=VALUE",
        help="another number of one scenario, as its Numbers name it; repeat it")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write every figure there as well")
    add("--check", action="store_true", help="exit with 1 if a goal is missed")
    args = parser.parse_args(arguments)
    if args.set and len(args.only) != 1:
        parser.error("--set goes with one scenario: --only")
    known = {field.name for field in fields(SCENARIOS[args.only[0]].Numbers)}
    if unknown := {name for name, _ in args.set} - known:
        parser.error(f"--set {min(unknown)}: choose from {', '.join(sorted(known))}")
    return Asked(
        letters=args.only,
        quick=args.quick,
        numbers=dict(args.set),
        json=args.json,
        check=args.check,
    )


def _setting(text: str) -> tuple[str, object]:
    name, _, value = text.partition("=")
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError) as exc:
        raise argparse.ArgumentTypeError(
            f"not NAME=VALUE, with a number or a list: {text}"
        ) from exc


def _letters(text: str) -> tuple[str, ...]:
    chosen = tuple(filter(None, text.upper().split(",")))
    if not chosen or set(chosen) - set(SCENARIOS):
        raise argparse.ArgumentTypeError(f"choose from {','.join(SCENARIOS)}")
    return chosen


def run(asked: Asked, console: Console) -> int:
    """Play the requested scenarios; returns the exit code."""
    began = time.monotonic()
    busy = busy_share(0.5)
    if busy > 0.1:
        console.print(f"other programs use {busy:.0%} of this machine: times will be worse")
    alone = own_network()
    if not alone:
        console.print("no separate network namespace (not root): parts of B and I are left out")
    outcomes = []
    for number, letter in enumerate(asked.letters):
        module = SCENARIOS[letter]
        numbers = replace(module.QUICK if asked.quick else module.FULL, **asked.numbers)
        limit_s = min(SCENARIO_S, RUN_S - (time.monotonic() - began))
        if asked.numbers:
            limit_s = SET_S
        with Progress(console, f"{number + 1} of {len(asked.letters)}", began) as progress:
            outcome = play(module, numbers, progress.say, alone=alone, limit_s=limit_s)
        outcomes.append(outcome)
        draw(outcome, console)
    took = time.monotonic() - began
    missed = [f"{it.letter}: {what}" for it in outcomes for what in it.missed()]
    console.print(f"{took:.0f} s in all; {machine()}")
    for it in outcomes:
        style = _STYLES[it.verdict]
        console.print(f"{it.letter}: [{style}]{it.verdict}[/], {it.seconds:.0f} s", highlight=False)
    for what in missed:
        console.print(f"NOT held: {what}", style="red", markup=False, highlight=False)
    if asked.json:
        found = {
            "quick": asked.quick,
            "busyShare": round(busy, 2),
            "machine": machine(),
            "seconds": round(took),
            "scenarios": [it.as_json() for it in outcomes],
        }
        asked.json.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return 1 if missed and asked.check else 0


class Progress:
    """Shows progress: in place on a terminal, otherwise one line per message."""

    def __init__(self, console: Console, which: str, began: float) -> None:
        self._console, self._which, self._began = console, which, began
        self._status = console.status("") if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Show a message, with the progress of the run."""
        line = f"({self._which}, {time.monotonic() - self._began:.0f} s) {text}"
        if self._status is not None:
            self._status.update(line)
        else:
            self._console.print(line, style="dim", markup=False, highlight=False)


def draw(outcome: Outcome, console: Console) -> None:
    """Print the figures of a scenario, and the verdict."""
    verdict = f"[{_STYLES[outcome.verdict]}]{outcome.verdict}[/]"
    table = Table(title=f"{outcome.letter}: {outcome.title}: {verdict}", title_justify="left")
    table.add_column("figure")
    table.add_column("", justify="right")
    table.add_column("goal", justify="right")
    table.add_column("")
    for it in outcome.figures:
        held = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[it.held]
        table.add_row(it.name, f"{escape(it.shown)} [dim]{it.unit}[/]".rstrip(), it.goal, held)
    console.print(table if outcome.figures else f"{outcome.letter}: {outcome.title}: {verdict}")
    for note in outcome.notes:
        console.print(f"  {note}", markup=False, highlight=False)


def _interrupt_here(number: int, frame: FrameType | None, *, ours: int) -> None:
    # pyroute2 forks and ends its child by SIGTERM, which must not run this process's cleanup.
    if os.getpid() != ours:
        os._exit(128 + number)
    signal.raise_signal(signal.SIGINT)


def main() -> int:
    """Run, and clean up however the run ends."""
    asked = parse(sys.argv[1:])
    console = Console()
    if console.width < _MIN_COLUMNS and not console.is_terminal:
        console = Console(width=_MIN_COLUMNS)
    # asyncio turns an interrupt into a cancelled scenario. A background job starts with SIGINT
    # ignored, so SIGTERM does the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, partial(_interrupt_here, ours=os.getpid()))
    try:
        return run(asked, console)
    except BenchError as exc:
        sys.stderr.write(f"hold: {exc}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("hold: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
