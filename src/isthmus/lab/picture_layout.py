"""The layout of an SVG picture: networks in columns, walls and lines in between.

Between two columns are, from the left: room for curves, room for labels, the wall, room for curves.
Lines between neighbouring columns cross the wall in a slot each, grouped by the opening they use.
Longer lines run below the networks. This module computes numbers; picture_svg.py draws.

A link joins two processes; a tunnel continues from its agent to the target's host; a host on
several networks is joined to its small cards there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from isthmus.diagram.cards import Box, CardWriter
from isthmus.diagram.svg import text_width
from isthmus.lab.picture import (
    DrawnGuest,
    DrawnHost,
    DrawnNetwork,
    DrawnOpening,
    LabPicture,
    flow_text,
    link_texts,
)
from isthmus.lab.picture_live import LiveLink, LiveTunnel

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
CARD_PAD, CARD_TOP, BOTTOM_PAD = 14.0, 6.0, 2.0
MIN_CARD_WIDTH = 180.0
CHIPS_WIDTH = 236.0

TUNNELS_DRAWN = 6
LINE_GAP = 5.0


@dataclass(frozen=True, slots=True)
class WireEnd:
    """A port on a card in a column."""

    column: int
    host: str
    port: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A line between two cards; ``left`` is never right of ``right``.

    It was opened by ``source``, towards ``target``. ``colors`` are those of the tunnels it shows.
    """

    left: WireEnd
    right: WireEnd
    source: str
    target: str
    networks: tuple[str, str]
    link: LiveLink | None = None
    tunnel: LiveTunnel | None = None
    colors: tuple[int, ...] = ()

    @property
    def thickness(self) -> float:
        """The thickness of a link, which depends on its tunnels."""
        return 12 + LINE_GAP * len(self.colors) if self.link else 2.5

    @property
    def labels(self) -> tuple[str, ...]:
        """The texts over and under a link."""
        if self.link is None:
            return ()
        flow = flow_text(self.link.to_agent, self.link.to_server)
        over = " · ".join(text for text in link_texts(self.link) if text != flow)
        if self.left.column == self.right.column:  # the label may need room at the side
            over = f"{self.link.agent} – {self.link.server}: {over}"
        return (over, flow)

    @property
    def height(self) -> float:
        """The height including labels."""
        if self.link is None:
            return 9.0
        # Inside a network the tube is beside its label and not between its lines.
        return 50.0 if self.left.column == self.right.column else self.thickness + 50


def tunnels_drawn(link: LiveLink) -> tuple[LiveTunnel, ...]:
    """The tunnels of a link that get a line, stalled ones first."""
    return tuple(sorted(link.tunnels, key=lambda one: not one.stalled)[:TUNNELS_DRAWN])


def tunnel_colors(picture: LabPicture) -> list[tuple[int, ...]]:
    """The colour number of every drawn tunnel, link by link."""
    made, count = [], 0
    for link in picture.links:
        drawn = len(tunnels_drawn(link))
        made.append(tuple(range(count, count + drawn)))
        count += drawn
    return made


def wires_of(picture: LabPicture) -> Iterator[Wire]:
    column = {
        host.name: number for number, one in enumerate(picture.networks) for host in one.hosts
    }

    def wire(
        source: WireEnd,
        target: WireEnd,
        link: LiveLink | None = None,
        tunnel: LiveTunnel | None = None,
        colors: tuple[int, ...] = (),
    ) -> Wire:
        left, right = (source, target) if source.column <= target.column else (target, source)
        networks = (
            picture.networks[source.column].name,
            picture.networks[target.column].name,
        )
        return Wire(
            left=left,
            right=right,
            source=source.host,
            target=target.host,
            networks=networks,
            link=link,
            tunnel=tunnel,
            colors=colors,
        )

    for number, one in enumerate(picture.networks):
        for guest in one.guests:
            if guest.host in column:
                yield wire(
                    WireEnd(column[guest.host], guest.host, f"place {one.name}"),
                    WireEnd(number, guest.host, "host"),
                )
    for link, colors in zip(picture.links, tunnel_colors(picture), strict=True):
        server, agent = picture.host_of(link.server_process), picture.host_of(link.agent_process)
        if not server or not agent:
            continue
        end = WireEnd(column[agent], agent, f"process {link.agent_process}")
        yield wire(
            end,
            WireEnd(column[server], server, f"process {link.server_process}"),
            link=link,
            colors=colors,
        )
        for tunnel, color in zip(tunnels_drawn(link), colors, strict=True):
            if tunnel.host in column and tunnel.host != agent:
                target = WireEnd(column[tunnel.host], tunnel.host, "host")
                yield wire(end, target, tunnel=tunnel, colors=(color,))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCard:
    """A placed host card, with coordinates from its own corner; a guest's is dashed."""

    name: str
    guest: bool
    writer: CardWriter
    box: Box


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkColumn:
    """A placed network."""

    network: DrawnNetwork
    box: Box
    cards: tuple[HostCard, ...]

    def card(self, name: str) -> HostCard:
        return next(card for card in self.cards if card.name == name)


