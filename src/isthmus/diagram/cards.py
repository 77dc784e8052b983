"""Cards: texts in rows on a frame, placed without any font by estimates of their widths.

A kind of text is a class of the style sheet, and has its size and the step from the row above it
here. Which kinds there are is page.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from isthmus.diagram.svg import circle, num, path, rect, text, text_width, wrap

TEXT_SIZE, CHIP_SIZE = 12.0, 11.5
CHIP_HEIGHT = 19.0
SIZES: Mapping[str, float] = {"title": 20.0, "sub": 13.0, "name": 14.5, "strong": 12.5, "bad": 14.5}
STEPS: Mapping[str, float] = {"title": 24.0, "sub": 21.0, "name": 19.0, "strong": 19.0, "bad": 19.0}
_STEP = 16.0
#: From the upper edge of a card to where its rows begin, and from the last row to its lower edge.
TOP, BOTTOM = 4.0, 10.0
#: What a sign before a text takes, and what a chip is wider than its text on each side.
_SIGN, _CHIP_PAD = 16.0, 8.0
_BESIDE = 8.0
#: Beyond any page: there, nothing is broken into lines.
_FAR = 1e6


def size_of(kind: str) -> float:
    """The size of a kind of text, by its first word."""
    return SIZES.get(kind.split()[0], TEXT_SIZE)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text by the left end of its base line; ``chip`` and ``sign`` name what goes with it."""

    x: float
    y: float
    text: str
    size: float = TEXT_SIZE
    kind: str = "text"
    chip: str = ""
    sign: str = ""

    @property
    def width(self) -> float:
        return text_width(self.text, self.size, self.kind)

    @property
    def right(self) -> float:
        """Where it ends, with its chip."""
        return self.x + self.width + (_CHIP_PAD if self.chip else 0)

    def drawn(self, dx: float = 0.0, dy: float = 0.0) -> Iterator[str]:
        """Draw it, moved by what its card is moved."""
        x, y = self.x + dx, self.y + dy
        if self.sign:
            yield state_sign(self.sign, x - _SIGN + 5, y - 4)
        if not self.chip:
            yield text(x, y, self.text, self.size, self.kind)
            return
        width = self.width + 2 * _CHIP_PAD
        yield rect(self.chip, x - _CHIP_PAD, y - 13.5, width, CHIP_HEIGHT, rx=CHIP_HEIGHT / 2)
        # In the middle: a font narrower than the estimate would leave more room at the right.
        yield text(x + self.width / 2, y, self.text, self.size, self.kind, anchor="middle")


def state_sign(state: str, x: float, y: float) -> str:
    """Draw a state, ``running``, ``waiting`` or ``dead``, as a dot, a ring or a cross."""
    if state == "dead":
        return path("dead", f"M{num(x - 4)} {num(y - 4)}l8 8m0 -8l-8 8")
    return circle(state, x, y, 4.5)


class CardWriter:
    """Writes rows on a card from the top down, broken where there is a right end.

    ``ports`` are heights at which lines may lead to the card, by the names given to rows.
    """

    def __init__(self, x: float, y: float, *, right: float = _FAR) -> None:
        self._x, self._right = x, right
        self.y = y + TOP
        self.labels: list[Label] = []
        self.ports: dict[str, float] = {}

    @property
    def bottom(self) -> float:
        """The lower edge of a card around all that is written."""
        return self.y + BOTTOM

    @property
    def widest(self) -> float:
        """Where the longest row ends."""
        return max((label.right for label in self.labels), default=self._x)

    def row(self, content: str, kind: str = "text", *, sign: str = "", port: str = "") -> None:
        """Write a text, in as many rows as it needs; with a sign before it, if there is one."""
        x, size = self._x + (_SIGN if sign else 0), size_of(kind)
        for part in wrap(content, self._right - x, size, kind):
            self.y += STEPS.get(kind, _STEP)
            self.labels.append(Label(x=x, y=self.y, text=part, size=size, kind=kind, sign=sign))
        if port:
            self.ports[port] = self.y - 4

    def beside(self, content: str, kind: str) -> None:
        """Write a text behind the one written last."""
        x, size = self.labels[-1].right + _BESIDE, size_of(kind)
        self.labels.append(Label(x=x, y=self.y, text=content, size=size, kind=kind))

    def chips(self, contents: Iterable[str], kind: str, *, right: float = _FAR) -> None:
        """Write texts on chips beside each other, in as many rows as fit before ``right``."""
        x = _FAR
        for content in contents:
            width = text_width(content, CHIP_SIZE)
            if x == _FAR or x + 2 * _CHIP_PAD + width > right:
                self.y += CHIP_HEIGHT + 5
                x = self._x
            self._chip(x + _CHIP_PAD, content, kind)
            x = self.labels[-1].right + 6
        if x < _FAR:
            self.y += 6

    def chip_right(self, content: str) -> None:
        """Put a chip at the right end of the row written last."""
        self._chip(self._right - text_width(content, CHIP_SIZE) - 4, content, "")

    def _chip(self, x: float, content: str, kind: str) -> None:
        # A chip's text has its colour from the chip's kind.
        label = Label(
            x=x,
            y=self.y,
            text=content,
            size=CHIP_SIZE,
            kind=f"text {kind}".strip(),
            chip=f"chip {kind}".strip(),
        )
        self.labels.append(label)
