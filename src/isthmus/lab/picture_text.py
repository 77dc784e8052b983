"""Draws a picture with characters: networks below each other, the wall in rows between them.

Links run down lanes at the right, through gaps in the wall; a host on several networks has a thin
line to each further network. Below are the links with their tunnels, and a legend. Colours are for
terminals, plain ASCII for those that show nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby

from isthmus.lab.picture import (
    DrawnGuest,
    DrawnHost,
    DrawnNetwork,
    DrawnOpening,
    HostAddresses,
    LabPicture,
    ProcessMark,
    counted,
    flow_text,
    link_texts,
)
from isthmus.lab.picture_live import LiveLink, LiveTunnel
from isthmus.text.units import took

MIN_WIDTH = 60
TUNNELS_SHOWN = 10
MARKS = {ProcessMark.RUNNING: "●", ProcessMark.DEAD: "✗", ProcessMark.WAITING: "○"}

# Replacements of one cell by one cell; spell() does longer ones before anything is measured.
ASCII_CELLS = str.maketrans(
    "┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝╠╣╦╩╬╞╡╪─═│║▒●○✗…·▲▼",
    "+++++++++++++++++++++++++-=||#*ox~-^v",
)
ASCII_WORDS = {"→": "->", "↔": "<->", "↑": "up", "↓": "down", "µs": "us", "…": "..."}

Key = tuple[str, str, str]


class Ink(Enum):
    """The style of a cell; the value is the SGR parameter of ECMA-48 §8.3.117."""

    PLAIN = ""
    BOLD = "1"
    FAINT = "2"
    GOOD = "32"
    BAD = "31"
    WARN = "33"
    LINK = "36"
    WALL = "38;5;130"


def spell(text: str, *, ascii: bool) -> str:
    """Write a text in ASCII if necessary, which may make it longer."""
    if not ascii:
        return text
    for sign, word in ASCII_WORDS.items():
        text = text.replace(sign, word)
    return text


def cut(text: str, room: int) -> str:
    """Shorten a text to the available room."""
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…"[:room]


class Canvas:
    """Rows of cells that grow as needed; cells beyond ``width`` are dropped."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: list[list[tuple[str, Ink]]] = []

    @property
    def height(self) -> int:
        return len(self._rows)

    def put(self, row: int, column: int, text: str, ink: Ink = Ink.PLAIN) -> None:
        while row >= len(self._rows):
            self._rows.append([(" ", Ink.PLAIN)] * self.width)
        for at, sign in enumerate(text, column):
            if 0 <= at < self.width:
                self._rows[row][at] = (sign, ink)

    def at(self, row: int, column: int) -> str:
        return self._rows[row][column][0] if row < self.height else " "

    def to_text(self, *, color: bool, ascii: bool) -> str:
        return "\n".join(self._line(row, color=color, ascii=ascii) for row in self._rows) + "\n"

    def _line(self, row: list[tuple[str, Ink]], *, color: bool, ascii: bool) -> str:
        used = max((at for at, (sign, _) in enumerate(row, 1) if sign != " "), default=0)
        line = []
        for ink, cells in groupby(row[:used], key=lambda cell: cell[1]):
            text = "".join(sign for sign, _ in cells)
            if ascii:
                text = text.translate(ASCII_CELLS).encode("ascii", "replace").decode("ascii")
            line.append(f"\x1b[{ink.value}m{text}\x1b[0m" if color and ink.value else text)
        return "".join(line)


@dataclass(frozen=True, slots=True)
class Pen:
    """The characters of one kind of line, by the sides at which they leave a cell."""

    across: str
    down: str
    corners: str  # from the left: the top of a lane, its bottom, the middle
    tees: str  # the same, continuing to the right
    out: str  # out of a host's box
    through: str  # through a network's border


THICK = Pen("═", "║", "╗╝╣", "╦╩╬", "╞", "╪")
THIN = Pen("─", "│", "┐┘┤", "┬┴┼", "├", "┼")


@dataclass(slots=True)
class Lane:
    """A vertical line at the right side, and the rows that are joined to it."""

    pen: Pen
    ink: Ink
    keys: frozenset[Key]
    rows: list[int] = field(default_factory=list)
    column: int = 0

    @property
    def ends(self) -> tuple[int, int]:
        """The first and the last row."""
        return min(self.rows), max(self.rows)


def link_key(link: LiveLink) -> Key:
    """Identifies the connection of a link's two processes."""
    return ("link", link.server_process, link.agent_process)


