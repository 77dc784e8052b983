"""``isthmus tunnels``: list, filter and sort the tunnels of programs, and end a tunnel."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import Words, completing
from isthmus.frame.cli.tables import (
    complain,
    filled,
    one_line,
    output_option,
    print_data,
    print_table,
    table_lines,
)
from isthmus.text.units import age, rate, size
from isthmus.tools.watching.admin_flags import FORMATS_OF_TABLES, AdminFlags, admin_options
from isthmus.tools.watching.tunnel_rows import TunnelRow, tunnel_json

if TYPE_CHECKING:
    from isthmus.client.admin import AdminClient
    from isthmus.tools.watching.looking import Seen
    from isthmus.tools.watching.tunnel_rows import Key

FAILED = 1
_EVERY_S = 1.0


def _tunnel_ids(ctx: click.Context) -> Words:
    from isthmus.tools.watching.looking import look_quickly
    from isthmus.tools.watching.tunnel_rows import rows_of

    return [
        (row.id, f"{one_line(row.target)} {one_line(row.agent)}")
        for row in rows_of(look_quickly(ctx), once=True)
    ]


def _agent_ids(ctx: click.Context) -> Words:
    from isthmus.tools.watching.looking import items, look_quickly, text

    agents = [one for seen in look_quickly(ctx) for one in items(seen.snapshot, "agents")]
    return sorted((text(one, "id"), text(one, "version")) for one in agents)


@click.group(
    name="tunnels",
    short_help="List tunnels, and end them",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--stalled", is_flag=True, help="Show only stalled tunnels, and why they are stalled")
@click.option(
    "--agent",
    metavar="ID",
    callback=filled,
    shell_complete=completing(_agent_ids),
    help="Show only tunnels of this agent",
)
@click.option(
    "--target",
    metavar="PATTERN",
    callback=filled,
    help="Show only tunnels to targets that match a pattern, as '10.0.0.*' or '*:443'",
)
@click.option(
    "--sort",
    type=click.Choice(["age", "bytes", "rate"]),
    default="age",
    show_default=True,
    help="Sort order: the oldest, the largest or the fastest first; rate takes a second to measure",
)
@click.option("-w", "--watch", is_flag=True, help="Keep running, and print a line for each change")
@admin_options
@output_option(FORMATS_OF_TABLES)
@click.pass_context
def command(
    ctx: click.Context,
    admin: AdminFlags,
    output: str,
    stalled: bool,
    agent: str | None,
    target: str | None,
    sort: str,
    watch: bool,
) -> int:
    """List tunnels, and end them

    Tunnels of several programs are listed together, with a column for the program. If a server and
    its agent are both found on this machine, a tunnel through both is listed once. The exit code is
    1 if a program did not answer.

    \b
    Example:
      isthmus tunnels
      isthmus tunnels --stalled -o wide
      isthmus tunnels --target '10.0.0.*:443' --sort rate
      isthmus tunnels end 17
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = admin
        return 0
    from isthmus.tools.watching.looking import look_at_all
    from isthmus.tools.watching.tunnel_rows import SORTS, Rates, chosen, rows_of

    rates = Rates()

    def look() -> tuple[list[Seen], list[TunnelRow]]:
        programs = look_at_all(admin)
        rows = chosen(
            rows_of(programs, once=not admin.urls),
            stalled=stalled,
            agent=agent or "",
            target=target or "",
        )
        rows = rates.take(rows, now=time.monotonic())
        return programs, sorted(rows, key=SORTS[sort])

    programs, rows = look()
    if sort == "rate" and rows:
        time.sleep(_EVERY_S)
        programs, rows = look()
    several = len(programs) > 1
    code = _say_errors(programs)
    if all(each.error for each in programs):
        return code
    printer = TunnelPrinter(output, several=several, stalled=stalled, rates=sort == "rate")
    if not watch:
        printer.print_all(rows, truncated=_truncated(programs))
        return code
    shown: dict[Key, TunnelRow] = {}
    while True:
        # A program that did not answer this time may still have its tunnels.
        silent = {each.client.url for each in programs if each.error}
        kept = [row for row in shown.values() if row.url in silent]
        printer.print_changes(changes(shown, [*rows, *kept]))
        shown = {row.key: row for row in (*rows, *kept)}
        time.sleep(_EVERY_S)
        programs, rows = look()
        if all(each.error for each in programs):
            return _say_errors(programs)


def _say_errors(programs: Sequence[Seen]) -> int:
    for each in programs:
        if each.error is not None:
            complain(str(each.error))
    return FAILED if any(each.error for each in programs) else 0


def _truncated(programs: Sequence[Seen]) -> int:
    from isthmus.tools.watching.looking import number

    return int(sum(number(each.snapshot, "truncated") for each in programs))


def changes(before: dict[Key, TunnelRow], rows: Sequence[TunnelRow]) -> list[TunnelRow]:
    """The tunnels that are new, changed state, or ended."""
    now = {row.key for row in rows}
    new = [row for row in rows if row.key not in before or before[row.key].state != row.state]
    return new + [replace(row, state="ended") for key, row in before.items() if key not in now]