@dataclass(slots=True, kw_only=True)
class WallPassage:
    """An opening in the wall between two columns, with the lines that use it."""

    left: int
    right: int
    opening: DrawnOpening | None = None
    wires: list[Wire] = field(default_factory=list)
    y: float = 0.0

    @property
    def height(self) -> float:
        """The height of the hole."""
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
        texts = [text for wire in self.wires for text in wire.labels]
        if self.opening:
            texts.append(opening_text(self.opening))
        return max((text_width(text, LABEL_SIZE, "strong") for text in texts), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gutter:
    """The space between two columns; ``slot`` is where labels begin, and its end without a wall."""

    slot: float
    wall: float | None
    end: float
    holes: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLab:
    """A whole placed picture."""

    width: float
    bottom: float  # of everything except the list of links
    wall_top: float
    columns: tuple[NetworkColumn, ...]
    gutters: tuple[Gutter, ...]
    groups: tuple[WallPassage, ...]


def opening_text(opening: DrawnOpening) -> str:
    return f"{opening.who} {'↔' if opening.both else '→'} {opening.whom}"


def layout(picture: LabPicture) -> PlacedLab:
    writers = [_writers(network) for network in picture.networks]
    groups = _groups(picture)
    top = MARGIN + TITLE_HEIGHT
    lefts, gutters = _across(picture, writers, groups)
    columns = [
        _column(network, own, left, top)
        for network, own, left in zip(picture.networks, writers, lefts, strict=True)
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
    return PlacedLab(
        width=max([400.0, *(column.box.right for column in columns), *ends]) + MARGIN,
        bottom=corridor + (GROUP_GAP if corridor > bottom else 0.0),
        wall_top=top,
        columns=tuple(columns),
        gutters=tuple(_holed(gutter, at, groups) for at, gutter in enumerate(gutters)),
        groups=tuple(groups),
    )


def _card_width(writer: CardWriter) -> float:
    return max(writer.widest + CARD_PAD, MIN_CARD_WIDTH)


def _host_card(host: DrawnHost) -> CardWriter:
    card = CardWriter(CARD_PAD, CARD_TOP)
    card.row(host.name, "name", port="host")
    for number, place in enumerate(host.places):
        for address in place.addresses:
            text = f"{address}  on {place.network}" if number else address
            card.row(text, "mono", port=f"place {place.network}" if number else "")
    for address in host.also:
        card.row(f"{address}  on lo", "mono")
    shapes = [place.shape for place in host.places if place.shape]
    card.chips(shapes, "shape", right=CARD_PAD + CHIPS_WIDTH)
    for process in host.processes:
        sign = process.mark.name.lower()
        card.row(process.name, "strong", sign=sign, port=f"process {process.name}")
        if process.what not in ("", process.name):
            card.beside(process.what, "faint")
    card.chips(host.serves, "serve", right=CARD_PAD + CHIPS_WIDTH)
    for service in host.services:
        card.row(service, "mono")
    return card


def _guest_card(guest: DrawnGuest) -> CardWriter:
    """The small card of a host that is drawn in another network."""
    card = CardWriter(CARD_PAD, CARD_TOP)
    card.row(guest.host, "name", port="host")
    for address in guest.place.addresses:
        card.row(address, "mono")
    return card


def _writers(network: DrawnNetwork) -> list[tuple[str, bool, CardWriter]]:
    return [
        *((host.name, False, _host_card(host)) for host in network.hosts),
        *((guest.host, True, _guest_card(guest)) for guest in network.guests),
    ]


def _width(network: DrawnNetwork, writers: Sequence[tuple[str, bool, CardWriter]]) -> float:
    widths = [_card_width(writer) for _, _, writer in writers]
    widths += (text_width(cidr, CIDR_SIZE, "mono") for cidr in network.cidrs)
    return max([180.0, text_width(network.name, NETWORK_SIZE, "name"), *widths]) + 2 * COLUMN_PAD


def _head(network: DrawnNetwork) -> float:
    return HEAD + CIDR_ROW * (len(network.cidrs) + bool(network.note)) + 8


def _across(
    picture: LabPicture,
    writers: Sequence[list[tuple[str, bool, CardWriter]]],
    groups: Sequence[WallPassage],
) -> tuple[list[float], list[Gutter]]:
    """Place columns and gutters from left to right."""
    x = MARGIN
    lefts, gutters = [], []
    for number, (network, own) in enumerate(zip(picture.networks, writers, strict=True)):
        lefts.append(x)
        x += _width(network, own)
        here = [group for group in groups if group.left == number]
        last = number == len(writers) - 1
        if last and not here:
            break
        labels = max((group.label_width for group in here), default=0.0)
        slot = x + BEND
        wall = None if last else slot + labels + 16
        x = slot + labels + 16 + (0 if last else WALL + BEND)
        gutters.append(Gutter(slot=slot, wall=wall, end=x))
    return lefts, gutters


def _column(
    network: DrawnNetwork, writers: Sequence[tuple[str, bool, CardWriter]], left: float, top: float
) -> NetworkColumn:
    width = _width(network, writers)
    cards, y = [], top + _head(network)
    for name, guest, writer in writers:
        box = Box(left + COLUMN_PAD, y, width - 2 * COLUMN_PAD, writer.bottom + BOTTOM_PAD)
        cards.append(HostCard(name=name, guest=guest, writer=writer, box=box))
        y = box.bottom + CARD_GAP
    return NetworkColumn(network=network, box=Box(left, top, width, y - top), cards=tuple(cards))


def _tall(column: NetworkColumn, bottom: float) -> NetworkColumn:
    box = column.box
    return NetworkColumn(
        network=column.network,
        box=Box(box.x, box.y, box.width, bottom - box.y),
        cards=column.cards,
    )


def _groups(picture: LabPicture) -> list[WallPassage]:
    """Group lines by the opening they use; an opening without lines is a group of its own."""
    order = {network.name: number for number, network in enumerate(picture.networks)}
    made: dict[tuple[int, int, DrawnOpening | None], WallPassage] = {}
    for opening in picture.openings:
        left, right = sorted((order[opening.source], order[opening.target]))
        made[left, right, opening] = WallPassage(left=left, right=right, opening=opening)
    for wire in wires_of(picture):
        left, right = wire.left.column, wire.right.column
        way = next((one for one in picture.openings if _uses(wire, one)), None)
        key = (left, right, way if (left, right, way) in made else None)
        made.setdefault(key, WallPassage(left=left, right=right)).wires.append(wire)
    return list(made.values())


def _uses(wire: Wire, opening: DrawnOpening) -> bool:
    if wire.link is not None:
        # Behind a balancer an agent connects to another host than the server's.
        return wire.source in opening.sources and wire.networks == (opening.source, opening.target)
    return wire.tunnel is not None and opening.admits(wire.source, wire.target)


def port_y(column: NetworkColumn, host: str, port: str) -> float:
    """The height at which a line leaves a card; that of the card's name if it has no such port."""
    card = column.card(host)
    return card.box.y + card.writer.ports.get(port, card.writer.ports["host"])


def _stack(groups: list[WallPassage], columns: Sequence[NetworkColumn], top: float) -> float:
    """Stack groups near their cards without overlaps; returns the bottom."""

    def wanted(group: WallPassage) -> float:
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


def _holed(gutter: Gutter, number: int, groups: Sequence[WallPassage]) -> Gutter:
    holes = sorted(
        (group.y, group.y + group.height) for group in groups if group.left <= number < group.right
    )
    return Gutter(slot=gutter.slot, wall=gutter.wall, end=gutter.end, holes=tuple(holes))