def place_key(host: str, network: str) -> Key:
    """Identifies the connection of a host to one of its further networks."""
    return ("place", host, network)


def lanes_of(picture: LabPicture, *, most: int) -> list[Lane]:
    """The lanes; links are combined by agent or server if there are too many."""
    thin = [
        Lane(THIN, Ink.FAINT, frozenset({place_key(guest.host, guest.place.network)}))
        for network in picture.networks
        for guest in network.guests
    ][:most]
    drawn = {process.name for host in picture.hosts for process in host.processes}
    links = [
        link
        for link in picture.links
        if {link.agent_process, link.server_process} <= drawn
        and link.agent_process != link.server_process
    ]
    ways: tuple[Callable[[LiveLink], object], ...] = (
        link_key,
        lambda link: link.agent_process,
        lambda link: link.server_process,
        lambda link: "",
    )
    for way in ways:
        together: dict[object, list[LiveLink]] = {}
        for link in links:
            together.setdefault(way(link), []).append(link)
        if len(together) + len(thin) <= most:
            break
    return thin + [
        Lane(
            THICK,
            Ink.LINK if all(link.well for link in group) else Ink.BAD,
            frozenset(map(link_key, group)),
        )
        for group in together.values()
    ]


def draw_lanes(canvas: Canvas, lanes: Sequence[Lane], left: int) -> None:
    """Draw lanes with known rows, right of the column ``left``."""
    # The lane that begins first is outermost: then no lane crosses the start of another.
    lanes = sorted(
        (lane for lane in lanes if len(lane.rows) > 1),
        key=lambda lane: (lane.ends[0], -lane.ends[1]),
        reverse=True,
    )
    for number, lane in enumerate(lanes):
        lane.column = left + 1 + 2 * number
        for row in range(lane.ends[0], lane.ends[1] + 1):
            canvas.put(row, lane.column - 1, " ")
            canvas.put(row, lane.column + 1, " ")
            canvas.put(row, lane.column, lane.pen.down, lane.ink)
    for lane in lanes:
        for row in lane.rows:
            # A crossed lane is drawn underneath.
            canvas.put(row, left, lane.pen.across * (lane.column - left), lane.ink)
    for row in {row for lane in lanes for row in lane.rows}:
        here = [lane for lane in lanes if row in lane.rows]
        furthest = max(lane.column for lane in here)
        for lane in here:
            signs = lane.pen.corners if lane.column == furthest else lane.pen.tees
            sign = signs[0 if row == lane.ends[0] else 1 if row == lane.ends[1] else 2]
            canvas.put(row, lane.column, sign, lane.ink)


INKS = {ProcessMark.RUNNING: Ink.GOOD, ProcessMark.DEAD: Ink.BAD, ProcessMark.WAITING: Ink.FAINT}


@dataclass(frozen=True, slots=True)
class HostLine:
    """A line in a host's box, what it is joined to, and the text on the connection."""

    text: str
    ink: Ink = Ink.PLAIN
    keys: frozenset[Key] = frozenset()
    notes: tuple[str, ...] = ()


def draw(picture: LabPicture, *, width: int = 100, color: bool, ascii: bool = False) -> str:
    """Draw a lab with characters, at most ``width`` of them in a row (at least 60).

    ``color`` is for terminals; ``ascii`` is for terminals without other characters.
    """
    return _Drawing(picture, max(width, MIN_WIDTH), ascii=ascii).to_text(color=color)


