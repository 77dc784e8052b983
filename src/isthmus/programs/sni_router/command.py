"""``isthmus sni-router``: flags in, a running router out; and what a file with routes says.

What it takes to run is imported when a command runs.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from isthmus.frame.cli.flags import FlagGroup, checked
from isthmus.programs.sni_router import PROGRAM
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.settings.options import options_of

if TYPE_CHECKING:
    from isthmus.programs.sni_router.rules import Found, Miss

ROUTED, REFUSED = 0, 1


def _run(**given: tuple[str, ...]) -> int:
    if click.get_current_context().invoked_subcommand is not None:
        return 0
    from isthmus.frame.running import main

    return main(PROGRAM, checked(SniRouterSettings, given))


command = FlagGroup(
    PROGRAM.name,
    options_of(SniRouterSettings),
    """\
isthmus sni-router --config=routes.yaml --listen=:6443
isthmus sni-router check routes.yaml
isthmus sni-router explain routes.yaml api.tenant-a.example.com""",
    callback=_run,
    invoke_without_command=True,
    help=PROGRAM.help,
)


@command.command(short_help="Check a file with routes")
@click.argument("file")
def check(file: str) -> int:
    """Check a file with routes

    Everything that is wrong is said at once, with its place, and the exit code is 2.

    \b
    Example:
      isthmus sni-router check routes.yaml
    """
    from isthmus.programs.sni_router.routes_file import read_routes

    table = read_routes(file, what="")
    backends = len({backend for route in table.routes for backend in route.backends})
    default = f", the default is {table.default.name}" if table.default is not None else ""
    click.echo(
        f"{file}: ok: {len(table.routes)} routes, {table.hosts} hosts, {backends} backends{default}"
    )
    return 0


@command.command(short_help="Explain where a server name goes")
@click.argument("file")
@click.argument("name", default="")
@click.option(
    "--alpn", multiple=True, metavar="PROTOCOL", help="Offer this ALPN protocol; repeatable"
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    help="Print as text or as JSON [default: text on a terminal, json in a pipe]",
)
def explain(file: str, name: str, alpn: tuple[str, ...], output: str | None) -> int:
    """Explain where a server name goes

    Without a name, where a client goes that sends none. The exit code is 0 when there is a route,
    1 when the client is refused and 2 when the file is wrong.

    \b
    Example:
      isthmus sni-router explain routes.yaml api.tenant-a.example.com --alpn h2
    """
    from isthmus.programs.sni_router.routes_file import read_routes
    from isthmus.programs.sni_router.rules import Found

    found = read_routes(file, what="").find(name, alpn)
    answer = _answer(name, alpn, found)
    if output == "text" or (output is None and sys.stdout.isatty()):
        width = max(map(len, answer))
        for key, value in answer.items():
            text = ", ".join(value) if isinstance(value, list) else str(value)
            click.echo(f"{key:<{width}}  {text or 'none'}")
    else:
        click.echo(json.dumps(answer, indent=2))
    return ROUTED if isinstance(found, Found) else REFUSED


def _answer(name: str, alpn: tuple[str, ...], found: Found | Miss) -> dict[str, Any]:
    from isthmus.programs.sni_router.rules import Miss

    asked = {"name": name, "alpn": list(alpn)}
    if isinstance(found, Miss):
        number = 120 if found is Miss.NO_PROTOCOL else 112
        word = "no_application_protocol" if number == 120 else "unrecognized_name"
        return {**asked, "route": "", "why": found.value, "answer": f"TLS alert {number}, {word}"}
    route = found.route
    proxy = route.proxy
    told = [] if proxy is None else [f"TLV {tlv.type:#04x}" for tlv in proxy.tlvs]
    if proxy is not None and proxy.authority:
        told.insert(0, "the server name")
    return {
        **asked,
        "route": route.name,
        "why": found.why,
        "where": route.where,
        "backends": [str(backend) for backend in route.backends],
        "proxyProtocol": "no"
        if proxy is None
        else f"version 2 with {' and '.join(told)}"
        if told
        else "version 2",
        "maxConnections": route.max_connections or "no limit",
    }
