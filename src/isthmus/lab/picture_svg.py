"""Draws a picture as SVG: self-contained, with light and dark colours.

Networks stand side by side with brick walls between them, links are tubes through the openings and
tunnels are coloured lines in the tubes. picture_layout.py decides positions. Below the picture are
a list of every link with its numbers and tunnels, and a legend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from isthmus.diagram.cards import CardWriter, state_sign
from isthmus.diagram.page import StyleRule, bricks, document, style_sheet, wall
from isthmus.diagram.svg import circle, group, num, path, rect, tag, text, text_width
from isthmus.lab.picture import LabPicture, ProcessMark, counted, flow_text, link_texts
from isthmus.lab.picture_layout import (
    CIDR_ROW,
    CIDR_SIZE,
    COLUMN_PAD,
    GROUP_PAD,
    HEAD,
    LABEL_SIZE,
    LINE_GAP,
    MARGIN,
    NETWORK_SIZE,
    WALL,
    HostCard,
    NetworkColumn,
    PlacedLab,
    WallPassage,
    Wire,
    layout,
    opening_text,
    port_y,
    tunnel_colors,
    tunnels_drawn,
)
from isthmus.lab.picture_live import LiveLink, LiveTunnel

LOOKS: tuple[StyleRule, ...] = (
    (".opening", "fill: #8a5a2b; font-weight: 500", "fill: #e0ac80"),
    (".area.first", "fill: #e6edfb; stroke: #b9caf0", "fill: #1a2333; stroke: #34466a"),
    (".guest .card", "fill: none; stroke: #94a0b3; stroke-dasharray: 5 4", ""),
    (".chip.serve", "fill: #e3f4ea", "fill: #1f3d2d"),
    (".chip.shape", "fill: #fdf0d2", "fill: #48391a"),
    (".tube", "fill: none; stroke: #b9c3d3", "stroke: #56637a"),
    (".inside", "fill: none; stroke: #f2f5fa", "stroke: #1b222c"),
    (".tube.ill", "stroke: #e89a9a", "stroke: #a14a4a"),
    (".collar", "fill: #8894a8", "fill: #7a879b"),
    (".run", "fill: none; stroke-width: 2.5", ""),
    (".place", "fill: none; stroke: #94a0b3; stroke-width: 1.5", ""),
    (".arrow", "fill: #a8694a; stroke: #a8694a; stroke-width: 1.5", ""),
    (".warn", "fill: #b25e00", "fill: #ffc56b"),
)
#: Colours of tunnels, used in turn; each is visible on both backgrounds.
TUNNEL_COLORS = ("#e8590c", "#1c7ed6", "#2f9e44", "#ae3ec9", "#0c8599", "#e64980", "#b08900")

SPREAD = 4.0

ROW = 24.0
SIZE = 13.0
SWATCH = 34.0
LEGEND_SIZE = 12.0


def svg(picture: LabPicture) -> str:
    placed = layout(picture)
    list_width, list_height = list_size(picture)
    titles = CardWriter(MARGIN, MARGIN - 4)
    titles.row(picture.name, "title")
    titles.row(picture.title, "sub")
    width = max(placed.width, titles.widest + MARGIN, list_width + 2 * MARGIN)
    list_top = placed.bottom + MARGIN
    return document(
        (width, list_top + list_height + MARGIN),
        title=picture.title or picture.name,
        about=_about(picture),
        style=style_sheet(LOOKS),
        pattern=bricks(17.5, 6.5, 1.5),
        parts=(
            *(part for label in titles.labels for part in label.drawn()),
            f'<g transform="translate({num((width - placed.width) / 2)} 0)">',
            *_drawn(placed),
            "</g>",
            *links_list(picture, list_top, width),
        ),
    )


def _about(picture: LabPicture) -> str:
    networks = "; ".join(
        f"{one.name}: {', '.join(host.name for host in one.hosts) or 'no hosts'}"
        for one in picture.networks
    )
    openings = ", ".join(map(opening_text, picture.openings)) or "nothing"
    links = ", ".join(
        f"{link.agent} to {link.server} with {counted(link.open, 'tunnel')}"
        for link in picture.links
    )
    wall = f" The wall lets through: {openings}." if len(picture.networks) > 1 else ""
    return f"Networks and hosts: {networks}.{wall} Links: {links or 'none'}."


def _drawn(placed: PlacedLab) -> Iterator[str]:
    for number, column in enumerate(placed.columns):
        yield from _network(column, first=not number)
    for gutter in placed.gutters:
        if gutter.wall is not None:
            ends = placed.wall_top, placed.bottom
            yield from wall(gutter.wall, WALL, ends, gutter.holes)
    routes = [
        WireRoute(placed, through, wire, y)
        for through in placed.groups
        for wire, y in through.wire_rows()
    ]
    spread(routes)
    for route in routes:
        if route.wire.tunnel is not None:
            stalled = bool(route.wire.tunnel.stalled)
            yield from _run(route.to_path(), route.wire.colors[0], stalled=stalled)
        elif route.wire.link is None:
            yield path("place", route.to_path())
    yield from _tubes([route for route in routes if route.wire.link is not None])
    for column in placed.columns:
        for card in column.cards:
            yield from _card(card)
    for route in routes:
        yield from _numbers(route)
    for through in placed.groups:
        yield from _opening(placed, through)


def _network(column: NetworkColumn, *, first: bool) -> Iterator[str]:
    box, network = column.box, column.network
    yield group("network", network.name)
    yield rect("area first" if first else "area", box.x, box.y, box.width, box.height, rx=16)
    x, y = box.x + COLUMN_PAD, box.y + HEAD - 8
    yield text(x, y, network.name, NETWORK_SIZE, "name")
    for number, cidr in enumerate(network.cidrs, 1):
        yield text(x, y + number * CIDR_ROW, cidr, CIDR_SIZE, "mono")
    if network.note:
        yield text(x, y + (len(network.cidrs) + 1) * CIDR_ROW, network.note, CIDR_SIZE, "faint")
    yield "</g>"


def _run(data: str, number: int, *, stalled: bool) -> Iterator[str]:
    dashes = {"stroke-dasharray": "3 5"} if stalled else {}
    yield path("run", data, stroke=color(number), **dashes)


def _tubes(routes: Sequence[WireRoute]) -> Iterator[str]:
    """Draw links with their tunnels inside, layer by layer, so that crossing links join."""
    for kind, less in (("tube", 0.0), ("inside", 4.0)):
        for route in routes:
            ill = " ill" if route.wire.link and not route.wire.link.well else ""
            stroke = {"stroke-width": num(route.wire.thickness - less)}
            yield path(f"{kind}{ill}", route.to_path(), **stroke)
    for route in routes:
        for at, (tunnel, number) in enumerate(_tunnels(route)):
            yield from _run(route.to_path(_aside(route, at)), number, stalled=bool(tunnel.stalled))
    for route in routes:
        for x, y in route.ends:
            height = route.wire.thickness + 6
            yield rect("collar", x - 4, y - height / 2, 8, height, rx=3)


def _tunnels(route: WireRoute) -> list[tuple[LiveTunnel, int]]:
    drawn = tunnels_drawn(route.wire.link) if route.wire.link else ()
    return list(zip(drawn, route.wire.colors, strict=False))


def _aside(route: WireRoute, at: int) -> float:
    """The distance of a tunnel from the middle of its tube."""
    return (at - (len(route.wire.colors) - 1) / 2) * LINE_GAP


def _numbers(route: WireRoute) -> Iterator[str]:
    """Draw a link's numbers over and under it, and mark stalled tunnels."""
    wire, link = route.wire, route.wire.link
    if link is None:
        return
    yield '<g class="link">'
    yield tag("title", f"{link.agent} – {link.server}: {' · '.join(link_texts(link))}")
    over, under = wire.labels
    half = 0 if route.inside else wire.thickness / 2
    kind = "strong" if link.well else "bad"
    yield text(route.slot + 8, route.y - half - 7, over, LABEL_SIZE, kind)
    yield text(route.slot + 8, route.y + half + 16, under, LABEL_SIZE, "text")
    for at, (tunnel, _) in enumerate(_tunnels(route)):
        if tunnel.stalled and not route.inside:
            x, y = route.slot + 18 + 22 * at, route.y + _aside(route, at)
            yield circle("alarm", x, y, 7)
            yield text(x, y + 4, "!", 11, "bang", anchor="middle")
    yield "</g>"


