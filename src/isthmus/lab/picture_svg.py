"""Draws a picture as SVG: self-contained, light or dark as the viewer likes it.

Networks stand side by side with brick walls between them, links are tubes through the openings and
tunnels are coloured lines in the tubes. Where things are is picture_layout.py's business, the list
below the picture is picture_svg_list.py's, colours are in picture_style.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isthmus.lab.picture import LabPicture, counted, link_texts
from isthmus.lab.picture_cards import CHIP_HEIGHT, Piece, text_width
from isthmus.lab.picture_layout import (
    CIDR_ROW,
    CIDR_SIZE,
    COLUMN_PAD,
    GROUP_PAD,
    HEAD,
    LABEL_SIZE,
    MARGIN,
    NETWORK_SIZE,
    WALL,
    Card,
    Column,
    Group,
    Gutter,
    Layout,
    layout,
    opening_text,
)
from isthmus.lab.picture_live import LiveTunnel
from isthmus.lab.picture_routes import Route, spread
from isthmus.lab.picture_style import BRICKS, STYLE
from isthmus.lab.picture_svg_list import links_list, list_size
from isthmus.lab.picture_svg_tags import color, mark
from isthmus.lab.picture_wires import LINE_GAP, tunnels_drawn
from isthmus.text.svg import circle, group, num, path, rect, tag, text

TITLE_SIZE, SUBTITLE_SIZE = 22.0, 14.0


def svg(picture: LabPicture) -> str:
    """Draw a lab as an SVG document."""
    placed = layout(picture)
    list_width, list_height = list_size(picture)
    titles = (
        text_width(picture.name, TITLE_SIZE, "name"),
        text_width(picture.title, SUBTITLE_SIZE),
        list_width,
    )
    width = max(placed.width, max(titles) + 2 * MARGIN)
    list_top = placed.bottom + MARGIN
    height = list_top + list_height + MARGIN
    shift = (width - placed.width) / 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {num(width)} {num(height)}"'
        f' width="{num(width)}" height="{num(height)}" role="img" aria-labelledby="title about">',
        tag("title", picture.title or picture.name, id="title"),
        tag("desc", _about(picture), id="about"),
        f"<style>\n{STYLE}</style>",
        f"<defs>\n{BRICKS}\n</defs>",
        rect("page", 0, 0, width, height),
        text(MARGIN, MARGIN + 22, picture.name, TITLE_SIZE, "title"),
        text(MARGIN, MARGIN + 46, picture.title, SUBTITLE_SIZE, "sub"),
        f'<g transform="translate({num(shift)} 0)">',
        *_drawn(placed),
        "</g>",
        *links_list(picture, list_top, width),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _about(picture: LabPicture) -> str:
    """Say the picture in words."""
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


def _drawn(placed: Layout) -> Iterator[str]:
    for number, column in enumerate(placed.columns):
        yield from _network(column, first=not number)
    for gutter in placed.gutters:
        yield from _wall(gutter, placed.wall_top, placed.bottom)
    routes = [
        Route(placed, through, wire, y)
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


def _network(column: Column, *, first: bool) -> Iterator[str]:
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


def _wall(gutter: Gutter, top: float, bottom: float) -> Iterator[str]:
    """Draw the wall in pieces, between its holes."""
    if gutter.wall is None:
        return
    y = top
    for upper, lower in (*gutter.holes, (bottom, bottom)):
        if upper - y > 1:
            yield rect("", gutter.wall, y, WALL, upper - y, rx=2, fill="url(#bricks)")
            yield rect("edge", gutter.wall, y, WALL, upper - y, rx=2)
        y = max(y, lower)


def _run(data: str, number: int, *, stalled: bool) -> Iterator[str]:
    dashes = {"stroke-dasharray": "3 5"} if stalled else {}
    yield path("run", data, stroke=color(number), **dashes)


def _tubes(routes: Sequence[Route]) -> Iterator[str]:
    """Draw links with their tunnels inside, layer by layer: where two meet, they are one pipe."""
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


def _tunnels(route: Route) -> list[tuple[LiveTunnel, int]]:
    drawn = tunnels_drawn(route.wire.link) if route.wire.link else ()
    return list(zip(drawn, route.wire.colors, strict=False))


def _aside(route: Route, at: int) -> float:
    """How far from the middle of its tube a tunnel runs."""
    return (at - (len(route.wire.colors) - 1) / 2) * LINE_GAP


def _numbers(route: Route) -> Iterator[str]:
    """Write a link's numbers over and under it, and mark what is stalled on it."""
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


def _card(card: Card) -> Iterator[str]:
    yield group("host guest" if card.guest else "host", card.name)
    yield rect("card", card.box.x, card.box.y, card.box.width, card.box.height, rx=10)
    for piece in card.face.pieces:
        yield from _piece(piece, card.box.x + piece.x, card.box.y + piece.y)
    yield "</g>"


def _piece(piece: Piece, x: float, y: float) -> Iterator[str]:
    if piece.chip:
        yield rect(
            f"chip {piece.chip}", x - 8, y - 14, piece.width + 16, CHIP_HEIGHT, rx=CHIP_HEIGHT / 2
        )
    if piece.mark is not None:
        yield mark(piece.mark, x - 11, y - 4)
    yield text(x, y, piece.text, piece.size, piece.style)


def _opening(placed: Layout, through: Group) -> Iterator[str]:
    """Write who may pass, with an arrow through the hole."""
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
