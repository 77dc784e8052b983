"""The lines of ``isthmus top``: a summary, the tunnels that fit, and the meaning of the keys."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from isthmus.frame.cli.tables import GAP, counted, one_line, table_lines
from isthmus.programs import programs
from isthmus.text.units import age, rate, size
from isthmus.tools.watching.looking import Seen, items, number, text
from isthmus.tools.watching.tunnel_rows import SORTS, Key, TunnelRow

_SUMMARY_LINES = 2
#: The summary, an empty line, the column headers, and the line at the bottom.
AROUND = _SUMMARY_LINES + 3
_SORT_HEADS = {
    "age": "AGE",
    "bytes": "TO-TARGET",
    "rate": "RATE",
    "id": "ID",
    "target": "TARGET",
    "agent": "AGENT",
    "state": "STATE",
}
#: The columns that a narrow screen omits, in this order; never the sort column.
_GIVEN_UP = (
    "STALLED",
    "CONNECTION",
    "REQUESTER",
    "RELAY",
    "FRONTEND",
    "TO-CLIENT",
    "TO-TARGET",
    "AGENT",
    "AGE",
    "SERVER",
    "STATE",
)
#: Columns whose length a peer controls: at most this part of the screen, at least these characters.
_CUT = {"TARGET": (4, 21), "AGENT": (5, 12), "SERVER": (5, 12)}


@dataclass(frozen=True, slots=True)
class Line:
    """A line and its style: plain, head, cursor, bad or faint."""

    text: str
    look: str = "plain"


#: Programs whose clients reach targets through a server.
_BEFORE_A_SERVER = frozenset(it.name for it in programs() if it.before_a_server)
_WORKER = re.compile(r"-w\d+$")


@dataclass(slots=True)
class Counts:
    """Dials per second of all programs, from one query to the next."""

    dials_s: float | None = None
    failed_s: float | None = None
    _before: dict[str, tuple[float, float]] = field(default_factory=dict)
    _at_s: float = 0.0

    def take(self, programs: Sequence[Seen], *, now: float) -> None:
        """Update the rates; a program that is new or was restarted does not count."""
        totals = {}
        for seen in _counting(programs):
            found = seen.snapshot.get("totals")
            if isinstance(found, dict):
                totals[seen.client.url] = number(found, "dials"), number(found, "dialsFailed")
        over_s = now - self._at_s
        moved = [
            (dials - self._before[url][0], failed - self._before[url][1])
            for url, (dials, failed) in totals.items()
            if url in self._before and dials >= self._before[url][0]
        ]
        known = bool(moved) and over_s > 0
        self.dials_s = sum(dials for dials, _ in moved) / over_s if known else None
        self.failed_s = sum(failed for _, failed in moved) / over_s if known else None
        self._before, self._at_s = totals, now


def _counting(programs: Sequence[Seen]) -> list[Seen]:
    """The programs whose dials count: a dial through several programs is the server's."""
    servers = {each.id for each in programs if each.program == "server"}

    def counts(each: Seen) -> bool:
        if each.program in _BEFORE_A_SERVER:
            return not servers
        if each.program != "agent":
            return True
        peers = (text(link, "peerId") for link in items(each.snapshot, "links"))
        # To agents, each worker of a server is a server.
        return not any(peer in servers or _WORKER.sub("", peer) in servers for peer in peers)

    return list(filter(counts, programs))


def summary(
    programs: Sequence[Seen], rows: Sequence[TunnelRow], counts: Counts, *, clock: str
) -> list[Line]:
    """The two lines at the top: totals and rates, and the programs."""
    agents = sum(len(items(each.snapshot, "agents")) for each in programs)
    hidden = int(sum(number(each.snapshot, "truncated") for each in programs))
    stalled = sum(bool(row.stalled) for row in rows)
    speeds = [row.rate for row in rows if row.rate is not None]
    names = ", ".join(f"{each.program} {each.id}" for each in programs if each.error is None)
    missing = [each.client.address for each in programs if each.error is not None]
    what = (
        f"isthmus top  {clock}  {counted(agents, 'agent')},"
        f" {counted(len(rows) + hidden, 'tunnel')}, {stalled} stalled,"
        f" {rate(sum(speeds) if speeds else None)}, dials {_per_second(counts.dials_s)},"
        f" failed {_per_second(counts.failed_s)}"
    )
    if missing:
        return [Line(what), Line(f"{names or 'nothing'}; no answer: {', '.join(missing)}", "bad")]
    return [Line(what), Line(names, "faint")]


def _per_second(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}/s"


_COLUMNS: dict[str, Callable[[TunnelRow], str]] = {
    "ID": lambda row: row.id,
    "SERVER": lambda row: row.server,
    "TARGET": lambda row: row.target,
    "AGENT": lambda row: row.agent,
    "FRONTEND": lambda row: row.frontend,
    "STATE": lambda row: row.state,
    "TO-TARGET": lambda row: size(row.to_target),
    "TO-CLIENT": lambda row: size(row.to_client),
    "RATE": lambda row: rate(row.rate),
    "AGE": lambda row: age(row.age_s),
    "RELAY": lambda row: row.relay,
    "REQUESTER": lambda row: row.requester,
    "CONNECTION": lambda row: row.connection_id,
    "STALLED": lambda row: row.why,
}
#: The additional columns of -o wide.
_WIDE = ("RELAY", "REQUESTER", "CONNECTION", "STALLED")


