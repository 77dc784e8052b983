"""``isthmus sni-router``: runs a router, and checks and explains a routes file.

The modules that run a router are imported when a command runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from isthmus.frame.cli.flags import FlagGroup, checked
from isthmus.frame.cli.tables import TEXT, output_option, print_data
from isthmus.programs.sni_router import PROGRAM
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.settings.options import options_of

if TYPE_CHECKING:
    from isthmus.programs.sni_router.rules import AskedConnection, Found, Miss, ProxyOut
    from isthmus.text.addresses import IpAddress

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

    All errors are reported at once, with file, line and column; the exit code is then 2.

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


@command.command(short_help="Explain where a connection goes")
@click.argument("file")
@click.argument("name", default="")
@click.option(
    "--alpn",
    multiple=True,
    metavar="PROTOCOL",
    help="ALPN protocol that the client offers; repeatable",
)
@click.option("--tlv", metavar="VALUE", help="Value of the TLV in the PROXY header [default: none]")
@click.option(
    "--from",
    "source",
    metavar="ADDRESS",
    help="Source of the connection [default: a source that every route allows]",
)
@output_option()
def explain(
    file: str,
    name: str,
    alpn: tuple[str, ...],
    tlv: str | None,
    source: str | None,
    output: str,
) -> int:
    """Explain where a connection goes

    Without NAME, explains a client that sends no server name. Each route is listed with what
    matched, or with the first step that excluded it. The exit code is 0 if there is a route, 1 if
    the client is refused and 2 if the file is wrong.

    \b
    Example:
      isthmus sni-router explain routes.yaml api.tenant-a.example.com --alpn h2
      isthmus sni-router explain routes.yaml api.tenant-a.example.com --from 192.0.2.7
      isthmus sni-router explain routes.yaml kubernetes.default.svc --tlv 2f1c9a0e
    """
    from isthmus.programs.sni_router.routes_file import read_routes
    from isthmus.programs.sni_router.rules import AskedConnection, Found, reasons

    asked = AskedConnection(
        name, alpn, None if tlv is None else tlv.encode(errors="surrogateescape"), _address(source)
    )
    table = read_routes(file, what="")
    found = table.find(name, alpn, tlv=asked.tlv, source=asked.source)
    answer = _answer(asked, found)
    lines = list(reasons(table, asked))
    if output == TEXT:
        shown = {key: ", ".join(it) if isinstance(it, list) else it for key, it in answer.items()}
        _print_aligned((key, str(value) or "none") for key, value in shown.items())
        click.echo("\nroutes")
        _print_aligned((f"  {route.name}", why) for route, why in lines)
    else:
        routes = [{"name": route.name, "where": route.where, "why": why} for route, why in lines]
        print_data({**answer, "routes": routes}, output)
    return ROUTED if isinstance(found, Found) else REFUSED


def _print_aligned(pairs: Iterable[tuple[str, str]]) -> None:
    rows = list(pairs)
    width = max((len(key) for key, _ in rows), default=0)
    for key, text in rows:
        click.echo(f"{key:<{width}}  {text}")


def _address(text: str | None) -> IpAddress | None:
    from isthmus.errors import ConfigError
    from isthmus.text.addresses import plain_address

    try:
        return None if text is None else plain_address(text)
    except ValueError:
        raise ConfigError(
            f"--from {text!r} is not an address such as 192.0.2.7 or 2001:db8::7"
        ) from None


def _answer(asked: AskedConnection, found: Found | Miss) -> dict[str, Any]:
    from isthmus.programs.sni_router.connections import ALERT_OF, OF_MISS
    from isthmus.programs.sni_router.rules import Miss, tlv_text

    said: dict[str, Any] = {"name": asked.server_name, "alpn": list(asked.alpn)}
    if asked.tlv is not None:
        said["tlv"] = tlv_text(asked.tlv)
    if asked.source is not None:
        said["from"] = str(asked.source)
    if isinstance(found, Miss):
        alert = ALERT_OF[OF_MISS[found]]
        assert alert is not None  # only a client that does not speak TLS gets none
        answer = f"TLS alert {alert.value}, {alert.name.lower()}"
        return {**said, "route": "", "why": found.value, "answer": answer}
    route = found.route
    return {
        **said,
        "route": route.name,
        "why": found.why,
        "where": route.where,
        "allowedCIDRs": [str(network) for network in route.allowed_cidrs] or "every source",
        "backends": [str(backend) for backend in route.backends],
        "proxyProtocol": _proxy_text(route.proxy),
        "maxConnections": route.max_connections or "no limit",
    }


def _proxy_text(proxy: ProxyOut | None) -> str:
    if proxy is None:
        return "no"
    told = [f"TLV {tlv.type:#04x}" for tlv in proxy.tlvs]
    if proxy.authority:
        told.insert(0, "the server name")
    return f"version 2 with {' and '.join(told)}" if told else "version 2"
