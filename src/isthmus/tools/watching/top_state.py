"""What ``isthmus top`` shows and what each key does to it. Pure: keys and rows in, orders out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from isthmus.tools.watching.tunnel_rows import SORTS, Key, TunnelRow

#: The columns that s goes through.
SORTED_BY = tuple(SORTS)
_MOST_FILTER_CHARS = 200
HELP = (
    ("q", "quit"),
    ("up, down, j, k", "move; page up, page down, home and end likewise"),
    ("s", "sort by the next column: " + ", ".join(SORTED_BY)),
    ("r", "reverse the order"),
    ("/", "filter by any text of a line; Escape ends it"),
    ("e", "end the tunnel under the cursor; asks first"),
    ("space", "pause, and go on"),
    ("?", "this help"),
)


class Mode(Enum):
    """What keys are for."""

    LIST = "list"
    FILTER = "filter"
    CONFIRM = "confirm"
    HELP = "help"


class Order(Enum):
    """What a key asks of who owns the terminal."""

    NOTHING = "nothing"
    QUIT = "quit"
    END = "end"
    REDRAW = "redraw"


@dataclass(slots=True, kw_only=True)
class TopState:
    """The state of the screen; ``page`` is how many rows fit on it.

    Once it was moved, the cursor follows its tunnel and not its line: what is under it when e is
    pressed is what was there when the eye saw it.
    """

    sort: str = "rate"
    reverse: bool = False
    filter: str = ""
    paused: bool = False
    mode: Mode = Mode.LIST
    message: str = ""
    page: int = 10
    ending: TunnelRow | None = None
    rows: list[TunnelRow] = field(default_factory=list)
    _all: list[TunnelRow] = field(default_factory=list)
    _cursor: Key | None = None
    _line: int = 0
    _first: int = 0

    @property
    def line(self) -> int:
        """Where the cursor is among the rows; -1 when there are none."""
        return self._line if self.rows else -1

    @property
    def first(self) -> int:
        """The first row that is on the screen."""
        return self._first

    def take(self, rows: list[TunnelRow]) -> None:
        """Show other rows; nothing changes while paused."""
        if not self.paused:
            self._all = rows
            self._arrange()

    def fit(self, page: int) -> None:
        """So many rows fit now."""
        self.page = max(1, page)
        self._scroll()

    def key(self, name: str) -> Order:
        """Do what a key says."""
        match self.mode:
            case Mode.FILTER:
                self._filter_key(name)
            case Mode.CONFIRM:
                return self._confirm_key(name)
            case Mode.HELP:
                self.mode = Mode.LIST
                return Order.QUIT if name == "q" else Order.NOTHING
            case Mode.LIST:
                return self._list_key(name)
        return Order.NOTHING

    def _list_key(self, name: str) -> Order:
        self.message = ""
        match name:
            case "q":
                return Order.QUIT
            case "redraw":
                return Order.REDRAW
            case "up" | "k":
                self._move(self._line - 1)
            case "down" | "j":
                self._move(self._line + 1)
            case "page up":
                self._move(self._line - self.page)
            case "page down":
                self._move(self._line + self.page)
            case "home":
                self._move(0)
            case "end":
                self._move(len(self.rows) - 1)
            case "s":
                self.sort = SORTED_BY[(SORTED_BY.index(self.sort) + 1) % len(SORTED_BY)]
                self._arrange()
            case "r":
                self.reverse = not self.reverse
                self._arrange()
            case "/":
                self.mode = Mode.FILTER
            case "escape":
                self.filter = ""
                self._arrange()
            case "e" if self.rows:
                self.mode, self.ending = Mode.CONFIRM, self.rows[self._line]
            case "space":
                self.paused = not self.paused
            case "?" | "h":
                self.mode = Mode.HELP
            case _:
                pass
        return Order.NOTHING

    def _filter_key(self, name: str) -> None:
        match name:
            case "enter":
                self.mode = Mode.LIST
            case "escape":
                self.mode, self.filter = Mode.LIST, ""
            case "backspace":
                self.filter = self.filter[:-1]
            case "clear":
                self.filter = ""
            case "space":
                self.filter += " "
            case _ if len(name) == 1 and len(self.filter) < _MOST_FILTER_CHARS:
                self.filter += name
        self._arrange()

    def _confirm_key(self, name: str) -> Order:
        self.mode = Mode.LIST
        if name in ("y", "Y") and self.ending is not None:
            return Order.END
        self.ending, self.message = None, "not ended"
        return Order.NOTHING

    def _arrange(self) -> None:
        """Choose and sort, and put the cursor where its tunnel is now."""
        word = self.filter.casefold()
        chosen = [row for row in self._all if not word or word in _text(row)]
        self.rows = sorted(chosen, key=SORTS[self.sort], reverse=self.reverse)
        if self._cursor is not None:
            at = next((n for n, row in enumerate(self.rows) if row.key == self._cursor), None)
            self._line = self._line if at is None else at
        self._line = max(0, min(self._line, len(self.rows) - 1))
        if self._cursor is not None:
            self._cursor = self.rows[self._line].key if self.rows else None
        self._scroll()

    def _move(self, line: int) -> None:
        self._line = max(0, min(line, len(self.rows) - 1))
        # At the top it stays with the first line, as everybody who only watches wants.
        self._cursor = self.rows[self._line].key if self.rows and self._line else None
        self._scroll()

    def _scroll(self) -> None:
        last = max(0, len(self.rows) - self.page)
        low, high = self._line - self.page + 1, self._line
        self._first = max(0, min(max(self._first, low), high, last))


def _text(row: TunnelRow) -> str:
    words = (
        row.id, row.server, row.target, row.agent, row.frontend, row.requester, row.state,
        row.connection_id, row.relay,
    )  # fmt: skip
    return " ".join(words).casefold()
