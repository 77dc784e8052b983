"""Turns samples into medians, quartiles and paired ratios, and draws the table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from figures import FIGURES, Against, Figure
from measure import Samples
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Spread:
    """A median between its quartiles."""

    median: float
    q1: float
    q3: float


def spread(values: Sequence[float]) -> Spread | None:
    """Median and quartiles; None for no values."""
    if not values:
        return None
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, q1, q3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure: the values of each topology, and the comparison."""

    figure: Figure
    values: dict[str, Spread]
    ratio: Spread | None
    reached: bool | None


def rows(
    samples: Samples,
    subject: str,
    *,
    judge: bool,
    baseline: str = "haproxy",
    figures: Sequence[Figure] = FIGURES,
) -> list[Row]:
    """A row for every figure that was measured; goals are judged if ``judge``."""
    found = []
    for figure in figures:
        by_name = {
            name: [sample[figure.field] for sample in taken]
            for name, taken in samples.get(figure.load, {}).items()
        }
        values = {name: s for name, taken in by_name.items() if (s := spread(taken))}
        if values:
            # Paired: the ratios within each round, then their median.
            pairs = zip(by_name.get(subject, []), by_name.get(baseline, []), strict=False)
            ratio = spread([ours / theirs for ours, theirs in pairs if theirs > 0])
            reached = _reached(figure, values.get(subject), ratio) if judge else None
            found.append(Row(figure=figure, values=values, ratio=ratio, reached=reached))
    return found


def _reached(figure: Figure, own: Spread | None, ratio: Spread | None) -> bool | None:
    if figure.goal is None:
        return None
    judged = ratio if figure.goal.against is Against.BASELINE else own
    return None if judged is None else figure.goal.reached(judged.median)


def draw(
    found: Sequence[Row],
    names: Sequence[str],
    subject: str,
    console: Console,
    *,
    baseline: str = "haproxy",
) -> None:
    """Print the table: median (quartiles) for each topology, ratio, goal."""
    table = Table(title=f"{subject}: median (quartiles)", title_justify="left")
    table.add_column("figure", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    compared = any(row.ratio for row in found) and subject != baseline
    judged = any(row.reached is not None for row in found)
    if compared:
        table.add_column(f"{subject} / {baseline}", justify="right")
    if judged:
        table.add_column("goal", justify="right")
        table.add_column("", justify="left")
    previous = ""
    for row in found:
        if previous and row.figure.load != previous:
            table.add_section()
        previous = row.figure.load
        cells = [_cell(row.values.get(name)) for name in names]
        if compared:
            cells.append(_cell(row.ratio))
        verdict = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[row.reached]
        title = f"{row.figure.title} [dim]{row.figure.unit}[/]"
        goal = "" if row.figure.goal is None else str(row.figure.goal)
        table.add_row(title, *cells, *([goal, verdict] if judged else []))
    console.print(table)


def _cell(value: Spread | None) -> str:
    if value is None:
        return "–"
    median = _short(value.median)
    if value.q1 == value.q3:
        return median
    return f"{median} [dim]({_short(value.q1)}–{_short(value.q3)})[/]"


def _short(number: float) -> str:
    size = abs(number)
    if size >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if size >= 10 else f"{number:.2f}"


def as_json(found: Sequence[Row], samples: Samples) -> dict[str, Any]:
    """Everything in the table, and every sample that it was made from."""
    table = [
        {
            "load": row.figure.load,
            "field": row.figure.field,
            "title": row.figure.title,
            "unit": row.figure.unit,
            "values": {name: asdict(value) for name, value in row.values.items()},
            "ratio": None if row.ratio is None else asdict(row.ratio),
            "goal": None if row.figure.goal is None else str(row.figure.goal),
            "reached": row.reached,
        }
        for row in found
    ]
    return {"figures": table, "samples": samples}
