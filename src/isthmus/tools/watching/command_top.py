"""``isthmus top``: watch tunnels live, the fastest first, or print frames for a pipe.

A thread queries the programs, so that keys work while a program is slow to answer. top_view.py has
the keys and the lines of the screen, and live.py the terminal.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.tables import JSON, WIDE, YAML, one_line, output_option, print_data
from isthmus.tools.watching.admin_flags import FORMATS_OF_TABLES, AdminFlags, admin_options

if TYPE_CHECKING:
    from isthmus.client.admin import AdminClient
    from isthmus.tools.watching.live import Screen
    from isthmus.tools.watching.looking import Seen
    from isthmus.tools.watching.top_view import Line, TopState
    from isthmus.tools.watching.tunnel_rows import TunnelRow

NO_ANSWER = 1
#: Tunnels of each program, as in the dashboard: a snapshot of very many would load the program.
MOST_TUNNELS = 5_000
_LOOKS = {"head": "reverse", "cursor": "bold reverse", "bad": "yellow", "faint": "dim"}


@click.command(
    name="top",
    short_help="Watch tunnels live, the fastest first",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("-b", "--batch", is_flag=True, help="Print frames one after the other, for a pipe")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1),
    metavar="COUNT",
    help="Number of frames to show [default: no limit]",
)
@click.option(
    "-d",
    "--delay",
    "delay_s",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between frames",
)
@admin_options
@output_option(FORMATS_OF_TABLES)
def command(admin: AdminFlags, output: str, batch: bool, count: int | None, delay_s: float) -> int:
    """Watch tunnels live, the fastest first

    Keys: q quits, the arrows or j and k move, s sorts by the next column, r reverses, / filters, e
    ends the tunnel under the cursor after asking, space pauses, ? shows help. With -b it prints
    frames and reads no keys, as top -b does; so it does with -o json and -o yaml.

    \b
    Example:
      isthmus top
      isthmus top --admin http://127.0.0.1:8095 --delay 5
      isthmus top -b -n 2 | grep 10.0.0.5
    """
    batch = batch or output in (JSON, YAML)
    if not batch:
        _check_terminal()
    clients = admin.clients()
    watcher = Watcher(clients, once=not admin.urls)
    if batch:
        return _batch(watcher, count, delay_s, output)
    watcher.look()
    if all(each.error for each in watcher.programs):
        raise ConfigError("; ".join(str(each.error) for each in watcher.programs))
    return _live(watcher, count, delay_s, wide=output == WIDE)


def _check_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("top needs a terminal; use -b to print frames")
    if os.environ.get("TERM", "dumb") in ("dumb", "unknown"):
        raise ConfigError(
            f"top cannot draw on the terminal {os.environ.get('TERM', '')!r} (TERM); use -b to"
            " print frames"
        )


class Watcher:
    """Queries programs periodically and keeps the last result for other threads."""

    def __init__(self, clients: Sequence[AdminClient], *, once: bool) -> None:
        from isthmus.tools.watching.top_view import Counts
        from isthmus.tools.watching.tunnel_rows import Rates

        self.clients = clients
        self.programs: list[Seen] = []
        self.rows: list[TunnelRow] = []
        self.counts = Counts()
        self.looks = 0
        self.clock = ""
        self._once = once
        self._rates = Rates()
        self._over = threading.Event()

    @property
    def several(self) -> bool:
        """Whether rows have to name the program of each tunnel."""
        return len(self.clients) > 1

    def look(self) -> None:
        """Look once."""
        from isthmus.tools.watching.looking import at_once, look
        from isthmus.tools.watching.tunnel_rows import rows_of

        programs = at_once(lambda client: look(client, MOST_TUNNELS), self.clients)
        now = time.monotonic()
        rows = self._rates.take(rows_of(programs, once=self._once), now=now)
        self.counts.take(programs, now=now)
        self.programs, self.rows, self.clock = programs, rows, time.strftime("%H:%M:%S")
        self.looks += 1

    def start(self, every_s: float, then: Callable[[], None]) -> None:
        """Query at this interval, in a thread, and call ``then`` after each time."""

        def again() -> None:
            while not self._over.wait(every_s):
                self.look()
                then()

        # A daemon, so that the process does not wait for a request in progress.
        threading.Thread(target=again, name="top-looks", daemon=True).start()

    def stop(self) -> None:
        """Stop querying."""
        self._over.set()


def _batch(watcher: Watcher, count: int | None, delay_s: float, output: str) -> int:
    """Print frames; the first has no rates yet, as in top(1)."""
    from isthmus.tools.watching.tunnel_rows import SORTS

    while True:
        watcher.look()
        rows = sorted(watcher.rows, key=SORTS["rate"])
        if output in (JSON, YAML):
            if output == YAML:
                click.echo("---")
            print_data(_frame(watcher, rows), output)
        else:
            _print_frame(watcher, rows, wide=output == WIDE)
        sys.stdout.flush()
        if watcher.looks == count:
            return NO_ANSWER if all(each.error for each in watcher.programs) else 0
        time.sleep(delay_s)


def _print_frame(watcher: Watcher, rows: Sequence[TunnelRow], *, wide: bool) -> None:
    from isthmus.tools.watching.top_view import summary, table

    if watcher.looks > 1:
        click.echo()
    head = summary(watcher.programs, watcher.rows, watcher.counts, clock=watcher.clock)
    for line in head:
        click.echo(one_line(line.text))
    click.echo()
    for text in table(rows, several=watcher.several, wide=wide):
        click.echo(text)


def _frame(watcher: Watcher, rows: Sequence[TunnelRow]) -> dict[str, Any]:
    """A frame for JSON and YAML; its tunnels are as in ``isthmus tunnels -o json``."""
    from isthmus.tools.watching.tunnel_rows import tunnel_json

    return {
        "kind": "Top",
        "dialsPerSecond": watcher.counts.dials_s,
        "failedPerSecond": watcher.counts.failed_s,
        "items": [tunnel_json(row) for row in rows],
        "errors": [
            {"url": each.client.url, "error": str(each.error)}
            for each in watcher.programs
            if each.error is not None
        ],
    }


def _live(watcher: Watcher, count: int | None, delay_s: float, *, wide: bool) -> int:
    from isthmus.tools.watching.live import Screen
    from isthmus.tools.watching.top_view import Order, TopState, screen_lines

    state = TopState()
    head = _head(watcher)
    widths: dict[str, int] = {}
    with Screen() as screen:
        watcher.start(delay_s, screen.wake)
        try:
            while count is None or watcher.looks <= count:
                if not state.paused:
                    head = _head(watcher)
                    state.take(watcher.rows)
                lines = screen_lines(
                    state, head, several=watcher.several, wide=wide, size=screen.size, widths=widths
                )
                _draw(screen, lines)
                for key in screen.wait(delay_s):
                    match state.key(key):
                        case Order.QUIT:
                            return 0
                        case Order.END:
                            end_tunnel(watcher, state, wake=screen.wake)
                        case Order.REDRAW:
                            screen.redraw()
                        case Order.NOTHING:
                            pass
        except (EOFError, OSError):  # the terminal is closed
            return 0
        finally:
            watcher.stop()
    return 0


def _head(watcher: Watcher) -> list[Line]:
    from isthmus.tools.watching.top_view import summary

    return summary(watcher.programs, watcher.rows, watcher.counts, clock=watcher.clock)


def _draw(screen: Screen, lines: Sequence[Line]) -> None:
    from rich.text import Text

    screen.draw(
        [Text(each.text, _LOOKS.get(each.look, ""), no_wrap=True, end="") for each in lines]
    )


def end_tunnel(watcher: Watcher, state: TopState, *, wake: Callable[[], None]) -> None:
    """End the confirmed tunnel, in a thread since the request may take a moment."""
    row, state.ending = state.ending, None
    assert row is not None
    now = next((each for each in watcher.rows if each.key == row.key), None)
    if now is None or now.connection_id != row.connection_id:
        # A restarted program numbers its tunnels from 1 again.
        state.message = f"tunnel {row.id} to {row.target} has ended already"
        return
    client = next(each for each in watcher.clients if each.url == row.url)

    def end() -> None:
        from isthmus.client.admin import AdminError

        try:
            client.post(f"/tunnels/{row.id}/end")
        except AdminError as error:
            state.message = str(error)
        else:
            state.message = f"tunnel {row.id} to {row.target} ended"
        wake()

    state.message = f"ending tunnel {row.id} …"
    threading.Thread(target=end, name="top-end", daemon=True).start()
