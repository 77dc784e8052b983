"""Writes the elements of an SVG document; every text and attribute is escaped here."""

from __future__ import annotations

from html import escape

from isthmus.lab.picture import Mark
from isthmus.lab.picture_style import TUNNEL_COLORS


def num(value: float) -> str:
    """Write a coordinate, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")


def tag(name: str, content: str, **attributes: str) -> str:
    """Write an element with a text in it; attributes are in the order given."""
    written = "".join(f' {key}="{escape(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>{escape(content)}</{name}>" if content else f"<{name}{written}/>"


def group(kind: str, name: str) -> str:
    """Write the beginning of a group that bears a name."""
    return f'<g class="{escape(kind)}" data-name="{escape(name)}">'


def rect(
    kind: str, x: float, y: float, width: float, height: float, *, rx: float = 0, fill: str = ""
) -> str:
    """Write a rectangle."""
    attributes = {"x": num(x), "y": num(y), "width": num(width), "height": num(height)}
    if kind:
        attributes = {"class": kind, **attributes}
    if rx:
        attributes["rx"] = num(rx)
    if fill:
        attributes["fill"] = fill
    return tag("rect", "", **attributes)


def circle(kind: str, x: float, y: float, radius: float) -> str:
    """Write a circle."""
    return tag("circle", "", **{"class": kind, "cx": num(x), "cy": num(y), "r": num(radius)})


def path(kind: str, data: str, **attributes: str) -> str:
    """Write a path."""
    return tag("path", "", **{"class": kind, "d": data, **attributes})


def text(
    x: float, y: float, content: str, size: float, kind: str = "text", *, anchor: str = ""
) -> str:
    """Write a text by the left end of its base line; nothing for an empty one."""
    attributes = {"class": kind, "x": num(x), "y": num(y), "font-size": num(size)}
    if anchor:
        attributes["text-anchor"] = anchor
    return tag("text", content, **attributes) if content else ""


def color(number: int) -> str:
    """A tunnel's colour."""
    return TUNNEL_COLORS[number % len(TUNNEL_COLORS)]


def mark(one: Mark, x: float, y: float) -> str:
    """Draw how a process is."""
    if one is Mark.DEAD:
        cross = f"M{num(x - 4)} {num(y - 4)}l8 8m0 -8l-8 8"
        return path("cross", cross, stroke="#e03131", **{"stroke-width": "2.5"})
    return circle(one.name.lower(), x, y, 4.5)
