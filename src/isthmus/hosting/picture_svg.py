"""Draws a plan as SVG: who reaches which endpoint, narrow enough to fit on a phone.

Viewpoints are steps from the upper left, each with a rail that runs down to the endpoints it
reaches. Endpoints are cards in a column on the right; each card has one horizontal line, with a dot
on every rail from which it is reached. A wall with a gap marks allowed CIDR blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from isthmus.diagram.cards import TEXT_SIZE, Box, CardWriter, Label
from isthmus.diagram.page import StyleRule, bricks, document, style_sheet, wall
from isthmus.diagram.svg import circle, group, num, path, rect, text, wrap
from isthmus.hosting.model import PublishPlan, Viewpoint
from isthmus.hosting.picture import (
    CidrHold,
    EndpointGroup,
    EndpointText,
    NoteSign,
    PlanPicture,
    Standpoint,
    picture,
)

WIDTH = 420.0
MARGIN = 12.0
RIGHT = WIDTH - MARGIN
#: From the left edge of a viewpoint to its rail; the next viewpoint begins after the rail.
INTO, STEP = 14.0, 23.0
GAP, EDGE, PAD = 10.0, 8.0, 10.0
CARD_X, CARD_RIGHT = 114.0, RIGHT - 2 * EDGE
_WALL, _HOLE, _PIECE = 12.0, 6.0, 16.0
_NOTE_ROW = 17.0

# The frames around the cards, the second one inside the first.
_WITHIN: Mapping[Viewpoint, int] = {Viewpoint.MANAGEMENT: 0, Viewpoint.SAME_CLUSTER: 1}
_DEPTH: Mapping[Viewpoint, int] = {viewpoint: depth for depth, viewpoint in enumerate(Viewpoint)}

#: The CSS class of everything that belongs to a viewpoint.
KIND: Mapping[Viewpoint, str] = {
    Viewpoint.INTERNET: "net",
    Viewpoint.GUEST_VPC: "guest",
    Viewpoint.MANAGEMENT: "host",
    Viewpoint.SAME_CLUSTER: "own",
}
# For light and dark mode: distinguishable on both backgrounds, also with colour blindness.
_COLORS = {
    "net": ("#d9480f", "#ff922b"),
    "guest": ("#1971c2", "#4dabf7"),
    "host": ("#7d4cc9", "#b197fc"),
    "own": ("#5c6b7f", "#8d99ac"),
}
_LOOKS: tuple[StyleRule, ...] = (
    (".area.inner", "fill: #dfe7f3; stroke: #b9c6da", "fill: #202a38; stroke: #3b4a60"),
    (".rail, .bar", "fill: none; stroke-width: 2.5", ""),
    (".ring", "fill: #f6f7f9", "fill: #12161c"),
    (".chip.held", "fill: #f3e2d6", "fill: #4a3328"),
    (".chip.open", "fill: #ffe3a8", "fill: #5a4412"),
    (".text.held", "fill: #7a4524", "fill: #eebf9c"),
    (".text.open", "fill: #7a4a00", "fill: #ffd479"),
    *(
        (", ".join(f".{part}.{kind}" for part in parts), f"{what}: {day}", f"{what}: {night}")
        for kind, (day, night) in _COLORS.items()
        for parts, what in ((("rail", "bar"), "stroke"), (("dot", "head", "side"), "fill"))
    ),
)


def svg(plan: PublishPlan) -> str:
    """Draw the endpoint visibility of a plan, or its errors."""
    drawn = picture(plan)
    placed = _placed(drawn)
    notes, height = _notes(drawn, placed.bottom + 8)
    return document(
        (WIDTH, height),
        title=f"{drawn.name}: {drawn.title}",
        about=_about(drawn),
        style=style_sheet(_LOOKS),
        pattern=bricks(9, 3.5, 1),
        parts=(*_labels(placed.titles), *_drawn(placed), *notes),
    )


def _about(drawn: PlanPicture) -> str:
    if drawn.errors:
        return f"There is no plan: {'; '.join(drawn.errors)}."
    return " ".join(f"{_group_about(each)}." for each in drawn.groups)


def _group_about(each: EndpointGroup) -> str:
    what = ", ".join(f"{one.service} at {one.address} ({one.by})" for one in each.endpoints)
    by = f" through {each.through}" if each.through else ""
    places = ", ".join(one.value for one in Viewpoint if one in each.seen)
    hold = f"; {each.hold.value}" if each.hold.value else ""
    return f"{what}{by}: seen from {places}{hold}"


# Layout.


def rail_x(viewpoint: Viewpoint) -> float:
    """The x coordinate of a viewpoint's rail."""
    return _left_of(viewpoint) + INTO


