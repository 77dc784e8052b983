"""Draws a picture with characters: networks below each other, the wall in rows between them.

Links run down lanes at the right, through gaps in the wall; a host on several networks has a thin
line there to each of the others. Below are the links with their tunnels, and the signs explained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from isthmus.lab.picture import Guest, HostView, Mark, NetworkView, Opening, Picture, Place
from isthmus.lab.picture_canvas import Canvas, Ink, cut, spell
from isthmus.lab.picture_lanes import (
    THICK,
    THIN,
    Key,
    Lane,
    draw_lanes,
    lanes_of,
    link_key,
    place_key,
)
from isthmus.lab.picture_live import Link, Tunnel
from isthmus.lab.picture_words import counted, flow_text, link_texts, rtt_text

MIN_WIDTH = 60
TUNNELS_SHOWN = 10
MARKS = {Mark.RUNNING: "●", Mark.DEAD: "✗", Mark.WAITING: "○"}
INKS = {Mark.RUNNING: Ink.GOOD, Mark.DEAD: Ink.BAD, Mark.WAITING: Ink.FAINT}


@dataclass(frozen=True, slots=True)
class Line:
    """A line in a host's box, what it may be joined to, and what is said on the way there."""

    text: str
    ink: Ink = Ink.PLAIN
    keys: frozenset[Key] = frozenset()
    notes: tuple[str, ...] = ()


def draw(picture: Picture, *, width: int = 100, color: bool, ascii: bool = False) -> str:
    """Draw a lab with characters, at most ``width`` of them in a row (and not below 60).

    ``color`` is for terminals; ``ascii`` is for those that cannot show anything else.
    """
    return _Drawing(picture, max(width, MIN_WIDTH), ascii=ascii).to_text(color=color)


class _Drawing:
    """One picture on its way to a canvas."""

    def __init__(self, picture: Picture, width: int, *, ascii: bool) -> None:
        self._picture = picture
        self._ascii = ascii
        self._canvas = Canvas(width)
        self._lanes = lanes_of(picture, most=(width - 50) // 3)
        self._box = width - (2 * len(self._lanes) + 2 if self._lanes else 0)

    def to_text(self, *, color: bool) -> str:
        """Draw everything."""
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

    # The networks and their hosts.

    def _network(self, network: NetworkView) -> None:
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
            # Whatever has a line to the right gets a row of boxes for itself.
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

    def _lines(self, host: HostView) -> list[Line]:
        first, *others = host.places
        lines = [Line(" ".join(first.addresses), Ink.FAINT)]
        if first.shape:
            lines.append(Line(first.shape, Ink.WARN))
        for place in others:
            keys = frozenset({place_key(host.name, place.network)})
            lines.append(Line(f"{place.network}  {_addresses(place)}", Ink.FAINT, keys))
        if host.also:
            lines.append(Line(f"lo  {' '.join(host.also)}", Ink.FAINT))
        for process in host.processes:
            what = "" if process.what in ("", process.name) else f"  {process.what}"
            text = f"{MARKS[process.mark]} {process.name}{what}"
            keys, notes = self._links_of(process.name)
            lines.append(Line(text, INKS[process.mark], keys, notes))
        if host.serves:
            lines.append(Line("serves " + ", ".join(host.serves)))
        lines += (Line(service) for service in host.services)
        return [replace(line, text=self._spell(line.text)) for line in lines]

    def _links_of(self, process: str) -> tuple[frozenset[Key], tuple[str, ...]]:
        """What a process is joined to; the agent's side of it has the numbers."""
        mine = [one for one in self._picture.links if one.agent_process == process]
        served = [one for one in self._picture.links if one.server_process == process]
        return frozenset(link_key(link) for link in (*mine, *served)), _notes(mine)

    def _joined(self, keys: frozenset[Key]) -> list[Lane]:
        return [lane for lane in self._lanes if lane.keys & keys]

    def _box_width(self, host: HostView, lines: Iterable[Line]) -> int:
        widest = max(len(host.name) + 2, *(len(line.text) for line in lines))
        return min(widest + 4, self._box - 4)

    def _host(
        self, host: HostView, lines: Sequence[Line], row: int, column: int, size: int
    ) -> None:
        name = cut(f" {host.name} ", size - 2)
        self._canvas.put(row, column, "╭" + "─" * (size - 2) + "╮")
        self._canvas.put(row, column + 1, name, Ink.BOLD)
        for at, line in enumerate(lines, row + 1):
            self._canvas.put(at, column, "│" + " " * (size - 2) + "│")
            self._canvas.put(at, column + 2, cut(line.text, size - 4), line.ink)
            self._join(at, column + size - 1, line)
        self._canvas.put(row + len(lines) + 1, column, "╰" + "─" * (size - 2) + "╯")

    def _guest(self, guest: Guest, row: int) -> None:
        text = cut(self._spell(f"{guest.host}  {_addresses(guest.place)} "), self._box - 6)
        self._canvas.put(row, 2, text, Ink.FAINT)
        keys = frozenset({place_key(guest.host, guest.place.network)})
        self._join(row, 2 + len(text), Line("", keys=keys))

    def _join(self, row: int, column: int, line: Line) -> None:
        """Draw the way out to the lanes, with what is said on it if there is room."""
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

    # The wall, and what goes through it.

    def _wall(self, below: int) -> None:
        """Draw the wall above a network, with the openings that begin or end just over it."""
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

    # Below the picture.

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

    def _tunnel(self, tunnel: Tunnel, room: int) -> None:
        flow = flow_text(tunnel.to_target, tunnel.to_client)
        numbers = f"{tunnel.target:{room}}  {tunnel.frontend:12}  {flow:18}  "
        state, ink = (tunnel.state, Ink.PLAIN) if not tunnel.stalled else ("stalled", Ink.WARN)
        self._say([("  ─ ", Ink.LINK), (numbers, Ink.PLAIN), (state, ink)])
        if tunnel.stalled:
            self._say([(f"    {' ' * room}  {tunnel.stalled}", Ink.WARN)])

    def _legend(self) -> None:
        marks = {one.mark for host in self._picture.hosts for one in host.processes}
        parts = [f"{MARKS[mark]} {mark.value}" for mark in Mark if mark in marks]
        if len(self._picture.networks) > 1:
            parts.append(f"▒ wall, {'drops' if self._picture.drops else 'rejects'} the rest")
        if self._picture.links:
            parts += ["═ link", "↑ to targets", "↓ to clients"]
        self._say([("   ".join(parts), Ink.FAINT)])


def _addresses(place: Place) -> str:
    return " ".join(place.addresses) + (f"  {place.shape}" if place.shape else "")


def _opening(opening: Opening, order: dict[str, int]) -> str:
    if opening.both:
        return f"▲ ▼ {opening.who} ↔ {opening.whom}"
    sign = "▲" if order[opening.source] > order[opening.target] else "▼"
    return f"{sign} {opening.who} → {opening.whom}"


def _notes(links: Sequence[Link]) -> tuple[str, ...]:
    """What is said on the way from an agent to its lanes: of one link, or of all together."""
    if len(links) < 2:
        return link_texts(links[0]) if links else ()
    known = [link.rtt_s for link in links if link.rtt_s is not None]
    return (
        counted(len(links), "link"),
        counted(sum(link.open for link in links), "tunnel"),
        flow_text(
            sum(link.to_agent or 0 for link in links), sum(link.to_server or 0 for link in links)
        ),
        *([f"rtt {rtt_text(min(known))}"] if known else []),
    )
