"""A sheet of character cells to draw on, with colours for terminals and plain ASCII for others."""

from __future__ import annotations

from enum import Enum
from itertools import groupby


class Ink(Enum):
    """What a cell is written with; the value is the SGR parameter of ECMA-48 §8.3.117."""

    PLAIN = ""
    BOLD = "1"
    FAINT = "2"
    GOOD = "32"
    BAD = "31"
    WARN = "33"
    LINK = "36"
    WALL = "38;5;130"


# One cell for one cell; what is longer in ASCII is written by spell() before anything is measured.
ASCII_CELLS = str.maketrans(
    "┌┐└┘├┤┬┴┼╭╮╰╯╔╗╚╝╠╣╦╩╬╞╡╪─═│║▒●○✗…·▲▼",
    "+++++++++++++++++++++++++-=||#*ox~-^v",
)
ASCII_WORDS = {"→": "->", "↔": "<->", "↑": "up", "↓": "down", "µs": "us", "…": "..."}


def spell(text: str, *, ascii: bool) -> str:
    """Write a text in ASCII, if it has to be; it may become longer."""
    if not ascii:
        return text
    for sign, word in ASCII_WORDS.items():
        text = text.replace(sign, word)
    return text


def cut(text: str, room: int) -> str:
    """Shorten a text to the room there is."""
    return text if len(text) <= room else text[: max(room - 1, 0)] + "…"[:room]


class Canvas:
    """Rows of cells that grow as they are written on; what lies right of ``width`` is lost."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._rows: list[list[tuple[str, Ink]]] = []

    @property
    def height(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def put(self, row: int, column: int, text: str, ink: Ink = Ink.PLAIN) -> None:
        """Write a text over whatever is there."""
        while row >= len(self._rows):
            self._rows.append([(" ", Ink.PLAIN)] * self.width)
        for at, sign in enumerate(text, column):
            if 0 <= at < self.width:
                self._rows[row][at] = (sign, ink)

    def at(self, row: int, column: int) -> str:
        """The sign in a cell."""
        return self._rows[row][column][0] if row < self.height else " "

    def to_text(self, *, color: bool, ascii: bool) -> str:
        """All rows, without the blanks at their ends."""
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