def table(
    rows: Sequence[TunnelRow],
    *,
    several: bool,
    wide: bool = False,
    width: int = 0,
    sort: str = "",
    reverse: bool = False,
    widths: dict[str, int] | None = None,
) -> list[str]:
    """The headers and the rows as lines, with as many columns as fit into ``width``.

    ``wide`` adds columns, which a narrow screen omits first. The caller keeps ``widths`` between
    frames: columns only grow.
    """
    left_out = {*(() if several else ("SERVER",)), *(() if wide else _WIDE)}
    names = [name for name in _COLUMNS if name not in left_out]
    cells = {
        name: [_cut(name, one_line(_COLUMNS[name](row)), width) for row in rows] for name in names
    }
    sorted_by = _SORT_HEADS.get(sort, "")
    heads = {name: f"{name}{'^' if reverse else '*'}" if name == sorted_by else name
             for name in names}  # fmt: skip
    widths = {} if widths is None else widths
    for name in names:
        before = min(widths.get(name, 0), _most(name, width))
        widths[name] = max(before, *map(len, (heads[name], *cells[name])))
    kept = _fitting(names, widths, width, sorted_by)
    return table_lines(
        [heads[name] for name in kept],
        zip(*(cells[name] for name in kept), strict=True),
        [widths[name] for name in kept],
    )


def _most(name: str, width: int) -> int:
    """The maximum length of a cell."""
    share, least = _CUT.get(name, (1, 0))
    return max(least, width // share) if width else sys.maxsize


def _cut(name: str, text: str, width: int) -> str:
    most = _most(name, width)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _fitting(names: list[str], widths: dict[str, int], width: int, sorted_by: str) -> list[str]:
    kept = list(names)
    for name in _GIVEN_UP:
        if not width or len(GAP.join("x" * widths[one] for one in kept)) <= width:
            break
        if name in kept and name != sorted_by:
            kept.remove(name)
    return kept


def screen_lines(
    state: TopState,
    head: Sequence[Line],
    *,
    several: bool,
    wide: bool = False,
    size: tuple[int, int],
    widths: dict[str, int],
) -> list[Line]:
    """The whole screen, one Line per line, cut to its width."""
    width, height = size
    state.fit(height - AROUND)
    if state.mode is Mode.HELP:
        found = [*head, Line(""), *(Line(f"  {key:<16}{what}") for key, what in HELP)]
    else:
        shown = state.rows[state.first : state.first + state.page]
        heads, *rows = table(
            shown,
            several=several,
            wide=wide,
            width=width,
            sort=state.sort,
            reverse=state.reverse,
            widths=widths,
        )
        found = [*head, Line(""), Line(heads, "head")]
        for at, (row, text) in enumerate(zip(shown, rows, strict=True), state.first):
            look = "cursor" if at == state.line else "bad" if row.stalled else "plain"
            found.append(Line(text.ljust(width), look))
    found = found[: max(0, height - 1)]
    found += [Line("")] * (height - 1 - len(found))
    return [Line(one_line(each.text)[:width], each.look) for each in (*found, _bottom(state))]


def _bottom(state: TopState) -> Line:
    """The bottom line: a question, a message or the keys."""
    match state.mode:
        case Mode.FILTER:
            return Line(f"/{state.filter}_")
        case Mode.CONFIRM if state.ending is not None:
            row = state.ending
            who = f"{row.requester or 'unknown'} to {row.target} on {row.server}"
            return Line(f"End tunnel {row.id}, {who}? [y/N]", "bad")
        case Mode.HELP:
            return Line("press any key to go back", "faint")
        case _:
            pass
    if state.message:
        return Line(state.message, "bad")
    under = state.rows[state.line].why if state.rows else ""
    words = [
        "paused" if state.paused else "",
        f"filter: {state.filter}" if state.filter else "",
        f"{state.line + 1}/{len(state.rows)}",
        under or "q quit  s sort  r reverse  / filter  e end  space pause  ? help",
    ]
    return Line("  ".join(filter(None, words)), "faint")


#: The columns that the key s cycles through.
SORTED_BY = tuple(SORTS)
_MOST_FILTER_CHARS = 200
HELP = (
    ("q", "quit"),
    ("up, down, j, k", "move; page up, page down, home and end likewise"),
    ("s", "sort by the next column: " + ", ".join(SORTED_BY)),
    ("r", "reverse the order"),
    ("/", "filter by any text of a line; Escape clears it"),
    ("e", "end the tunnel under the cursor, after confirmation"),
    ("space", "pause or resume"),
    ("?", "this help"),
)


class Mode(Enum):
    """What the keys currently act on."""

    LIST = "list"
    FILTER = "filter"
    CONFIRM = "confirm"
    HELP = "help"


class Order(Enum):
    """What a key requests from the owner of the terminal."""

    NOTHING = "nothing"
    QUIT = "quit"
    END = "end"
    REDRAW = "redraw"


@dataclass(slots=True, kw_only=True)
class TopState:
    """The state of the screen; ``page`` is how many rows fit on it.

    Once moved, the cursor follows its tunnel and not its line, so that e ends the tunnel that the
    user saw under it.
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
        """The index of the cursor's row; -1 without rows."""
        return self._line if self.rows else -1

    @property
    def first(self) -> int:
        """The first row on the screen."""
        return self._first

    def take(self, rows: list[TunnelRow]) -> None:
        """Show other rows; nothing changes while paused."""
        if not self.paused:
            self._all = rows
            self._arrange()

    def fit(self, page: int) -> None:
        """Set how many rows fit."""
        self.page = max(1, page)
        self._scroll()

    def key(self, name: str) -> Order:
        """Handle a key."""
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
        """Filter and sort, and move the cursor to its tunnel."""
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
        # At the top the cursor stays on the first line, for users who only watch.
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
