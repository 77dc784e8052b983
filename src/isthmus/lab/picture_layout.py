"""Where everything in an SVG picture goes: networks in columns, walls and lines in between.

Between two columns are, from the left: room to bend, room for labels, the wall, room to bend.
Lines from a column to the next cross the wall in a slot of their own, together with the others that
use the same opening. Lines that go further run below the networks. Only numbers here; what it looks
like is picture_svg.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from isthmus.lab.picture import DrawnNetwork, DrawnOpening, LabPicture
from isthmus.lab.picture_cards import Face, guest_face, host_face, text_width
from isthmus.lab.picture_wires import Wire, wires_of

MARGIN = 28.0
TITLE_HEIGHT = 78.0
COLUMN_PAD = 18.0
CARD_GAP = 18.0
BEND = 64.0
WALL = 38.0
LABEL_SIZE = 12.0
OPENING_ROW = 24.0
GROUP_PAD = 8.0
GROUP_GAP = 16.0
HEAD = 36.0
CIDR_ROW = 17.0
NETWORK_SIZE, CIDR_SIZE = 17.0, 12.0


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right side."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower side."""
        return self.y + self.height


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A host's card in its place; a guest's has dashes around it."""

    name: str
    guest: bool
    face: Face
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A network in its place."""

    network: DrawnNetwork
    box: Box
    cards: tuple[Card, ...]

    def card(self, name: str) -> Card:
        """A card by its host."""
        return next(card for card in self.cards if card.name == name)