@command.command(name="end", short_help="End a tunnel")
@click.argument("tunnel", metavar="ID", shell_complete=completing(_tunnel_ids))
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation")
@admin_options
@click.pass_context
def end(ctx: click.Context, admin: AdminFlags, tunnel: str, yes: bool) -> int:
    """End a tunnel

    ID is a tunnel's number, or its connection ID from logs and audit. Both sides are reset. The
    program accepts the request with a token or a certificate, and on loopback from root and its own
    user; its log and its audit log record who sent it.

    \b
    Example:
      isthmus tunnels end 17
      isthmus tunnels end 5f1c09ab-2e --yes --admin http://127.0.0.1:8095
    """
    from isthmus.client.admin import AdminError
    from isthmus.tools.watching.looking import look_at_all
    from isthmus.tools.watching.tunnel_rows import rows_of

    asked = _both(ctx, admin)
    programs = look_at_all(asked)
    if all(each.error for each in programs):
        return _say_errors(programs)
    found = [
        row
        for row in rows_of(programs, once=not asked.urls)
        if tunnel in (row.id, row.connection_id)
    ]
    if not found:
        raise ConfigError(f"no such tunnel: {tunnel}")
    if len(found) > 1:
        where = one_line(", ".join(f"{row.server} ({row.url})" for row in found))
        raise ConfigError(f"{where} each have a tunnel {tunnel}; choose one with {asked.chosen_by}")
    (row,) = found
    client = next(each.client for each in programs if each.client.url == row.url)
    if not yes:
        _confirm(row)
        _check_still(client, row)
    try:
        client.post(f"/tunnels/{row.id}/end")
    except AdminError as error:
        if error.status == 404:
            raise ConfigError(
                f"tunnel {tunnel} has ended, or {row.url} is too old to end tunnels"
            ) from error
        raise
    click.echo(f"tunnel {one_line(row.id)} to {one_line(row.target)} ended")
    return 0


def _check_still(client: AdminClient, row: TunnelRow) -> None:
    """Check that the number is still the tunnel's: a restarted program counts from 1 again.

    Raises:
        ConfigError: it is not the same tunnel.
    """
    from isthmus.tools.watching.looking import look
    from isthmus.tools.watching.tunnel_rows import rows_of

    seen = look(client)
    if seen.error is None and (row.id, row.connection_id) not in {
        (each.id, each.connection_id) for each in rows_of([seen])
    }:
        raise ConfigError(one_line(f"the tunnel {row.id} to {row.target} has ended already"))


def _both(ctx: click.Context, admin: AdminFlags) -> AdminFlags:
    """Merge the flags before and after the word ``end``; those after it override."""
    outer = ctx.obj
    assert isinstance(outer, AdminFlags)
    typed = [
        field.name
        for field in fields(admin)
        if ctx.get_parameter_source(field.name) is ParameterSource.COMMANDLINE
    ]
    return replace(outer, **{name: getattr(admin, name) for name in typed})


def _confirm(row: TunnelRow) -> None:
    """Ask for confirmation.

    Raises:
        ConfigError: there is no terminal.
        click.Abort: the user declined.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("cannot ask without a terminal; give --yes to end the tunnel")
    who = one_line(f"{row.requester or 'unknown'} to {row.target}")
    question = f"End tunnel {one_line(row.id)}, {who}, open for {age(row.age_s)}?"
    click.confirm(question, abort=True, err=True)


class TunnelPrinter:
    """Prints rows: all at once, or a line for each change."""

    def __init__(self, output: str, *, several: bool, stalled: bool, rates: bool) -> None:
        self._output = output
        self._several = several
        self._stalled = stalled
        self._rates = rates
        self._heads_printed = False
        self._widths: list[int] = []

    def print_all(self, rows: Sequence[TunnelRow], *, truncated: int) -> None:
        """Print the rows; without any, a line on standard error, as kubectl does."""
        if self._output in ("json", "yaml"):
            data = {
                "kind": "Tunnels",
                "items": [tunnel_json(row) for row in rows],
                "truncated": truncated,
            }
            print_data(data, self._output)
            return
        if not rows:
            click.echo("No tunnels found.", err=True)
        else:
            print_table(self._heads(), [self._cells(row) for row in rows])
        if truncated:
            complain(f"{truncated} more tunnels were left out")

    def print_changes(self, rows: Sequence[TunnelRow]) -> None:
        """Print a line for each row, under the same columns."""
        if self._output == "json":
            for row in rows:
                click.echo(json.dumps(tunnel_json(row), ensure_ascii=False))
        elif self._output == "yaml":
            for row in rows:
                click.echo("---")
                print_data(tunnel_json(row), "yaml")
        elif rows:
            cells = [self._cells(row) for row in rows]
            lines = table_lines(self._heads(), cells, self._widths)
            for line in lines[self._heads_printed :]:
                click.echo(line)
            self._heads_printed = True
        sys.stdout.flush()

    def _heads(self) -> list[str]:
        heads = ["ID", "TARGET", "AGENT", "FRONTEND", "STATE", "TO-TARGET", "TO-CLIENT"]
        if self._several:
            heads.insert(1, "SERVER")
        if self._rates:
            heads.append("RATE")
        heads.append("AGE")
        if self._output == "wide":
            heads += ["RELAY", "REQUESTER", "CONNECTION"]
        if self._stalled or self._output == "wide":
            heads.append("STALLED")
        return heads

    def _cells(self, row: TunnelRow) -> list[str]:
        by_head = {
            "ID": row.id,
            "SERVER": row.server,
            "TARGET": row.target,
            "AGENT": row.agent,
            "FRONTEND": row.frontend,
            "STATE": row.state,
            "TO-TARGET": size(row.to_target),
            "TO-CLIENT": size(row.to_client),
            "RATE": rate(row.rate),
            "AGE": age(row.age_s),
            "RELAY": row.relay,
            "REQUESTER": row.requester,
            "CONNECTION": row.connection_id,
            "STALLED": row.why,
        }
        return [by_head[head] for head in self._heads()]
