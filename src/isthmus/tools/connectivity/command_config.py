"""``isthmus config``: check, convert and explain configurations of the connectivity service.

The work is in dial/connectivity_files.py and config/, imported when a command runs: yaml and TLS
load slowly, and ``--help`` must be fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import Words, completing
from isthmus.frame.cli.tables import TEXT, console, filled, one_line, output_option, print_data

if TYPE_CHECKING:
    from isthmus.dial.rules_connectivity import ConnectivityConfig, NetworkConfig

_KINDS = {
    "connectivity-service": "ConnectivityServiceConfiguration",
    "egress-selector": "EgressSelectorConfiguration",
}


@click.group(
    name="config",
    short_help="Check and convert connectivity configurations, explain their fields",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Check and convert connectivity configurations, explain their fields

    Both kinds: KEP-1281's ConnectivityServiceConfiguration, and the EgressSelectorConfiguration
    that kube-apiserver reads with --egress-selector-config-file. A FILE that is - is standard
    input.

    \b
    Example:
      isthmus config check egress.yaml
      isthmus config convert egress.yaml --to connectivity-service
      isthmus config explain egressSelections.connection.transport.tcp.url
    """


@command.command(short_help="Check files, and list the networks that they define")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, callback=filled)
@click.option(
    "--skip-files",
    is_flag=True,
    help="Check only what is written, not whether certificates, keys and dialers exist",
)
@output_option()
def check(files: tuple[str, ...], skip_files: bool, output: str) -> None:
    """Check files, and list the networks that they define

    Several files are one configuration: each network is defined once. All errors are reported at
    once, with file and line, and the exit code is 2. A relative path in a file is relative to the
    working directory, as in kube-apiserver.

    \b
    Example:
      isthmus config check egress.yaml
      isthmus config check networks/*.yaml --skip-files -o json
    """
    from isthmus.dial.connectivity_files import load

    loaded = load(files, check_files=not skip_files)
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    networks = list(loaded.config.networks.values())
    if output == TEXT:
        _print_table(networks)
    else:
        listed = [_to_json(network) for network in networks]
        print_data({"networks": listed, "warnings": list(loaded.warnings)}, output)
    if not networks and output == TEXT:
        click.echo("no network is defined", err=True)


@command.command(short_help="Convert a configuration to the other kind or to another version")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, callback=filled)
@click.option(
    "--to",
    "kind",
    type=click.Choice(list(_KINDS)),
    help="Kind to write [default: the kind that FILE is not]",
)
@click.option(
    "--version",
    type=click.Choice(["v1beta1", "v1alpha1"]),
    help="Version of the egress selector to write [default: v1beta1]",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Refuse what an egress selector cannot express, instead of proposing another way",
)
@click.option(
    "--client-cert",
    metavar="FILE",
    default="",
    help="Client certificate for servers that are reached by TCP in a proposal",
)
@click.option("--client-key", metavar="FILE", default="", help="Private key of --client-cert")
@click.option(
    "--uds-name",
    metavar="PATH",
    default="",
    help="UNIX socket that a proposal uses instead of TCP; {network} is the network's name",
)
def convert(
    files: tuple[str, ...],
    kind: str | None,
    version: str | None,
    strict: bool,
    client_cert: str,
    client_key: str,
    uds_name: str,
) -> None:
    """Convert a configuration to the other kind or to another version

    What an egress selector cannot express (a protocol, a TCP port without a client certificate,
    destinations, other networks) is changed into a form that kube-apiserver supports, or left out,
    with a warning for each change; --strict refuses instead, with exit code 2. Comments are not
    kept, and the documents of several networks become one list. Certificates and keys need not
    exist.

    \b
    Example:
      isthmus config convert egress.yaml
      isthmus config convert kep-1281.yaml --client-cert client.crt --client-key client.key
      isthmus config convert egress-v1alpha1.yaml --to egress-selector --version v1beta1
    """
    from isthmus.dial import settings_connectivity_writing as writing
    from isthmus.dial.connectivity_files import load

    loaded = load(files, check_files=False)
    kind = kind or _other_kind(loaded.kinds, version)
    if kind == "connectivity-service" and version:
        raise ConfigError("--version is for --to egress-selector; the other kind has one version")
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    config = loaded.config
    if kind == "egress-selector" and not strict and writing.is_lost_by_egress(config):
        config = _proposed(config, client_cert, client_key, uds_name)
    click.echo(_write(config, kind, version or writing.VERSIONS[0]), nl=False)