@dataclass(slots=True, kw_only=True)
class Group:
    """What goes through the wall side by side, between two columns: an opening and its lines."""

    left: int
    right: int
    opening: DrawnOpening | None = None
    wires: list[Wire] = field(default_factory=list)
    y: float = 0.0

    @property
    def height(self) -> float:
        """Of the hole that is needed."""
        rows = OPENING_ROW if self.opening else 0.0
        return rows + sum(wire.height for wire in self.wires) + 2 * GROUP_PAD

    def wire_rows(self) -> Iterable[tuple[Wire, float]]:
        """Every line with the height at which it crosses."""
        y = self.y + GROUP_PAD + (OPENING_ROW if self.opening else 0.0)
        for wire in self.wires:
            yield wire, y + wire.height / 2
            y += wire.height

    @property
    def label_width(self) -> float:
        """Of the widest that is written here."""
        texts = [text for wire in self.wires for text in wire.labels]
        if self.opening:
            texts.append(opening_text(self.opening))
        return max((text_width(text, LABEL_SIZE, "strong") for text in texts), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gutter:
    """Between two columns; ``slot`` is where labels begin, and without a wall nothing follows."""

    slot: float
    wall: float | None
    end: float
    holes: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A whole picture, placed."""

    width: float
    bottom: float  # of all that is not the list of links
    wall_top: float
    columns: tuple[Column, ...]
    gutters: tuple[Gutter, ...]
    groups: tuple[Group, ...]


def opening_text(opening: DrawnOpening) -> str:
    """What is written at an opening."""
    return f"{opening.who} {'↔' if opening.both else '→'} {opening.whom}"


def layout(picture: LabPicture) -> Layout:
    """Place everything."""
    faces = [_faces(network) for network in picture.networks]
    groups = _groups(picture)
    top = MARGIN + TITLE_HEIGHT
    lefts, gutters = _across(picture, faces, groups)
    columns = [
        _column(network, own, left, top)
        for network, own, left in zip(picture.networks, faces, lefts, strict=True)
    ]
    bottom = max((column.box.bottom for column in columns), default=top)
    near = [group for group in groups if group.right - group.left < 2]
    for number in range(len(gutters)):
        here = [group for group in near if group.left == number]
        bottom = max(bottom, _stack(here, columns, top + HEAD) + GROUP_GAP)
    columns = [_tall(column, bottom) for column in columns]
    ends = [gutter.end for gutter in gutters]
    corridor = bottom
    for group in (group for group in groups if group not in near):
        group.y, corridor = corridor + GROUP_GAP, corridor + GROUP_GAP + group.height
    return Layout(
        width=max([400.0, *(column.box.right for column in columns), *ends]) + MARGIN,
        bottom=corridor + (GROUP_GAP if corridor > bottom else 0.0),
        wall_top=top,
        columns=tuple(columns),
        gutters=tuple(_holed(gutter, at, groups) for at, gutter in enumerate(gutters)),
        groups=tuple(groups),
    )


def _faces(network: DrawnNetwork) -> list[tuple[str, bool, Face]]:
    return [
        *((host.name, False, host_face(host)) for host in network.hosts),
        *((guest.host, True, guest_face(guest)) for guest in network.guests),
    ]


def _width(network: DrawnNetwork, faces: Sequence[tuple[str, bool, Face]]) -> float:
    widths = [face.width for _, _, face in faces]
    widths += (text_width(cidr, CIDR_SIZE, "mono") for cidr in network.cidrs)
    return max([180.0, text_width(network.name, NETWORK_SIZE, "name"), *widths]) + 2 * COLUMN_PAD


def _head(network: DrawnNetwork) -> float:
    return HEAD + CIDR_ROW * (len(network.cidrs) + bool(network.note)) + 8


def _across(
    picture: LabPicture, faces: Sequence[list[tuple[str, bool, Face]]], groups: Sequence[Group]
) -> tuple[list[float], list[Gutter]]:
    """Go from left to right: where columns begin, and what is between them."""
    x = MARGIN
    lefts, gutters = [], []
    for number, (network, own) in enumerate(zip(picture.networks, faces, strict=True)):
        lefts.append(x)
        x += _width(network, own)
        here = [group for group in groups if group.left == number]
        last = number == len(faces) - 1
        if last and not here:
            break
        labels = max((group.label_width for group in here), default=0.0)
        slot = x + BEND
        wall = None if last else slot + labels + 16
        x = slot + labels + 16 + (0 if last else WALL + BEND)
        gutters.append(Gutter(slot=slot, wall=wall, end=x))
    return lefts, gutters


def _column(
    network: DrawnNetwork, faces: Sequence[tuple[str, bool, Face]], left: float, top: float
) -> Column:
    width = _width(network, faces)
    cards, y = [], top + _head(network)
    for name, guest, face in faces:
        box = Box(left + COLUMN_PAD, y, width - 2 * COLUMN_PAD, face.height)
        cards.append(Card(name=name, guest=guest, face=face, box=box))
        y = box.bottom + CARD_GAP
    return Column(network=network, box=Box(left, top, width, y - top), cards=tuple(cards))


def _tall(column: Column, bottom: float) -> Column:
    box = column.box
    return Column(
        network=column.network,
        box=Box(box.x, box.y, box.width, bottom - box.y),
        cards=column.cards,
    )


def _groups(picture: LabPicture) -> list[Group]:
    """Put lines together with the opening they use; an opening without lines stands alone."""
    order = {network.name: number for number, network in enumerate(picture.networks)}
    made: dict[tuple[int, int, DrawnOpening | None], Group] = {}
    for opening in picture.openings:
        left, right = sorted((order[opening.source], order[opening.target]))
        made[left, right, opening] = Group(left=left, right=right, opening=opening)
    for wire in wires_of(picture):
        left, right = wire.left.column, wire.right.column
        way = next((one for one in picture.openings if _uses(wire, one)), None)
        key = (left, right, way if (left, right, way) in made else None)
        made.setdefault(key, Group(left=left, right=right)).wires.append(wire)
    return list(made.values())


def _uses(wire: Wire, opening: DrawnOpening) -> bool:
    if wire.link is not None:
        # By way of a balancer an agent goes to another host than the server's.
        return wire.source in opening.sources and wire.networks == (opening.source, opening.target)
    return wire.tunnel is not None and opening.admits(wire.source, wire.target)


def port_y(column: Column, host: str, port: str) -> float:
    """The height at which a line leaves a card; the card's name if it has no such port."""
    card = column.card(host)
    return card.box.y + card.face.ports.get(port, card.face.ports["host"])


def _stack(groups: list[Group], columns: Sequence[Column], top: float) -> float:
    """Stack groups near the cards they are for, without touching; returns where they end."""

    def wanted(group: Group) -> float:
        ys = [
            port_y(columns[end.column], end.host, end.port)
            for wire in group.wires
            for end in (wire.left, wire.right)
        ]
        return sum(ys) / len(ys) - group.height / 2 if ys else top

    y = top
    for group in sorted(groups, key=wanted):
        group.wires.sort(
            key=lambda wire: (
                port_y(columns[wire.left.column], wire.left.host, wire.left.port)
                + port_y(columns[wire.right.column], wire.right.host, wire.right.port)
            )
        )
        group.y = max(y, wanted(group))
        y = group.y + group.height + GROUP_GAP
    return y - GROUP_GAP


def _holed(gutter: Gutter, number: int, groups: Sequence[Group]) -> Gutter:
    holes = sorted(
        (group.y, group.y + group.height) for group in groups if group.left <= number < group.right
    )
    return Gutter(slot=gutter.slot, wall=gutter.wall, end=gutter.end, holes=tuple(holes))
