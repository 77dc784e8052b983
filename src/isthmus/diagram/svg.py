"""Writes the elements of an SVG document, escaped; no fonts are needed to place a text.

Rows of texts are cards.py, colours are page.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

#: Average widths in ems; of DejaVu, which is among the widest that a viewer may have.
_EM = {"title": 0.68, "name": 0.68, "strong": 0.68, "mono": 0.605}
_EM_TEXT = 0.58
# XML 1.0 §2.2 has no way at all to write these.
_UNWRITABLE = dict.fromkeys(
    (*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF), "\ufffd"
)


def text_width(content: str, size: float, kind: str = "text") -> float:
    """Estimate how wide a text is, generously; the first word of ``kind`` says what it is."""
    return len(content) * size * _EM.get(kind.split()[0], _EM_TEXT)


def wrap(content: str, room: float, size: float, kind: str = "text") -> Iterator[str]:
    """Break a text into lines: after a blank, or a dot far enough right, or else anywhere."""
    most = max(int(room / text_width("x", size, kind)), 1)
    while len(content) > most:
        at = content.rfind(" ", 1, most + 1) + 1
        at = at or content.rfind(".", most // 2, most) + 1 or most
        yield content[:at].rstrip(" ")
        content = content[at:]
    yield content


def num(value: float) -> str:
    """Write a coordinate, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")


def tag(name: str, content: str, **attributes: str) -> str:
    """Write an element with a text in it; attributes are in the order given."""
    written = "".join(f' {key}="{_escaped(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>{_escaped(content)}</{name}>" if content else f"<{name}{written}/>"


def group(kind: str, name: str) -> str:
    """Write the beginning of a group that bears a name."""
    return f'<g class="{_escaped(kind)}" data-name="{_escaped(name)}">'


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
    """Write a text by the left end of its base line, or the end that ``anchor`` names."""
    attributes = {"class": kind, "x": num(x), "y": num(y), "font-size": num(size)}
    if anchor:
        attributes["text-anchor"] = anchor
    return tag("text", content, **attributes) if content else ""


def _escaped(content: str) -> str:
    return escape(content.translate(_UNWRITABLE))
