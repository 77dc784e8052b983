"""The list below an SVG picture: every link with its numbers and tunnels, and what signs mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.lab.picture import LabPicture, ProcessMark, flow_text, link_texts
from isthmus.lab.picture_cards import text_width
from isthmus.lab.picture_layout import MARGIN
from isthmus.lab.picture_live import LiveLink
from isthmus.lab.picture_svg_tags import color, mark
from isthmus.lab.picture_wires import tunnel_colors, tunnels_drawn
from isthmus.text.svg import num, path, tag, text

ROW = 24.0
SIZE = 13.0
SWATCH = 34.0
LEGEND_SIZE = 12.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A text of a row and how it is written."""

    text: str
    style: str = "text"


@dataclass(frozen=True, slots=True)
class Row:
    """A link, or one of its tunnels with the colour of its line."""

    cells: tuple[Cell, ...]
    color: int | None = None
    stalled: bool = False


def _rows(picture: LabPicture) -> list[Row]:
    rows = []
    for link, colors in zip(picture.links, tunnel_colors(picture), strict=True):
        rows.append(_link_row(link))
        drawn = tunnels_drawn(link)
        for tunnel, number in zip(drawn, colors, strict=True):
            flow = flow_text(tunnel.to_target, tunnel.to_client)
            state = Cell(tunnel.state, "faint")
            if tunnel.stalled:
                state = Cell(f"stalled: {tunnel.stalled}", "warn")
            cells = (Cell(tunnel.target), Cell(tunnel.frontend, "faint"), Cell(flow), state)
            rows.append(Row(cells, number, bool(tunnel.stalled)))
        if link.open > len(drawn):
            rows.append(Row((Cell(f"and {link.open - len(drawn)} more", "faint"),)))
    return rows


def _link_row(link: LiveLink) -> Row:
    elsewhere = "" if link.agent_process and link.server_process else "not of this lab"
    numbers = " · ".join(part for part in (*link_texts(link), elsewhere) if part)
    return Row(
        (
            Cell(f"{link.agent} – {link.server}", "strong"),
            Cell(numbers, "text" if link.well else "bad"),
        )
    )


def _columns(rows: list[Row]) -> list[float]:
    """Where the columns of the tunnels' rows begin."""
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


def _placed(rows: list[Row]) -> Iterator[tuple[Row, list[tuple[float, Cell]]]]:
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
    """How wide and how high the list is, without margins."""
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
    """Draw the list, from ``top`` on."""
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
        yield mark(one, x + 5, y - 4)
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