def _proposed(config: ConnectivityConfig, cert: str, key: str, uds_name: str) -> ConnectivityConfig:
    """The part that an egress selector can express; each change prints a warning."""
    from isthmus.dial.settings_connectivity_writing import ProposalChoices, propose_egress

    choices = ProposalChoices(client_cert=cert, client_key=key, uds=uds_name)
    choices.check()
    proposal = propose_egress(config, choices)
    if not proposal.config.networks:
        return config  # the writer refuses it, with all its errors
    for change in proposal.changes:
        click.echo(f"warning: {change}", err=True)
    return proposal.config


def _other_kind(kinds: Sequence[tuple[str, str]], version: str | None) -> str:
    """The default of --to: the kind that the files are not."""
    if version:
        return "egress-selector"
    found = {kind for kind, _ in kinds}
    others = [word for word, kind in _KINDS.items() if kind not in found]
    if len(others) != 1:
        raise ConfigError(f"the files are of both kinds: give --to {' or --to '.join(_KINDS)}")
    return others[0]


def _write(config: ConnectivityConfig, kind: str, version: str) -> str:
    from isthmus.dial import settings_connectivity_writing as writing

    if kind == "connectivity-service":
        return writing.to_connectivity_service(config)
    return writing.to_egress_selector(config, version=version)


def _config_fields(_: click.Context) -> Words:
    from isthmus.dial.settings_connectivity_fields import EGRESS, SERVICE

    for kind in (EGRESS, SERVICE):
        yield kind.name, kind.about
        yield from ((field.path, field.about) for field in kind.fields)


@command.command(short_help="Explain a field of a configuration")
@click.argument(
    "field", metavar="FIELD", callback=filled, shell_complete=completing(_config_fields)
)
def explain(field: str) -> None:
    """Explain a field of a configuration

    FIELD is its path with dots, or a kind, which lists the fields at its top.

    \b
    Example:
      isthmus config explain EgressSelectorConfiguration
      isthmus config explain egressSelections.connection.transport.tcp.url
      isthmus config explain connectionService.connection
    """
    from isthmus.dial.settings_connectivity_fields import explain as explanation

    click.echo(explanation(field), nl=False)


def _way(network: NetworkConfig) -> tuple[str, ...]:
    """The protocol, where it is spoken, and what is reached."""
    from isthmus.dial.settings_connectivity_writing import url_of

    connection = network.connection
    where = connection.dialer or url_of(connection)
    reached = ", ".join([*map(str, network.cidrs), *network.hosts])
    return connection.protocol.value, where, reached


def _print_table(networks: Sequence[NetworkConfig]) -> None:
    from rich.table import Table
    from rich.text import Text

    headings = ("Network", "Protocol", "Where", "Destinations", "Defined at")
    table = Table(*headings, box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for network in networks:
        cells = (network.name, *_way(network), network.where)
        # Text, because a file's content is never markup.
        table.add_row(*(Text(one_line(cell)) for cell in cells))
    if networks:
        console().print(table)


def _to_json(network: NetworkConfig) -> dict[str, object]:
    connection = network.connection
    tls = connection.tls
    return {
        "name": network.name,
        "protocol": connection.protocol.value,
        "uds": connection.uds or None,
        "tcp": str(connection.tcp) if connection.tcp else None,
        "tls": tls
        and {
            "caBundle": tls.ca_bundle or None,
            "clientCert": tls.client_cert or None,
            "clientKey": tls.client_key or None,
            "tlsServerName": tls.server_name or None,
        },
        "dialer": connection.dialer or None,
        "options": dict(connection.options),
        "cidrs": [str(cidr) for cidr in network.cidrs],
        "hosts": list(network.hosts),
        "where": network.where,
    }
