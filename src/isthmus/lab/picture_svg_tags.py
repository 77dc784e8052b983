"""What only the picture of a lab has among the elements of SVG; the others are isthmus/svg.py's."""

from __future__ import annotations

from isthmus.lab.picture import ProcessMark
from isthmus.lab.picture_style import TUNNEL_COLORS
from isthmus.text.svg import circle, num, path


def color(number: int) -> str:
    """A tunnel's colour."""
    return TUNNEL_COLORS[number % len(TUNNEL_COLORS)]


def mark(one: ProcessMark, x: float, y: float) -> str:
    """Draw how a process is."""
    if one is ProcessMark.DEAD:
        cross = f"M{num(x - 4)} {num(y - 4)}l8 8m0 -8l-8 8"
        return path("cross", cross, stroke="#e03131", **{"stroke-width": "2.5"})
    return circle(one.name.lower(), x, y, 4.5)
