"""The ways of lines in an SVG picture: from a card, through a slot in the wall, to another card."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.lab.picture_layout import WALL, Group, Layout, port_y
from isthmus.lab.picture_wires import Wire
from isthmus.text.svg import num

SPREAD = 4.0


class Route:
    """The way of a line: from a card, through its slot, to another card."""

    def __init__(self, placed: Layout, through: Group, wire: Wire, y: float) -> None:
        left, right = placed.columns[wire.left.column], placed.columns[wire.right.column]
        self.wire = wire
        self.x0, self.x1 = left.card(wire.left.host).box.right, right.card(wire.right.host).box.x
        self.y0 = port_y(left, wire.left.host, wire.left.port)
        self.y1 = port_y(right, wire.right.host, wire.right.port)
        self.slot = placed.gutters[through.left].slot
        self.y = y
        self.inside = through.left == through.right
        far = placed.gutters[through.left if self.inside else through.right - 1]
        self.end = self.slot if far.wall is None or self.inside else far.wall + WALL

    @property
    def ends(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Where it meets its cards."""
        return (self.x0, self.y0), (self.x0 if self.inside else self.x1, self.y1)

    def to_path(self, aside: float = 0.0) -> str:
        """The path's data, or that of a line beside it."""
        y0, y1, y = self.y0 + aside, self.y1 + aside, self.y + aside
        if self.inside:
            x, y1 = self.slot - 4 + aside, self.y1 - aside
            return f"M{_at(self.x0, y0)}C{_at(x, y0)} {_at(x, y1)} {_at(self.x0, y1)}"
        bend0, bend1 = (self.slot - self.x0) * 0.55, (self.x1 - self.end) * 0.55
        return (
            f"M{_at(self.x0, y0)}"
            f"C{_at(self.x0 + bend0, y0)} {_at(self.slot - bend0, y)} {_at(self.slot, y)}"
            f"L{_at(self.end, y)}"
            f"C{_at(self.end + bend1, y)} {_at(self.x1 - bend1, y1)} {_at(self.x1, y1)}"
        )


def _at(x: float, y: float) -> str:
    return f"{num(x)} {num(y)}"


def spread(routes: Sequence[Route]) -> None:
    """Let thin lines that go to one port end beside each other, in the order they come in."""
    thin = sorted((one for one in routes if one.wire.link is None), key=lambda one: one.y)
    for first in (True, False):
        ports: dict[tuple[float, float], list[Route]] = {}
        for route in thin:
            ports.setdefault(route.ends[0 if first else 1], []).append(route)
        for together in ports.values():
            for at, route in enumerate(together):
                aside = (at - (len(together) - 1) / 2) * SPREAD
                if first:
                    route.y0 += aside
                else:
                    route.y1 += aside
