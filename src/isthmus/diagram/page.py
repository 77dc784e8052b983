"""The page of a diagram: the document, the style sheet, and walls of bricks.

Rules have literal colours, repeated for dark mode: not every viewer supports variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from isthmus.diagram.svg import num, rect, tag

SANS = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue','DejaVu Sans',sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"

#: A selector, its declarations, and those that differ in dark mode; empty if none.
StyleRule = tuple[str, str, str]

_LOOKS: tuple[StyleRule, ...] = (
    ("text", f"font-family: {SANS}; fill: #1f2733", "fill: #e6eaf0"),
    (".mono", f"font-family: {MONO}; fill: #3a4555; white-space: pre", "fill: #c0cad8"),
    (".name, .strong, .title", "font-weight: 600", ""),
    (".faint, .sub", "fill: #5b6778", "fill: #9aa6b8"),
    (".page", "fill: #f6f7f9", "fill: #12161c"),
    (".area", "fill: #eaeff6; stroke: #cbd5e3", "fill: #1a212b; stroke: #313c4b"),
    (".card", "fill: #ffffff; stroke: #d3dae4", "fill: #2a3442; stroke: #465468"),
    (".rule", "fill: none; stroke: #d3dae4", "stroke: #3a4657"),
    (".brick", "fill: #c98b6b", "fill: #b0714f"),
    (".mortar", "fill: #ecd9cc", "fill: #4a3328"),
    (".wall", "fill: url(#bricks); stroke: #a8694a", "stroke: #d29a78"),
    (".chip", "fill: #e8edf5", "fill: #3a4759"),
    (".running", "fill: #2f9e44", "fill: #40c057"),
    (".dead", "fill: none; stroke: #e03131; stroke-width: 2.5", "stroke: #ff6b6b"),
    (".waiting", "fill: none; stroke: #94a0b3; stroke-width: 1.5", "stroke: #8d99ac"),
    (".alarm", "fill: #f59f00; stroke: #ffffff", "stroke: #12161c"),
    (".bang", "fill: #1f2733; font-weight: 700", "fill: #12161c"),
    (".bad", "fill: #c92a2a; font-weight: 600", "fill: #ff8787"),
)


def style_sheet(more: Iterable[StyleRule] = ()) -> str:
    """Write the common rules of diagrams, and more: for light mode, then for dark mode."""
    rules = tuple(chain(_LOOKS, more))
    day = "".join(f"{selector} {{ {by_day}; }}\n" for selector, by_day, _ in rules)
    night = "".join(f"  {selector} {{ {dark}; }}\n" for selector, _, dark in rules if dark)
    return f"{day}@media (prefers-color-scheme: dark) {{\n{night}}}\n"


def bricks(width: float, height: float, joint: float) -> str:
    """Write the pattern of a wall, for bricks of a size."""
    half, across, up = joint / 2, width + joint, height + joint
    places = ((half, half), (half - across / 2, half + up), (half + across / 2, half + up))
    return "\n".join(
        (
            f'<pattern id="bricks" width="{num(across)}" height="{num(2 * up)}"'
            ' patternUnits="userSpaceOnUse">',
            rect("mortar", 0, 0, across, 2 * up),
            *(rect("brick", x, y, width, height, rx=joint * 0.7) for x, y in places),
            "</pattern>",
        )
    )


def wall(
    x: float, width: float, ends: tuple[float, float], holes: Iterable[tuple[float, float]]
) -> Iterator[str]:
    """Draw a wall from top to bottom, in pieces between its holes, which come in order."""
    y, bottom = ends
    for upper, lower in (*holes, (bottom, bottom)):
        if upper - y > 1:
            yield rect("wall", x, y, width, upper - y, rx=1.5)
        y = max(y, lower)


def document(
    size: tuple[float, float],
    *,
    title: str,
    about: str,
    style: str,
    pattern: str,
    parts: Iterable[str],
) -> str:
    """Write a self-contained document; ``about`` describes the picture in words."""
    width, height = map(num, size)
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img" aria-labelledby="title about">',
        tag("title", title, id="title"),
        tag("desc", about, id="about"),
        f"<style>\n{style}</style>",
        f"<defs>\n{pattern}\n</defs>",
        rect("page", 0, 0, *size),
        *parts,
        "</svg>",
    )
    return "\n".join(lines) + "\n"
