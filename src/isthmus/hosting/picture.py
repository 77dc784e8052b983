"""Draws a plan as SVG: who reaches which endpoint, self-contained, light or dark as one likes it.

Each place has a rail. A gate has one line across, with a dot on every rail from which it is
reached; where the allowed CIDR blocks hold there is a wall with a gap on the way in. Where things
are is picture_layout.py's business, colours are in picture_style.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.hosting.model import PublishPlan, Viewpoint
from isthmus.hosting.picture_layout import (
    CARD_X,
    CHIP_HEIGHT,
    MARGIN,
    RIGHT,
    TEXT_SIZE,
    WIDTH,
    Box,
    Card,
    Head,
    Layout,
    Line,
    layout,
    rail_x,
)
from isthmus.hosting.picture_style import BRICKS, KIND, STYLE
from isthmus.hosting.picture_view import Gate, Hold, Sign, View, view
from isthmus.text.svg import circle, group, num, path, rect, tag, text, wrap

_WALL, _HOLE, _PIECE = 12.0, 6.0, 16.0
_ROW = 17.0


def svg(plan: PublishPlan) -> str:
    """Draw the endpoint visibility of a plan; of one with errors, the errors."""
    seen = view(plan)
    placed = layout(seen)
    notes, height = _notes(seen, placed.bottom + 8)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {num(WIDTH)} {num(height)}"'
        f' width="{num(WIDTH)}" height="{num(height)}" role="img" aria-labelledby="title about">',
        tag("title", f"{seen.name}: {seen.title}", id="title"),
        tag("desc", _about(seen), id="about"),
        f"<style>\n{STYLE}</style>",
        f"<defs>\n{BRICKS}\n</defs>",
        rect("page", 0, 0, WIDTH, height),
        *(part for line in placed.titles for part in _line(line)),
        *_drawn(placed),
        *notes,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _about(seen: View) -> str:
    """Say the picture in words."""
    if seen.errors:
        return f"There is no plan: {'; '.join(seen.errors)}."
    return " ".join(f"{_gate_about(gate)}." for gate in seen.gates)


def _gate_about(gate: Gate) -> str:
    what = ", ".join(f"{each.service} at {each.address} ({each.by})" for each in gate.items)
    by = f" through {gate.through}" if gate.through else ""
    places = ", ".join(place.value for place in Viewpoint if place in gate.seen)
    hold = f"; {gate.hold.value}" if gate.hold.value else ""
    return f"{what}{by}: seen from {places}{hold}"


def _drawn(placed: Layout) -> Iterator[str]:
    for head in placed.heads:
        kind = "area inner" if head.stand.place is Viewpoint.SAME_CLUSTER else "area"
        yield group("place", head.stand.place.value)
        yield rect(kind, head.box.x, head.box.y, head.box.width, head.box.height, rx=12)
        yield from _written(head.box)
        yield "</g>"
    for head in placed.heads:
        yield from _rail(head, placed)
    for card in placed.cards:
        yield from _way_in(card)
        yield from _card(card)
    for head in placed.heads:
        if head.stand.reaches:
            yield circle(f"dot {KIND[head.stand.place]}", rail_x(head.stand.place), head.y, 6)
    if placed.errors is not None:
        box = placed.errors
        yield group("errors", "errors")
        yield rect("card", box.x, box.y, box.width, box.height, rx=10)
        yield from _written(box)
        yield "</g>"


def _rail(head: Head, placed: Layout) -> Iterator[str]:
    """Draw a rail down to the last gate that is reached from there."""
    place = head.stand.place
    ends = [card.y for card in placed.cards if place in card.gate.seen]
    if ends:
        data = f"M{num(rail_x(place))} {num(head.y)}V{num(max(ends))}"
        yield path(f"rail {KIND[place]}", data)


def _way_in(card: Card) -> Iterator[str]:
    """Draw the line across, its dots, and the wall that it goes through."""
    farthest, y = card.gate.farthest, card.y
    kind = KIND[farthest]
    yield path(f"bar {kind}", f"M{num(rail_x(farthest))} {num(y)}H{num(CARD_X - 8)}")
    yield path(f"head {kind}", f"M{num(CARD_X - 1)} {num(y)}l-9 -5v10z")
    for place in Viewpoint:
        if place in card.gate.seen:
            yield circle("ring", rail_x(place), y, 6.5)
            yield circle(f"dot {KIND[place]}", rail_x(place), y, 4.5)
    if card.gate.hold is Hold.HELD:
        yield from _wall(y)


def _wall(y: float) -> Iterator[str]:
    """Draw a wall before the card, with a gap for the line: nobody is behind it."""
    x = CARD_X - _WALL
    for top in (y - _HOLE - _PIECE, y + _HOLE):
        yield rect("wall", x, top, _WALL, _PIECE, rx=1)


def _card(card: Card) -> Iterator[str]:
    box = card.box
    yield group("gate", ", ".join(item.service for item in card.gate.items))
    yield rect("card", box.x, box.y, box.width, box.height, rx=10)
    yield rect(f"side {KIND[card.gate.farthest]}", box.x, box.y + 8, 4, box.height - 16, rx=2)
    for y in card.rules:
        yield path("rule", f"M{num(box.x + 14)} {num(y)}H{num(box.x + box.width - 12)}")
    yield from _written(box)
    yield "</g>"


def _written(box: Box) -> Iterator[str]:
    for line in box.lines:
        yield from _line(line)


def _line(line: Line) -> Iterator[str]:
    if not line.chip:
        yield text(line.x, line.y, line.text, line.size, line.kind)
        return
    width, round_ = line.width + 16, CHIP_HEIGHT / 2
    yield rect(line.chip, line.x - 8, line.y - 13.5, width, CHIP_HEIGHT, rx=round_)
    middle = line.x + line.width / 2
    yield text(middle, line.y, line.text, line.size, line.kind, anchor="middle")


def _notes(seen: View, y: float) -> tuple[list[str], float]:
    """Draw what the signs mean, and what else is to be said; returns where that ends."""
    drawn: list[str] = []
    x = MARGIN + 30
    for sign, note in seen.notes:
        y += 5
        drawn += _sign(sign, MARGIN + 11, y + 12)
        for part in wrap(note, RIGHT - x, TEXT_SIZE):
            y += _ROW
            drawn.append(text(x, y, part, TEXT_SIZE, "faint"))
    return drawn, y + MARGIN + 4


def _sign(sign: Sign, x: float, y: float) -> Iterator[str]:
    match sign:
        case Sign.DOT:
            yield path("bar own", f"M{num(x - 11)} {num(y)}h22")
            yield circle("ring", x, y, 6.5)
            yield circle("dot own", x, y, 4.5)
        case Sign.WALL:
            yield rect("wall", x - _WALL / 2, y - 7, _WALL, 14, rx=1)
        case Sign.ALARM:
            yield circle("alarm", x, y, 7.5)
            yield text(x, y + 4, "!", 11, "bang", anchor="middle")
        case Sign.NONE:
            pass