def _card(card: HostCard) -> Iterator[str]:
    yield group("host guest" if card.guest else "host", card.name)
    yield rect("card", card.box.x, card.box.y, card.box.width, card.box.height, rx=10)
    for label in card.writer.labels:
        yield from label.drawn(card.box.x, card.box.y)
    yield "</g>"


def _opening(placed: PlacedLab, through: WallPassage) -> Iterator[str]:
    """Draw the text of an opening, with an arrow through the hole."""
    gutter = placed.gutters[through.left]
    if through.opening is None or gutter.wall is None:
        return
    y = through.y + GROUP_PAD + 14
    words = opening_text(through.opening)
    yield text(gutter.wall - 8, y, words, LABEL_SIZE, "opening", anchor="end")
    left, right = gutter.wall + 3, gutter.wall + WALL - 3
    yield path("arrow", f"M{num(left + 4)} {num(y - 4)}H{num(right - 4)}")
    order = [column.network.name for column in placed.columns]
    rightward = order.index(through.opening.target) > order.index(through.opening.source)
    heads: Sequence[bool] = (True, False) if through.opening.both else (rightward,)
    for to_right in heads:
        tip, back = (right, -6) if to_right else (left, 6)
        yield path("arrow", f"M{num(tip)} {num(y - 4)}l{back} -4v8z")