def _left_of(viewpoint: Viewpoint) -> float:
    return MARGIN + STEP * _DEPTH[viewpoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """A viewpoint: its frame, and the start of its rail."""

    standpoint: Standpoint
    box: Box
    labels: list[Label]
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupCard:
    """Endpoints: their frame, the entry point, and the lines between them."""

    group: EndpointGroup
    box: Box
    labels: list[Label]
    y: float
    rules: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """The whole picture; ``bottom`` is where the viewpoints end and the notes begin."""

    titles: list[Label]
    heads: tuple[_Head, ...]
    cards: tuple[_GroupCard, ...]
    errors: tuple[Box, list[Label]] | None
    bottom: float


def _placed(drawn: PlanPicture) -> _Placed:
    titles = CardWriter(MARGIN, MARGIN - 8, right=RIGHT)
    titles.row(drawn.name, "title")
    titles.row(drawn.title, "sub")
    y = titles.y + 21
    heads: list[_Head] = []
    for standpoint in drawn.standpoints:
        heads.append(_head(standpoint, y))
        y = heads[-1].box.bottom + (0 if standpoint.viewpoint in _WITHIN else GAP)
    cards = []
    for each in drawn.groups:
        cards.append(_card(each, y))
        y = cards[-1].box.bottom + GAP
    errors = _errors(drawn.errors, y) if drawn.errors else None
    y = errors[0].bottom + GAP if errors else y
    grown = tuple(_grown(head, y) for head in heads)
    return _Placed(
        titles=titles.labels,
        heads=grown,
        cards=tuple(cards),
        errors=errors,
        bottom=max(head.box.bottom for head in grown),
    )


def _head(standpoint: Standpoint, y: float) -> _Head:
    left, rail = _left_of(standpoint.viewpoint), rail_x(standpoint.viewpoint)
    writer = CardWriter(rail + 14, y, right=CARD_RIGHT - PAD)
    writer.row(standpoint.name, "name")
    writer.row(standpoint.who, "faint")
    if standpoint.ranges:
        writer.row(" ".join(standpoint.ranges), "mono")
    box = Box(left, y, RIGHT - left, writer.bottom - y)
    return _Head(standpoint=standpoint, box=box, labels=writer.labels, y=y + 18)


def _grown(head: _Head, bottom: float) -> _Head:
    """The frame of a viewpoint around its contents."""
    inner = _WITHIN.get(head.standpoint.viewpoint)
    if inner is None:
        return head
    height = bottom + 2 + EDGE * (1 - inner) - head.box.y
    return replace(head, box=replace(head.box, width=head.box.width - EDGE * inner, height=height))


def _card(each: EndpointGroup, y: float) -> _GroupCard:
    writer = CardWriter(CARD_X + PAD + 3, y, right=CARD_RIGHT - PAD)
    rules = []
    if each.inside:
        writer.row("not published", "faint")
    elif each.through:
        writer.row(each.through, "strong")
        writer.row("one address, told apart by name", "faint")
        _hold(writer, each.hold)
    for before, endpoint in zip((None, *each.endpoints), each.endpoints, strict=False):
        same = before is not None and before.heading == endpoint.heading
        if not each.inside and not same and writer.labels:
            writer.y += 9
            rules.append(writer.y)
            writer.y += 2
        _endpoint(writer, endpoint, same=same)
    if not each.through:
        _hold(writer, each.hold)
    box = Box(CARD_X, y, CARD_RIGHT - CARD_X, writer.bottom - y)
    return _GroupCard(group=each, box=box, labels=writer.labels, y=y + 22, rules=tuple(rules))


def _hold(writer: CardWriter, hold: CidrHold) -> None:
    if hold is not CidrHold.NOT_ASKED:
        writer.chips((hold.value,), hold.name.lower())


def _endpoint(writer: CardWriter, endpoint: EndpointText, *, same: bool) -> None:
    """Write an endpoint; ``same``: it follows another one of its service."""
    if not endpoint.strategy:
        writer.row(endpoint.service, "strong")
        writer.row(endpoint.address, "mono")
        return
    if same:
        writer.y += 4
    else:
        writer.row(endpoint.service, "name")
        writer.chip_right(endpoint.strategy)
    writer.row(endpoint.address, "mono")
    writer.row(endpoint.by, "faint")


def _errors(errors: tuple[str, ...], y: float) -> tuple[Box, list[Label]]:
    writer = CardWriter(CARD_X + PAD, y, right=CARD_RIGHT - PAD)
    writer.row("There is no plan", "bad")
    for error in errors:
        writer.y += 4
        writer.row(error)
    return Box(CARD_X, y, CARD_RIGHT - CARD_X, writer.bottom - y), writer.labels


# Drawing.


def _labels(labels: list[Label]) -> Iterator[str]:
    for label in labels:
        yield from label.drawn()


def _framed(kind: str, box: Box, *, rx: float) -> str:
    return rect(kind, box.x, box.y, box.width, box.height, rx=rx)


def _drawn(placed: _Placed) -> Iterator[str]:
    for head in placed.heads:
        within = head.standpoint.viewpoint is Viewpoint.SAME_CLUSTER
        yield group("place", head.standpoint.viewpoint.value)
        yield _framed("area inner" if within else "area", head.box, rx=12)
        yield from _labels(head.labels)
        yield "</g>"
    for head in placed.heads:
        yield from _rail(head, placed)
    for card in placed.cards:
        yield from _way_in(card)
        yield from _card_drawn(card)
    for head in placed.heads:
        if head.standpoint.reaches:
            viewpoint = head.standpoint.viewpoint
            yield circle(f"dot {KIND[viewpoint]}", rail_x(viewpoint), head.y, 6)
    if placed.errors is not None:
        box, labels = placed.errors
        yield group("errors", "errors")
        yield _framed("card", box, rx=10)
        yield from _labels(labels)
        yield "</g>"


def _rail(head: _Head, placed: _Placed) -> Iterator[str]:
    """Draw a rail down to the last card that it reaches."""
    viewpoint = head.standpoint.viewpoint
    ends = [card.y for card in placed.cards if viewpoint in card.group.seen]
    if ends:
        data = f"M{num(rail_x(viewpoint))} {num(head.y)}V{num(max(ends))}"
        yield path(f"rail {KIND[viewpoint]}", data)


def _way_in(card: _GroupCard) -> Iterator[str]:
    """Draw the horizontal line, its dots, and the wall on it."""
    farthest, y = card.group.farthest, card.y
    kind = KIND[farthest]
    yield path(f"bar {kind}", f"M{num(rail_x(farthest))} {num(y)}H{num(CARD_X - 8)}")
    yield path(f"head {kind}", f"M{num(CARD_X - 1)} {num(y)}l-9 -5v10z")
    for viewpoint in Viewpoint:
        if viewpoint in card.group.seen:
            yield circle("ring", rail_x(viewpoint), y, 6.5)
            yield circle(f"dot {KIND[viewpoint]}", rail_x(viewpoint), y, 4.5)
    if card.group.hold is CidrHold.HELD:
        # No viewpoint is inside the wall: it is right before the card.
        reach = _HOLE + _PIECE
        yield from wall(CARD_X - _WALL, _WALL, (y - reach, y + reach), [(y - _HOLE, y + _HOLE)])


def _card_drawn(card: _GroupCard) -> Iterator[str]:
    box = card.box
    yield group("gate", ", ".join(one.service for one in card.group.endpoints))
    yield _framed("card", box, rx=10)
    yield rect(f"side {KIND[card.group.farthest]}", box.x, box.y + 8, 4, box.height - 16, rx=2)
    for y in card.rules:
        yield path("rule", f"M{num(box.x + 14)} {num(y)}H{num(box.right - 12)}")
    yield from _labels(card.labels)
    yield "</g>"


def _notes(drawn: PlanPicture, y: float) -> tuple[list[str], float]:
    """Draw the legend and the notes; returns the y coordinate of their end."""
    parts: list[str] = []
    x = MARGIN + 30
    for sign, note in drawn.notes:
        y += 5
        parts += _sign(sign, MARGIN + 11, y + 12)
        for line in wrap(note, RIGHT - x, TEXT_SIZE):
            y += _NOTE_ROW
            parts.append(text(x, y, line, TEXT_SIZE, "faint"))
    return parts, y + MARGIN + 4


def _sign(sign: NoteSign, x: float, y: float) -> Iterator[str]:
    match sign:
        case NoteSign.DOT:
            yield path("bar own", f"M{num(x - 11)} {num(y)}h22")
            yield circle("ring", x, y, 6.5)
            yield circle("dot own", x, y, 4.5)
        case NoteSign.WALL:
            yield from wall(x - _WALL / 2, _WALL, (y - 7, y + 7), ())
        case NoteSign.ALARM:
            yield circle("alarm", x, y, 7.5)
            yield text(x, y + 4, "!", 11, "bang", anchor="middle")
        case NoteSign.NONE:
            pass