class _Drawing:
    """The state of drawing one picture on a canvas."""

    def __init__(self, picture: LabPicture, width: int, *, ascii: bool) -> None:
        self._picture = picture
        self._ascii = ascii
        self._canvas = Canvas(width)
        self._lanes = lanes_of(picture, most=(width - 50) // 3)
        self._box = width - (2 * len(self._lanes) + 2 if self._lanes else 0)

    def to_text(self, *, color: bool) -> str:
        self._say([(self._picture.name, Ink.BOLD), (f"  {self._picture.title}", Ink.PLAIN)])
        for number, network in enumerate(self._picture.networks):
            if number:
                self._wall(number)
            self._network(network)
        draw_lanes(self._canvas, self._lanes, self._box)
        self._below()
        return self._canvas.to_text(color=color, ascii=self._ascii)

    def _spell(self, text: str) -> str:
        return spell(text, ascii=self._ascii)

    def _say(self, parts: Sequence[tuple[str, Ink]]) -> None:
        row, column = self._canvas.height, 0
        for text, ink in parts:
            text = cut(self._spell(text), self._canvas.width - column)
            self._canvas.put(row, column, text, ink)
            column += len(text)
        self._canvas.put(row, 0, "")

    # Networks and their hosts.

    def _network(self, network: DrawnNetwork) -> None:
        top = self._canvas.height
        title = f" {network.name} "
        cidrs = "  ".join(network.cidrs) + (f"  {network.note}" if network.note else "")
        self._canvas.put(top, 0, "┌" + "─" * (self._box - 2) + "┐", Ink.FAINT)
        self._canvas.put(top, 2, title, Ink.BOLD)
        self._canvas.put(top, 2 + len(title), cut(cidrs, self._box - len(title) - 5) + " ")
        row, column, bottom = top + 1, 2, top + 1
        for host in network.hosts:
            lines = self._lines(host)
            size = self._box_width(host, lines)
            joined = any(self._joined(line.keys) for line in lines)
            # Every host with a line to the right gets a row of its own.
            if column > 2 and (joined or column + size > self._box - 2):
                row, column = bottom, 2
            self._host(host, lines, row, column, size)
            bottom = max(bottom, row + len(lines) + 2)
            column = self._box if joined else column + size + 2
        for guest in network.guests:
            self._guest(guest, bottom)
            bottom += 1
        for one in range(top + 1, max(bottom, top + 2)):
            for side in (0, self._box - 1):
                sign = THICK.through if self._canvas.at(one, side) == THICK.across else "│"
                sign = THIN.through if self._canvas.at(one, side) == THIN.across else sign
                self._canvas.put(one, side, sign, Ink.FAINT if sign == "│" else Ink.LINK)
        last = self._canvas.height
        self._canvas.put(last, 0, "└" + "─" * (self._box - 2) + "┘", Ink.FAINT)

    def _lines(self, host: DrawnHost) -> list[HostLine]:
        first, *others = host.places
        lines = [HostLine(" ".join(first.addresses), Ink.FAINT)]
        if first.shape:
            lines.append(HostLine(first.shape, Ink.WARN))
        for place in others:
            keys = frozenset({place_key(host.name, place.network)})
            lines.append(HostLine(f"{place.network}  {_addresses(place)}", Ink.FAINT, keys))
        if host.also:
            lines.append(HostLine(f"lo  {' '.join(host.also)}", Ink.FAINT))
        for process in host.processes:
            what = "" if process.what in ("", process.name) else f"  {process.what}"
            text = f"{MARKS[process.mark]} {process.name}{what}"
            keys, notes = self._links_of(process.name)
            lines.append(HostLine(text, INKS[process.mark], keys, notes))
        if host.serves:
            lines.append(HostLine("serves " + ", ".join(host.serves)))
        lines += (HostLine(service) for service in host.services)
        return [replace(line, text=self._spell(line.text)) for line in lines]

    def _links_of(self, process: str) -> tuple[frozenset[Key], tuple[str, ...]]:
        """The connections of a process; the agent's side shows the numbers."""
        mine = [one for one in self._picture.links if one.agent_process == process]
        served = [one for one in self._picture.links if one.server_process == process]
        return frozenset(link_key(link) for link in (*mine, *served)), _notes(mine)

    def _joined(self, keys: frozenset[Key]) -> list[Lane]:
        return [lane for lane in self._lanes if lane.keys & keys]

    def _box_width(self, host: DrawnHost, lines: Iterable[HostLine]) -> int:
        widest = max(len(host.name) + 2, *(len(line.text) for line in lines))
        return min(widest + 4, self._box - 4)

    def _host(
        self, host: DrawnHost, lines: Sequence[HostLine], row: int, column: int, size: int
    ) -> None:
        name = cut(f" {host.name} ", size - 2)
        self._canvas.put(row, column, "╭" + "─" * (size - 2) + "╮")
        self._canvas.put(row, column + 1, name, Ink.BOLD)
        for at, line in enumerate(lines, row + 1):
            self._canvas.put(at, column, "│" + " " * (size - 2) + "│")
            self._canvas.put(at, column + 2, cut(line.text, size - 4), line.ink)
            self._join(at, column + size - 1, line)
        self._canvas.put(row + len(lines) + 1, column, "╰" + "─" * (size - 2) + "╯")

    def _guest(self, guest: DrawnGuest, row: int) -> None:
        text = cut(self._spell(f"{guest.host}  {_addresses(guest.place)} "), self._box - 6)
        self._canvas.put(row, 2, text, Ink.FAINT)
        keys = frozenset({place_key(guest.host, guest.place.network)})
        self._join(row, 2 + len(text), HostLine("", keys=keys))

    def _join(self, row: int, column: int, line: HostLine) -> None:
        """Draw a line's connection to the lanes, with its text if there is room."""
        lanes = self._joined(line.keys)
        if not lanes:
            return
        pen, ink = lanes[0].pen, lanes[0].ink
        self._canvas.put(row, column, pen.out + pen.across * (self._box - column - 1), ink)
        notes = list(line.notes)
        while notes and len(note := self._spell(f" {' · '.join(notes)} ")) > self._box - column - 6:
            notes.pop()
        if notes:
            self._canvas.put(row, column + 3, note)
        for lane in lanes:
            lane.rows.append(row)

    # The wall and its openings.

    def _wall(self, below: int) -> None:
        """Draw the wall above a network, with the openings that begin or end just above it."""
        order = {one.name: at for at, one in enumerate(self._picture.networks)}
        openings = [
            one
            for one in self._picture.openings
            if min(order[one.source], order[one.target]) == below - 1
        ]
        row, column = self._canvas.height, 6
        self._canvas.put(row, 0, "▒" * self._canvas.width, Ink.WALL)
        for opening in openings:
            text = cut(f"  {self._spell(_opening(opening, order))}  ", self._box - 8)
            if column > 6 and column + len(text) > self._box - 2:
                row, column = row + 1, 6
                self._canvas.put(row, 0, "▒" * self._canvas.width, Ink.WALL)
            self._canvas.put(row, column, text)
            column += len(text) + 6

    # The list below the picture.

    def _below(self) -> None:
        if self._picture.links:
            self._say([])
        for link in self._picture.links:
            ink = Ink.LINK if link.well else Ink.BAD
            elsewhere = "" if link.agent_process and link.server_process else "not of this lab"
            numbers = " · ".join(part for part in (*link_texts(link), elsewhere) if part)
            self._say([(f"{link.agent} ═══ {link.server}", ink), (f"  {numbers}", Ink.PLAIN)])
            shown = sorted(link.tunnels, key=lambda one: not one.stalled)[:TUNNELS_SHOWN]
            room = max((len(one.target) for one in shown), default=0)
            for tunnel in shown:
                self._tunnel(tunnel, room)
            if link.open > len(shown):
                self._say([(f"  … {link.open - len(shown)} more", Ink.FAINT)])
        self._say([])
        self._legend()

    def _tunnel(self, tunnel: LiveTunnel, room: int) -> None:
        flow = flow_text(tunnel.to_target, tunnel.to_client)
        numbers = f"{tunnel.target:{room}}  {tunnel.frontend:12}  {flow:18}  "
        state, ink = (tunnel.state, Ink.PLAIN) if not tunnel.stalled else ("stalled", Ink.WARN)
        self._say([("  ─ ", Ink.LINK), (numbers, Ink.PLAIN), (state, ink)])
        if tunnel.stalled:
            self._say([(f"    {' ' * room}  {tunnel.stalled}", Ink.WARN)])

    def _legend(self) -> None:
        marks = {one.mark for host in self._picture.hosts for one in host.processes}
        parts = [f"{MARKS[mark]} {mark.value}" for mark in ProcessMark if mark in marks]
        if len(self._picture.networks) > 1:
            parts.append(f"▒ wall, {'drops' if self._picture.drops else 'rejects'} the rest")
        if self._picture.links:
            parts += ["═ link", "↑ to targets", "↓ to clients"]
        self._say([("   ".join(parts), Ink.FAINT)])


def _addresses(place: HostAddresses) -> str:
    return " ".join(place.addresses) + (f"  {place.shape}" if place.shape else "")


def _opening(opening: DrawnOpening, order: dict[str, int]) -> str:
    if opening.both:
        return f"▲ ▼ {opening.who} ↔ {opening.whom}"
    sign = "▲" if order[opening.source] > order[opening.target] else "▼"
    return f"{sign} {opening.who} → {opening.whom}"


def _notes(links: Sequence[LiveLink]) -> tuple[str, ...]:
    """The text between an agent and its lanes: of one link, or of all together."""
    if len(links) < 2:
        return link_texts(links[0]) if links else ()
    known = [link.rtt_s for link in links if link.rtt_s is not None]
    return (
        counted(len(links), "link"),
        counted(sum(link.open for link in links), "tunnel"),
        flow_text(
            sum(link.to_agent or 0 for link in links), sum(link.to_server or 0 for link in links)
        ),
        *([f"rtt {took(min(known))}"] if known else []),
    )
