"""``isthmus pki``: make and show the certificates of a small private PKI.

The work is in making.py and show.py, imported when a command runs: they load
``cryptography``, and ``--help`` should not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from isthmus.frame.cli.tables import TEXT, console, one_line, output_option, print_data

if TYPE_CHECKING:
    from rich.text import Text

    from isthmus.tools.pki.show import CertificateInfo


@click.group(
    name="pki",
    short_help="Create, revoke and show certificates",
    context_settings={"help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Create, revoke and show certificates

    \b
    Example:
      isthmus pki init ./pki --server-name proxy.example.com
      isthmus pki show ./pki
    """


@command.command(short_help="Create CAs and certificates for server, agent and client")
@click.argument("directory", metavar="DIR", type=click.Path())
@click.option(
    "--server-name",
    "server_names",
    multiple=True,
    metavar="NAME",
    help="DNS name or IP address for the server's certificate; repeatable [default: localhost, "
    "127.0.0.1, ::1]",
)
@click.option(
    "--agent-name",
    "agent",
    multiple=True,
    metavar="NAME",
    help="DNS name or IP address for the agent's certificate; repeatable",
)
@click.option(
    "--client-name",
    "client",
    multiple=True,
    metavar="NAME",
    help="DNS name or IP address for the client's certificate; repeatable",
)
@click.option(
    "--relay-name",
    "relay",
    multiple=True,
    metavar="NAME",
    help="Also create a certificate with this name, which servers show to other servers; "
    "repeatable",
)
@click.option(
    "--days",
    type=click.IntRange(1, 36_500),
    default=365,
    show_default=True,
    help="Days until the certificates expire; a CA lasts at least ten years",
)
@click.option("--force", is_flag=True, help="Replace existing files")
@click.option("--keep-ca", is_flag=True, help="Sign with the CAs that are already in DIR")
def init(
    directory: str,
    server_names: tuple[str, ...],
    days: int,
    force: bool,
    keep_ca: bool,
    **others: tuple[str, ...],
) -> None:
    """Create CAs and certificates for server, agent and client

    Writes ca, client-ca, server, agent and client .crt and .key into DIR. The first CA signs for
    servers and agents, the other for clients. Nothing that exists is replaced without --force. To
    renew the certificates, use --keep-ca --force; a DIR with one CA keeps it.

    \b
    Example:
      isthmus pki init ./pki --server-name proxy.example.com --server-name 192.0.2.10
      isthmus pki init ./pki --keep-ca --force --server-name proxy.example.com
    """
    from isthmus.tools.pki import making as pki

    names = pki.OtherNames(**others)
    make = pki.renew if keep_ca else pki.init
    files = make(directory, server_names=server_names, other_names=names, days=days, force=force)
    authorities = [
        ("CA", files.ca_cert, files.ca_key),
        ("client CA", files.client_ca_cert, files.client_ca_key),
    ]
    leaves = [
        ("server", files.server_cert, files.server_key),
        ("agent", files.agent_cert, files.agent_key),
        ("client", files.client_cert, files.client_key),
        ("relay", files.relay_cert, files.relay_key),
    ]
    for what, cert, key in [*([] if keep_ca else authorities), *leaves[: 4 if names.relay else 3]]:
        click.echo(f"{what:<10} {cert}  {key}")
    if files.has_one_ca:
        click.echo(
            f"{files.ca_cert} signs for agents and clients; docs/pki.md has the steps to a CA for"
            " each",
            err=True,
        )


@command.command(short_help="Revoke certificates by signing a new revocation list")
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path())
@click.option(
    "--ca",
    "directory",
    metavar="DIR",
    type=click.Path(),
    help="Directory with the CAs to sign with; it also keeps the lists: ca.crl for servers and "
    "agents, client-ca.crl for clients [default: directory of the first FILE]",
)
@click.option(
    "--days",
    type=click.IntRange(1, 36_500),
    default=30,
    show_default=True,
    help="Days until the next list is due; an overdue list still counts, with a warning",
)
def revoke(files: tuple[str, ...], directory: str | None, days: int) -> None:
    """Revoke certificates by signing a new revocation list

    Servers and agents that follow the list (--cluster-crl-file, --server-crl-file, --crl-file)
    refuse these certificates from then on, and close their open connections. Without FILE the
    lists are only renewed.

    \b
    Example:
      isthmus pki revoke ./pki/agent.crt
      isthmus pki revoke --ca ./pki --days 90
    """
    from pathlib import Path

    from isthmus.tools.pki import making as pki

    base = directory or (str(Path(files[0]).parent) if files else ".")
    for made in pki.revoke_all(files, directory=base, days=days):
        for name in made.added:
            click.echo(f"revoked {name}")
        due = made.next_update.strftime("%Y-%m-%d")
        click.echo(f"{made.path}: {made.total} revoked, the next list is due on {due}")


@command.command(short_help="Show certificates, their dates and whether their keys match")
@click.argument("paths", metavar="[DIR|FILE]...", nargs=-1, type=click.Path())
@output_option()
def show(paths: tuple[str, ...], output: str) -> None:
    """Show certificates, their dates and whether their keys match

    Without a path it shows those of the current directory.

    \b
    Example:
      isthmus pki show ./pki
      isthmus pki show ./pki/server.crt -o json
    """
    from isthmus.tools.pki import show as pki_show

    infos = pki_show.show(paths or (".",))
    if output == TEXT:
        _print_table(infos)
    else:
        print_data([info.to_json() for info in infos], output)


def _print_table(infos: Sequence[CertificateInfo]) -> None:
    from rich.table import Table
    from rich.text import Text

    one_directory = len({info.path.parent for info in infos}) == 1
    headings = ("File", "Subject\nIssuer", "Names", "Usage\nKey", "Valid", "SHA-256")
    table = Table(*headings, box=None, pad_edge=False, padding=(0, 2, 1, 0))
    for column in table.columns:
        column.overflow = "fold"  # paths and names keep their end
    for info in infos:
        # Text, because the content of a certificate is never markup.
        table.add_row(
            Text(info.path.name if one_directory else str(info.path)),
            Text(f"{one_line(info.subject)}\n{one_line(info.issuer)}"),
            Text("\n".join(map(one_line, info.names))),
            Text("\n".join([", ".join(info.usages) or "-", info.key.value])),
            Text(f"{info.not_before:%Y-%m-%d}\n{info.not_after:%Y-%m-%d}\n") + _days_left(info),
            info.fingerprint_sha256.replace(":", "").lower()[:12],
        )
    console().print(table)


def _days_left(info: CertificateInfo) -> Text:
    from rich.text import Text

    from isthmus.net.rules_expiry import Standing

    if info.days_left < 0:
        return Text("expired", style="red")
    styles = {Standing.OK: "", Standing.WARN: "yellow", Standing.BAD: "red"}
    return Text(f"{info.days_left} days left", style=styles[info.standing])
