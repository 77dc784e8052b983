"""``isthmus egress``: where kube-apiserver's requests go with a given configuration."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from isthmus.errors import ConfigError

if TYPE_CHECKING:
    from isthmus.core.connectivity import ConnectivityConfig
    from isthmus.core.egress import Explanation


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


@command.command(short_help="Explain which network, protocol and socket a request takes")
@click.argument("kinds", metavar="[KIND]...", nargs=-1)
@click.option(
    "--config",
    "path",
    metavar="FILE",
    required=True,
    help="Read this egress selector or connectivity service configuration",
)
@click.option("--destination", metavar="HOST:PORT", help="Explain a destination instead of a kind")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    help="Print as a table or as JSON [default: table on a terminal, json in a pipe]",
)
def explain(kinds: tuple[str, ...], path: str, destination: str | None, output: str | None) -> None:
    """Explain which network, protocol and socket a request takes

    Without a kind, all of them. The last column is what kube-apiserver itself does with the same
    file: a network that is not configured is dialed directly.

    \b
    Example:
      isthmus egress explain --config egress.yaml
      isthmus egress explain --config egress.yaml pods/exec admission-webhook/url
      isthmus egress explain --config service.yaml --destination 10.0.0.5:443
    """
    config = _read(path)
    found = _by_destination(config, destination) if destination else _by_kind(config, kinds)
    if output == "table" or (output is None and sys.stdout.isatty()):
        _print_table(found)
    else:
        click.echo(json.dumps([_to_json(one) for one in found], indent=2, ensure_ascii=False))


def _read(path: str) -> ConnectivityConfig:
    from isthmus.config.connectivity import read

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "is not UTF-8 text"
        raise ConfigError(f"--config={path}: {reason}") from exc
    return read(text, name=path)


def _by_kind(config: ConnectivityConfig, names: tuple[str, ...]) -> list[Explanation]:
    from isthmus.config.checks import nearest
    from isthmus.core import egress

    for name in names:
        if name not in egress.BY_NAME:
            close = nearest(name, list(egress.BY_NAME))
            raise ConfigError(f"{name}: no such kind of request{close}")
    kinds = [egress.BY_NAME[name] for name in names] or egress.KINDS
    return [egress.explain(kind, config) for kind in kinds]


def _by_destination(config: ConnectivityConfig, destination: str) -> list[Explanation]:
    from isthmus.core.egress import Explanation
    from isthmus.values import HostPort

    try:
        target = HostPort.parse(destination)
    except ValueError as exc:
        raise ConfigError(f"--destination={destination}: {exc}") from exc
    if not any(one.cidrs or one.hosts for one in config.networks.values()):
        raise ConfigError(
            "--destination: the file says of no network which destinations belong to it"
            " (cidrs, hosts); give a kind of request"
        )
    network = config.network_of(target)
    return [
        Explanation(
            kind=None,
            network=network.name if network else "",
            way=network,
            today="kube-apiserver chooses by the kind of request, never by destination",
        )
    ]


def _to_json(one: Explanation) -> dict[str, object]:
    from isthmus.core.egress import place_text

    way = one.way
    return {
        "kind": one.kind.name if one.kind else None,
        "network": one.network or None,
        "configured": way is not None,
        "protocol": way.connection.protocol.value if way else None,
        "socket": (place_text(way.connection) or None) if way else None,
        "where": (way.where or None) if way else None,
        "kubeApiserver": one.today,
        "note": one.kind.note if one.kind else "",
    }


def _print_table(found: list[Explanation]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from isthmus.core.egress import way_text

    table = Table("Request", "Network", "How", "kube-apiserver today", box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for one in found:
        how = way_text(one.way.connection) if one.way else "not configured"
        kind = one.kind.name if one.kind else "by destination"
        table.add_row(Text(kind), Text(one.network or "none"), Text(how), Text(one.today))
    Console().print(table)
    for one in found:
        if one.kind and one.kind.note and len(found) <= 3:
            click.echo(f"{one.kind.name}: {one.kind.note}")