class WireRoute:
    """The path of a line: from a card, through its slot, to another card."""

    def __init__(self, placed: PlacedLab, through: WallPassage, wire: Wire, y: float) -> None:
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
        """The points where the line meets its cards."""
        return (self.x0, self.y0), (self.x0 if self.inside else self.x1, self.y1)

    def to_path(self, aside: float = 0.0) -> str:
        """The data of the path, or of a path beside it."""
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


def spread(routes: Sequence[WireRoute]) -> None:
    """Separate thin lines at a shared port, in order of arrival."""
    thin = sorted((one for one in routes if one.wire.link is None), key=lambda one: one.y)
    for first in (True, False):
        ports: dict[tuple[float, float], list[WireRoute]] = {}
        for route in thin:
            ports.setdefault(route.ends[0 if first else 1], []).append(route)
        for together in ports.values():
            for at, route in enumerate(together):
                aside = (at - (len(together) - 1) / 2) * SPREAD
                if first:
                    route.y0 += aside
                else:
                    route.y1 += aside


@dataclass(frozen=True, slots=True)
class ListCell:
    """A text of a row, and its style."""

    text: str
    style: str = "text"


@dataclass(frozen=True, slots=True)
class ListRow:
    """A link, or one of its tunnels with the colour of its line."""

    cells: tuple[ListCell, ...]
    color: int | None = None
    stalled: bool = False


def _rows(picture: LabPicture) -> list[ListRow]:
    rows = []
    for link, colors in zip(picture.links, tunnel_colors(picture), strict=True):
        rows.append(_link_row(link))
        drawn = tunnels_drawn(link)
        for tunnel, number in zip(drawn, colors, strict=True):
            flow = flow_text(tunnel.to_target, tunnel.to_client)
            state = ListCell(tunnel.state, "faint")
            if tunnel.stalled:
                state = ListCell(f"stalled: {tunnel.stalled}", "warn")
            cells = (
                ListCell(tunnel.target),
                ListCell(tunnel.frontend, "faint"),
                ListCell(flow),
                state,
            )
            rows.append(ListRow(cells, number, bool(tunnel.stalled)))
        if link.open > len(drawn):
            rows.append(ListRow((ListCell(f"and {link.open - len(drawn)} more", "faint"),)))
    return rows


