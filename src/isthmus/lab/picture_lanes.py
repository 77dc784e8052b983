"""The lines down the right side of a text picture: links thick, a host's further networks thin.

Who is joined to which lane is said by keys: a link's two processes, or a host and a network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from isthmus.lab.picture import Picture
from isthmus.lab.picture_canvas import Canvas, Ink
from isthmus.lab.picture_live import Link

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Pen:
    """The signs of one kind of line, by the sides of a cell that it leaves by."""

    across: str
    down: str
    corners: str  # in from the left: the top of a lane, its bottom, between
    tees: str  # the same, and on to the right
    out: str  # out of a host's box
    through: str  # through a network's border


THICK = Pen("═", "║", "╗╝╣", "╦╩╬", "╞", "╪")
THIN = Pen("─", "│", "┐┘┤", "┬┴┼", "├", "┼")


@dataclass(slots=True)
class Lane:
    """A line down the right side, and the rows in which something is joined to it."""

    pen: Pen
    ink: Ink
    keys: frozenset[Key]
    rows: list[int] = field(default_factory=list)
    column: int = 0

    @property
    def ends(self) -> tuple[int, int]:
        """The first row and the last."""
        return min(self.rows), max(self.rows)


def link_key(link: Link) -> Key:
    """What a link's two processes are joined by."""
    return ("link", link.server_process, link.agent_process)


def place_key(host: str, network: str) -> Key:
    """What a host and one of its further networks are joined by."""
    return ("place", host, network)


def lanes_of(picture: Picture, *, most: int) -> list[Lane]:
    """The lanes that are needed: of links together by agent or server if there are too many."""
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
    ways: tuple[Callable[[Link], object], ...] = (
        link_key,
        lambda link: link.agent_process,
        lambda link: link.server_process,
        lambda link: "",
    )
    for way in ways:
        together: dict[object, list[Link]] = {}
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
    """Draw lanes whose rows are known, right of the column ``left``."""
    # Who begins first is outermost: then no lane crosses another's beginning.
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
            # A lane that is only crossed goes under.
            canvas.put(row, left, lane.pen.across * (lane.column - left), lane.ink)
    for row in {row for lane in lanes for row in lane.rows}:
        here = [lane for lane in lanes if row in lane.rows]
        furthest = max(lane.column for lane in here)
        for lane in here:
            signs = lane.pen.corners if lane.column == furthest else lane.pen.tees
            sign = signs[0 if row == lane.ends[0] else 1 if row == lane.ends[1] else 2]
            canvas.put(row, lane.column, sign, lane.ink)
