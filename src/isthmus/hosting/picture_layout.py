"""Where everything of a plan's picture is: upright and narrow, for a telephone to show it whole.

Places are steps down from the left, each with a rail that runs down to what is reached from there;
the gates are cards below each other at the right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from isthmus.hosting.model import Viewpoint
from isthmus.hosting.picture_view import Gate, Hold, Item, Stand, View
from isthmus.text.svg import text_width, wrap

WIDTH = 420.0
MARGIN = 12.0
RIGHT = WIDTH - MARGIN
#: From the left edge of a place to its rail; the next place begins behind the rail.
INTO, STEP = 14.0, 23.0
GAP, EDGE, PAD = 10.0, 8.0, 10.0
CARD_X, CARD_RIGHT = 114.0, RIGHT - 2 * EDGE
TITLE_SIZE, NAME_SIZE, TEXT_SIZE, MONO_SIZE, CHIP_SIZE = 20.0, 14.5, 12.0, 12.0, 11.5
CHIP_HEIGHT = 19.0

# The gates lie in these, the second one in the first.
_WITHIN: Mapping[Viewpoint, int] = {Viewpoint.MANAGEMENT: 0, Viewpoint.SAME_CLUSTER: 1}
_DEPTH: Mapping[Viewpoint, int] = {place: depth for depth, place in enumerate(Viewpoint)}


def rail_x(place: Viewpoint) -> float:
    """Where the rail of a place runs."""
    return left_of(place) + INTO


def left_of(place: Viewpoint) -> float:
    """Where a place begins."""
    return MARGIN + STEP * _DEPTH[place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A text by the left end of its base line, or the right one; on a chip, if so said."""

    x: float
    y: float
    text: str
    size: float = TEXT_SIZE
    kind: str = "text"
    chip: str = ""

    @property
    def width(self) -> float:
        """The estimate."""
        return text_width(self.text, self.size, self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A frame with what is written in it."""

    x: float
    y: float
    width: float
    height: float
    lines: tuple[Line, ...] = ()

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A place: its frame, and where its rail begins."""

    stand: Stand
    box: Box
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A gate: its frame, where one comes in, and the thin lines between its endpoints."""

    gate: Gate
    box: Box
    y: float
    rules: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The whole picture; ``bottom`` is where the places end and the notes begin."""

    titles: tuple[Line, ...]
    heads: tuple[Head, ...]
    cards: tuple[Card, ...]
    errors: Box | None
    bottom: float


class _Writer:
    """Writes rows from the top down."""

    def __init__(self, x: float, right: float, y: float) -> None:
        self._x, self._right = x, right
        self.y = y
        self.lines: list[Line] = []

    def row(self, text: str, kind: str = "text", size: float = TEXT_SIZE, *, step: float) -> None:
        """Write a text, in as many rows as it needs."""
        for part in wrap(text, self._right - self._x, size, kind):
            self.y += step
            self.lines.append(Line(x=self._x, y=self.y, text=part, size=size, kind=kind))

    def chip_right(self, text: str) -> None:
        """Put a chip at the right end of the row written last."""
        width = text_width(text, CHIP_SIZE)
        self.lines.append(
            Line(x=self._right - width - 4, y=self.y, text=text, size=CHIP_SIZE, chip="chip")
        )

    def chip(self, text: str, kind: str) -> None:
        """Put a chip in a row of its own."""
        self.y += CHIP_HEIGHT + 5
        self.lines.append(
            Line(
                x=self._x + 8,
                y=self.y,
                text=text,
                size=CHIP_SIZE,
                kind=f"text {kind}",
                chip=f"chip {kind}",
            )
        )
        self.y += 2


def layout(view: View) -> Layout:
    """Place everything."""
    titles = _Writer(MARGIN, RIGHT, MARGIN - 4)
    titles.row(view.name, "title", TITLE_SIZE, step=24)
    titles.row(view.title, "faint", TEXT_SIZE + 1, step=21)
    y = titles.y + 21
    heads: list[Head] = []
    for stand in view.stands:
        heads.append(_head(stand, y))
        within = stand.place in _WITHIN
        y = heads[-1].box.bottom + (0 if within else GAP)
    cards, y = _cards(view.gates, y)
    errors = _errors(view.errors, y) if view.errors else None
    y = errors.bottom + GAP if errors else y
    grown = [_grown(head, y) if head.stand.place in _WITHIN else head for head in heads]
    return Layout(
        titles=tuple(titles.lines),
        heads=tuple(grown),
        cards=tuple(cards),
        errors=errors,
        bottom=max(head.box.bottom for head in grown),
    )


def _head(stand: Stand, y: float) -> Head:
    x, rail = left_of(stand.place), rail_x(stand.place)
    writer = _Writer(rail + 14, CARD_RIGHT - PAD, y + 4)
    writer.row(stand.name, "name", NAME_SIZE, step=18)
    writer.row(stand.who, "faint", step=16)
    if stand.ranges:
        writer.row(" ".join(stand.ranges), "mono", step=16)
    box = Box(x=x, y=y, width=RIGHT - x, height=writer.y - y + 10, lines=tuple(writer.lines))
    return Head(stand=stand, box=box, y=y + 17)


def _grown(head: Head, bottom: float) -> Head:
    """The frame of a place around what lies in it."""
    box, inner = head.box, _WITHIN[head.stand.place]
    height = bottom + 2 + EDGE * (1 - inner) - box.y
    return replace(head, box=replace(box, width=box.width - EDGE * inner, height=height))


def _cards(gates: Iterable[Gate], y: float) -> tuple[list[Card], float]:
    cards = []
    for gate in gates:
        cards.append(_card(gate, y))
        y = cards[-1].box.bottom + GAP
    return cards, y


def _card(gate: Gate, y: float) -> Card:
    writer = _Writer(CARD_X + PAD + 3, CARD_RIGHT - PAD, y + 4)
    rules = []
    if gate.inside:
        writer.row("not published", "faint", step=18)
    elif gate.through:
        writer.row(gate.through, "strong", TEXT_SIZE + 0.5, step=18)
        writer.row("one address, told apart by name", "faint", step=16)
        _hold(writer, gate.hold)
    for before, item in zip((None, *gate.items), gate.items, strict=False):
        same = before is not None and before.heading == item.heading
        if not gate.inside and not same and writer.lines:
            writer.y += 9
            rules.append(writer.y)
            writer.y += 2
        _item(writer, item, same=same)
    if not gate.through:
        _hold(writer, gate.hold)
    width, height = CARD_RIGHT - CARD_X, writer.y - y + 10
    box = Box(x=CARD_X, y=y, width=width, height=height, lines=tuple(writer.lines))
    return Card(gate=gate, box=box, y=y + 22, rules=tuple(rules))


def _hold(writer: _Writer, hold: Hold) -> None:
    if hold is not Hold.NOT_ASKED:
        writer.chip(hold.value, hold.name.lower())


def _item(writer: _Writer, item: Item, *, same: bool) -> None:
    """Write an endpoint; ``same``: below another one of its service."""
    if not item.strategy:
        writer.row(item.service, "strong", step=19)
        writer.row(item.address, "mono", MONO_SIZE, step=16)
        return
    if same:
        writer.y += 4
    else:
        writer.row(item.service, "name", NAME_SIZE, step=19)
        writer.chip_right(item.strategy)
    writer.row(item.address, "mono", MONO_SIZE, step=17)
    writer.row(item.by, "faint", step=16)


def _errors(errors: tuple[str, ...], y: float) -> Box:
    writer = _Writer(CARD_X + PAD, CARD_RIGHT - PAD, y + 4)
    writer.row("There is no plan", "bad", NAME_SIZE, step=19)
    for error in errors:
        writer.y += 4
        writer.row(error, step=16)
    height = writer.y - y + 12
    width = CARD_RIGHT - CARD_X
    return Box(x=CARD_X, y=y, width=width, height=height, lines=tuple(writer.lines))
