"""The lines of ``isthmus top``: a summary, the tunnels that fit, and what the keys are for."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from isthmus.frame.cli.tables import GAP, age, counted, one_line, rate, size, table_lines
from isthmus.tools.watching.looking import Seen, items, number, text
from isthmus.tools.watching.top_state import HELP, Mode, TopState
from isthmus.tools.watching.tunnel_rows import TunnelRow

_SUMMARY_LINES = 2
#: Summary, an empty line, the heads, and the line at the bottom.
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
#: What a narrow screen does without, in this order; never what it is sorted by.
_GIVEN_UP = ("FRONTEND", "TO-CLIENT", "TO-TARGET", "AGENT", "AGE", "SERVER", "STATE")
#: What a peer can make as long as it likes: at most such a part of the screen, but so many letters.
_CUT = {"TARGET": (4, 21), "AGENT": (5, 12), "SERVER": (5, 12)}


@dataclass(frozen=True, slots=True)
class Line:
    """A line, and how it is shown: plain, head, cursor, bad or faint."""

    text: str
    look: str = "plain"


#: Programs whose clients reach targets through a server.
_BEFORE_A_SERVER = frozenset({"socks5-proxy", "https-proxy"})
_WORKER = re.compile(r"-w\d+$")


@dataclass(slots=True)
class Counts:
    """Dials per second of all programs, from one look to the next."""

    dials_s: float | None = None
    failed_s: float | None = None
    _before: dict[str, tuple[float, float]] = field(default_factory=dict)
    _at_s: float = 0.0

    def take(self, programs: Sequence[Seen], *, now: float) -> None:
        """Count anew; a program that was not there before, or began anew, does not count."""
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
    """Those whose dials count: a dial that went through several programs is the server's."""
    servers = {each.id for each in programs if each.program == "server"}

    def counts(each: Seen) -> bool:
        if each.program in _BEFORE_A_SERVER:
            return not servers
        if each.program != "agent":
            return True
        peers = (text(link, "peerId") for link in items(each.snapshot, "links"))
        # A worker of a server is a server of its own to agents.
        return not any(peer in servers or _WORKER.sub("", peer) in servers for peer in peers)

    return list(filter(counts, programs))


def summary(
    programs: Sequence[Seen], rows: Sequence[TunnelRow], counts: Counts, *, clock: str
) -> list[Line]:
    """The two lines on top: what there is, and what moves."""
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
}


def table(
    rows: Sequence[TunnelRow],
    *,
    several: bool,
    width: int = 0,
    sort: str = "",
    reverse: bool = False,
    widths: dict[str, int] | None = None,
) -> list[str]:
    """The heads and the rows as lines, with as many columns as a ``width`` has room for.

    ``widths`` is kept by who draws again and again: columns only ever grow.
    """
    names = [name for name in _COLUMNS if several or name != "SERVER"]
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
    """How long a cell may be."""
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
    """What is asked, said or possible."""
    match state.mode:
        case Mode.FILTER:
            return Line(f"/{state.filter}_")
        case Mode.CONFIRM if state.ending is not None:
            row = state.ending
            who = f"{row.requester or 'somebody'} to {row.target} on {row.server}"
            return Line(f"End tunnel {row.id}, {who}? [y/N]", "bad")
        case Mode.HELP:
            return Line("any key goes back", "faint")
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
