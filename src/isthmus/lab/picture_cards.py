"""What is written on a host's card in an SVG picture, and how large it becomes.

There are no fonts here to measure with: widths are estimated from characters, generously. Where
the cards go is picture_layout.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.lab.picture import DrawnGuest, DrawnHost, ProcessMark

PAD = 14
NAME_SIZE, TEXT_SIZE, MONO_SIZE = 15.0, 12.5, 12.0
MIN_CARD_WIDTH = 180.0
CHIPS_WIDTH = 220.0
CHIP_HEIGHT = 20.0
#: Average widths in ems; of DejaVu, which is among the widest that a viewer may have.
EM = {"name": 0.68, "strong": 0.68, "mono": 0.605, "faint": 0.58, "text": 0.58}


def text_width(text: str, size: float, style: str = "text") -> float:
    """Estimate how wide a text is, in the units of the picture."""
    return len(text) * size * EM.get(style, EM["text"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A text on a card, by the left end of its base line; with a mark or on a chip, if so said."""

    x: float
    y: float
    text: str
    size: float = TEXT_SIZE
    style: str = "text"
    mark: ProcessMark | None = None
    chip: str = ""

    @property
    def width(self) -> float:
        """The estimate."""
        return text_width(self.text, self.size, self.style)

    @property
    def right(self) -> float:
        """Where it ends, with its chip."""
        return self.x + self.width + (8 if self.chip else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """All that is on a card, relative to its corner; ``ports`` are heights where lines may go."""

    pieces: tuple[Piece, ...]
    width: float
    height: float
    ports: dict[str, float]


class _Writer:
    """Writes rows on a card, from the top down."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.ports: dict[str, float] = {}
        self.y = 10.0

    def row(
        self, *pieces: tuple[str, str], port: str = "", mark: ProcessMark | None = None
    ) -> None:
        """Write texts with their styles beside each other."""
        self.y += 19
        x = float(PAD) if mark is None else PAD + 16.0
        for text, style in pieces:
            size = {"name": NAME_SIZE, "mono": MONO_SIZE}.get(style, TEXT_SIZE)
            piece = Piece(x=x, y=self.y, text=text, size=size, style=style, mark=mark)
            self.pieces.append(piece)
            x, mark = piece.right + 8, None
        if port:
            self.ports[port] = self.y - 4

    def chips(self, texts: tuple[str, ...], kind: str) -> None:
        """Write texts on chips, in as many rows as they need."""
        if not texts:
            return
        self.y += 6
        x = float(PAD)
        self.y += 19
        for text in texts:
            piece = Piece(x=x + 8, y=self.y, text=text, size=11.5, style="text", chip=kind)
            if x > PAD and piece.right > CHIPS_WIDTH + PAD:
                self.y += CHIP_HEIGHT + 5
                x = float(PAD)
                piece = Piece(x=x + 8, y=self.y, text=text, size=11.5, style="text", chip=kind)
            self.pieces.append(piece)
            x = piece.right + 6
        self.y += 3

    def face(self) -> Face:
        """The card as it has become."""
        widest = max(piece.right for piece in self.pieces)
        return Face(
            pieces=tuple(self.pieces),
            width=max(widest + PAD, MIN_CARD_WIDTH),
            height=self.y + 12,
            ports=self.ports,
        )


def host_face(host: DrawnHost) -> Face:
    """Write a host's card."""
    card = _Writer()
    card.row((host.name, "name"), port="host")
    for address, port in _addresses(host):
        card.row(address, port=port)
    card.chips(tuple(place.shape for place in host.places if place.shape), "shape")
    for process in host.processes:
        what = () if process.what in ("", process.name) else ((process.what, "faint"),)
        card.row((process.name, "strong"), *what, port=f"process {process.name}", mark=process.mark)
    card.chips(host.serves, "serve")
    for service in host.services:
        card.row((service, "mono"))
    return card.face()


def _addresses(host: DrawnHost) -> Iterator[tuple[tuple[str, str], str]]:
    for number, place in enumerate(host.places):
        for address in place.addresses:
            text = f"{address}  on {place.network}" if number else address
            yield (text, "mono"), f"place {place.network}" if number else ""
    for address in host.also:
        yield (f"{address}  on lo", "mono"), ""


def guest_face(guest: DrawnGuest) -> Face:
    """Write the small card of a host that is drawn in another network."""
    card = _Writer()
    card.row((guest.host, "name"), port="host")
    for address in guest.place.addresses:
        card.row((address, "mono"))
    return card.face()
