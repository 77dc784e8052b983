"""``isthmus up``: a whole Isthmus to try out. The work is in running.py and lab/demo.py."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from isthmus.errors import LinkError
from isthmus.settings.program import V_HELP

if TYPE_CHECKING:
    from isthmus.lab.demo import Demonstration


@click.command(
    name="up",
    short_help="Start a server, an agent and a demo target in this terminal",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--namespaces",
    is_flag=True,
    help="Put server and agent into network namespaces with a firewall between them, and show "
    "that only the tunnel passes it; needs root",
)
@click.option(
    "--once",
    is_flag=True,
    help="Exit after one request; exit code 0 means that the request was answered",
)
@click.option(
    "--show-curl",
    is_flag=True,
    help="Print the request as a curl command, with its certificates",
)
@click.option(
    "--v",
    type=click.IntRange(0, 10),
    default=0,
    show_default=True,
    metavar="N",
    help=V_HELP,
)
def command(namespaces: bool, once: bool, show_curl: bool, v: int) -> int:
    """Start a server, an agent and a demo target in this terminal

    Needs no root and no configuration. Certificates are made for this run, everything listens on
    loopback, and Ctrl-C leaves nothing behind. Prints a request through the tunnel to paste into
    another terminal; isthmus curl and isthmus dial use the tunnel of the newest run by default.

    \b
    Example:
      isthmus up
      sudo isthmus up --namespaces --once
    """
    try:
        if namespaces:
            from isthmus.lab import demo
            from isthmus.lab.command_output import sentences

            with sentences():
                return demo.main(v=v, once=once, say=click.echo, show=_show)
        from isthmus.tools.up import running as up

        return up.main(v=v, once=once, show_curl=show_curl, say=click.echo)
    except LinkError as exc:
        raise click.ClickException(str(exc)) from exc
    except BrokenPipeError:
        # The reader of our output has left, as after `isthmus up | head -1`: print no traceback,
        # and prevent the one that Python would print when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _show(seen: Demonstration) -> None:
    from isthmus.lab.demo import ADDRESS, TARGET

    rows = (
        ("before", "directly", str(ADDRESS), seen.direct.worked, seen.direct.said),
        ("after", "through the tunnel", str(TARGET), seen.tunnel.worked, seen.tunnel.said),
    )
    if not sys.stdout.isatty():
        for when, way, where, worked, said in rows:
            mark = "reached" if worked else "failed"
            click.echo(f"{when:<7} {way:<19} {where:<20} {mark:<8} {said}")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "From the server's side", "To", "", "What was heard", box=None)
    for when, way, where, worked, said in rows:
        outcome = Text("reached", "green") if worked else Text("failed", "red")
        table.add_row(when, way, where, outcome, Text(said))
    Console().print(table)
