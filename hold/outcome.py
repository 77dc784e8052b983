"""The result of a scenario: figures, goals for some of them, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure. ``held`` is None if there is no goal.

    ``timed`` figures are of time or memory and depend on the machine's load; the others are counts,
    which are right or wrong on any machine.
    """

    name: str
    value: float | str
    unit: str = ""
    goal: str = ""
    held: bool | None = None
    timed: bool = False

    @property
    def shown(self) -> str:
        """The value as text."""
        if isinstance(self.value, str):
            return self.value
        number = float(self.value)
        if number.is_integer() and not self.timed:
            return f"{number:,.0f}"
        return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


@dataclass(slots=True)
class Outcome:
    """The figures of one scenario, in order."""

    letter: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """The verdict; a scenario without any goal was left out and did not hold."""
        if self.missed():
            return "NOT held"
        return "held" if any(it.held for it in self.figures) else "left out"

    def missed(self) -> list[str]:
        """The missed goals, as text."""
        return [
            f"{it.name}: {it.shown} {it.unit}".rstrip() + f", goal {it.goal}"
            for it in self.figures
            if it.held is False
        ]

    def tell(self, name: str, value: float | str, unit: str = "") -> None:
        """Add a figure without a goal."""
        self.figures.append(Figure(name=name, value=value, unit=unit))

    def time(self, name: str, value: float, unit: str, at_most: float | None = None) -> None:
        """Add a figure of time, memory or a share, with an optional upper bound."""
        goal = "" if at_most is None else f"≤ {at_most:g}"
        held = None if at_most is None else value <= at_most
        self.figures.append(
            Figure(name=name, value=value, unit=unit, goal=goal, held=held, timed=True)
        )

    def load(self, name: str, value: float, at_least: float, unit: str = "") -> None:
        """Add the amount of load; the goal is a lower bound, because less load proves less."""
        goal, held = f"≥ {at_least:,g}", value >= at_least
        self.figures.append(
            Figure(name=name, value=value, unit=unit, goal=goal, held=held, timed=True)
        )

    def count(self, name: str, value: int, exactly: int, unit: str = "") -> None:
        """Add a count with its exact expected value."""
        self.figures.append(
            Figure(name=name, value=value, unit=unit, goal=f"{exactly:,}", held=value == exactly)
        )

    def as_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        figures = [
            {name: getattr(it, name) for name in ("name", "value", "unit", "goal", "held", "timed")}
            for it in self.figures
        ]
        return {
            "scenario": self.letter,
            "title": self.title,
            "verdict": self.verdict,
            "seconds": round(self.seconds),
            "figures": figures,
            "notes": self.notes,
        }
