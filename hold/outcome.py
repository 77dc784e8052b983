"""What a scenario found: figures, the goals that some are held to, and a verdict of them all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One thing that was seen. ``held`` is None where there is no goal.

    ``timed`` figures are of time or of memory, which a busy machine changes; the others are counts
    that are right or wrong on any machine.
    """

    name: str
    value: float | str
    unit: str = ""
    goal: str = ""
    held: bool | None = None
    timed: bool = False

    @property
    def shown(self) -> str:
        """The value as people read it."""
        if isinstance(self.value, str):
            return self.value
        number = float(self.value)
        if number.is_integer() and not self.timed:
            return f"{number:,.0f}"
        return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


@dataclass(slots=True)
class Outcome:
    """The figures of one scenario, in the order in which they came."""

    letter: str
    title: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """What it comes to; a scenario that looked at no goal has not held, it was left out."""
        if self.missed():
            return "NOT held"
        return "held" if any(it.held for it in self.figures) else "left out"

    def missed(self) -> list[str]:
        """Say which goals were not reached."""
        return [
            f"{it.name}: {it.shown} {it.unit}".rstrip() + f", goal {it.goal}"
            for it in self.figures
            if it.held is False
        ]

    def tell(self, name: str, value: float | str, unit: str = "") -> None:
        """Add a figure without a goal."""
        self.figures.append(Figure(name=name, value=value, unit=unit))

    def time(self, name: str, value: float, unit: str, at_most: float | None = None) -> None:
        """Add a figure of time, memory or a share; it is to be ``at_most`` so much, if given."""
        goal = "" if at_most is None else f"≤ {at_most:g}"
        held = None if at_most is None else value <= at_most
        self.figures.append(
            Figure(name=name, value=value, unit=unit, goal=goal, held=held, timed=True)
        )

    def load(self, name: str, value: float, at_least: float, unit: str = "") -> None:
        """Add how much was done; less than was meant proves less, so that it is a goal."""
        goal, held = f"≥ {at_least:,g}", value >= at_least
        self.figures.append(
            Figure(name=name, value=value, unit=unit, goal=goal, held=held, timed=True)
        )

    def count(self, name: str, value: int, exactly: int, unit: str = "") -> None:
        """Add a count that is to be just so."""
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