def _link_row(link: LiveLink) -> ListRow:
    elsewhere = "" if link.agent_process and link.server_process else "not of this lab"
    numbers = " · ".join(part for part in (*link_texts(link), elsewhere) if part)
    return ListRow(
        (
            ListCell(f"{link.agent} – {link.server}", "strong"),
            ListCell(numbers, "text" if link.well else "bad"),
        )
    )


def _columns(rows: list[ListRow]) -> list[float]:
    """The positions of the columns of tunnel rows."""
    starts = [MARGIN + SWATCH]
    for column in range(3):
        widest = max(
            (
                text_width(row.cells[column].text, SIZE)
                for row in rows
                if row.color is not None and len(row.cells) > column
            ),
            default=0.0,
        )
        starts.append(starts[-1] + widest + 22)
    return starts


def _placed(rows: list[ListRow]) -> Iterator[tuple[ListRow, list[tuple[float, ListCell]]]]:
    starts = _columns(rows)
    for row in rows:
        if row.color is not None:
            yield row, list(zip(starts, row.cells, strict=False))
            continue
        x = MARGIN if len(row.cells) > 1 else MARGIN + SWATCH
        cells = []
        for cell in row.cells:
            cells.append((x, cell))
            x += text_width(cell.text, SIZE, cell.style) + 16
        yield row, cells


def list_size(picture: LabPicture) -> tuple[float, float]:
    """Width and height of the list, without margins."""
    rows = _rows(picture)
    ends = [
        x + text_width(cell.text, SIZE, cell.style) - MARGIN
        for _, cells in _placed(rows)
        for x, cell in cells
    ]
    marks = sum(map(_mark_width, _marks(picture)))
    ends.append(marks + text_width(_legend(picture), LEGEND_SIZE))
    return max(ends), ROW * len(rows) + ROW + (8 if rows else 0)


def links_list(picture: LabPicture, top: float, width: float) -> Iterator[str]:
    """Draw the list, starting at ``top``."""
    yield '<g class="list">'
    yield tag(
        "path", "", **{"class": "rule", "d": f"M{num(MARGIN)} {num(top)}H{num(width - MARGIN)}"}
    )
    rows = _rows(picture)
    y = top + ROW
    for row, cells in _placed(rows):
        if row.color is not None:
            dashes = {"stroke-dasharray": "3 5"} if row.stalled else {}
            data = f"M{num(MARGIN + 4)} {num(y - 4)}h{num(SWATCH - 14)}"
            yield path("run", data, stroke=color(row.color), **dashes)
        for x, cell in cells:
            yield text(x, y, cell.text, SIZE, cell.style)
        y += ROW
    y += 8 if rows else 0
    x = MARGIN
    for one in _marks(picture):
        yield state_sign(one.name.lower(), x + 5, y - 4)
        yield text(x + 15, y, one.value, LEGEND_SIZE, "faint")
        x += _mark_width(one)
    yield text(x, y, _legend(picture), LEGEND_SIZE, "faint")
    yield "</g>"


def _marks(picture: LabPicture) -> list[ProcessMark]:
    used = {process.mark for host in picture.hosts for process in host.processes}
    return [one for one in ProcessMark if one in used]


def _mark_width(one: ProcessMark) -> float:
    return 15 + text_width(one.value, LEGEND_SIZE) + 18


def _legend(picture: LabPicture) -> str:
    parts = []
    if len(picture.networks) > 1:
        parts.append(f"The wall {'drops' if picture.drops else 'rejects'} what is not allowed.")
    if picture.links:
        parts.append("↑ towards targets, ↓ towards clients.")
    return "  ".join(parts)


def color(number: int) -> str:
    return TUNNEL_COLORS[number % len(TUNNEL_COLORS)]
