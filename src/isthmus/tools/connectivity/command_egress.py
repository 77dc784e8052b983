"""``isthmus egress``: explain where a configuration sends kube-apiserver's requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import Words, completing
from isthmus.frame.cli.tables import TEXT, console, filled, one_line, output_option, print_data

_MOST_NOTES = 3  # more would be longer than the table

if TYPE_CHECKING:
    from isthmus.dial.connectivity_files import Loaded
    from isthmus.dial.settings_egress_selector import Explanation


@click.group(
    name="egress",
    short_help="Explain where kube-apiserver's requests go",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Explain where kube-apiserver's requests go

    \b
    Example:
      isthmus egress explain --config egress.yaml
      isthmus egress explain --config egress.yaml pods/exec
    """


def _kinds(_: click.Context) -> Words:
    from isthmus.dial.settings_egress_selector import BY_NAME

    return [(name, "") for name in BY_NAME]


@command.command(short_help="Explain which network, protocol and socket a request takes")
@click.argument("kinds", metavar="[KIND]...", nargs=-1, shell_complete=completing(_kinds))
@click.option(
    "--config",
    "path",
    metavar="FILE",
    required=True,
    callback=filled,
    help="Egress selector or connectivity service configuration",
)
@click.option(
    "--destination", metavar="HOST:PORT", help="Destination to explain, instead of a kind"
)
@output_option()
def explain(kinds: tuple[str, ...], path: str, destination: str | None, output: str) -> None:
    """Explain which network, protocol and socket a request takes

    Without a kind, all of them. The last column is what kube-apiserver itself does with the same
    file: a network that is not configured is dialed directly. A destination is in the network
    whose cidrs or hosts list it; in a file without any, the kind of request decides, and each
    network is shown.

    \b
    Example:
      isthmus egress explain --config egress.yaml
      isthmus egress explain --config egress.yaml pods/exec admission-webhook/url
      isthmus egress explain --config service.yaml --destination 10.0.0.5:443
    """
    from isthmus.dial.connectivity_files import load

    if kinds and destination is not None:
        raise ConfigError(f"give a kind ({kinds[0]}) or --destination, not both")
    loaded = load([path], check_files=False)
    if destination is not None:
        found = _by_destination(loaded, destination)
    else:
        found = _by_kind(loaded, kinds)
    if output == TEXT:
        _print_table(found)
    else:
        print_data([_to_json(one) for one in found], output)


def _by_kind(loaded: Loaded, names: tuple[str, ...]) -> list[Explanation]:
    from isthmus.dial import settings_egress_selector as egress
    from isthmus.text.suggestions import nearest

    for name in names:
        if name not in egress.BY_NAME:
            close = nearest(name, list(egress.BY_NAME))
            raise ConfigError(f"{name}: no such kind of request{close}")
    kinds = [egress.BY_NAME[name] for name in names] or egress.KINDS
    return [egress.explain(kind, loaded.config, loaded.kube) for kind in kinds]


def _by_destination(loaded: Loaded, destination: str) -> list[Explanation]:
    from isthmus.dial.settings_egress_selector import explain_destination
    from isthmus.values import HostPort

    try:
        target = HostPort.parse(destination)
    except ValueError as exc:
        raise ConfigError(f"--destination={destination}: {exc}") from exc
    return explain_destination(target, loaded.config, loaded.kube)


def _to_json(one: Explanation) -> dict[str, object]:
    from isthmus.dial.settings_egress_selector import place_text

    way = one.way
    return {
        "kind": one.kind.name if one.kind else None,
        "network": one.network or None,
        "configured": way is not None,
        "protocol": way.connection.protocol.value if way else None,
        "socket": (place_text(way.connection) or None) if way else None,
        "where": (way.where or None) if way else None,
        "kubeApiserver": one.today,
        "note": one.note,
    }


def _print_table(found: list[Explanation]) -> None:
    from rich.table import Table
    from rich.text import Text

    from isthmus.dial.settings_egress_selector import way_text

    table = Table("Request", "Network", "How", "kube-apiserver today", box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for one in found:
        how = way_text(one.way.connection) if one.way else "not configured"
        kind = one.kind.name if one.kind else "by destination"
        table.add_row(*(Text(one_line(it)) for it in (kind, one.network or "none", how, one.today)))
    console().print(table)
    for one in found:
        if one.note and len(found) <= _MOST_NOTES:
            click.echo(f"{one.kind.name if one.kind else one.network}: {one.note}")
