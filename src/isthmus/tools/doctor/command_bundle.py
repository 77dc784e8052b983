"""``isthmus support-bundle``: make an archive for support, without secrets.

The work is in isthmus.tools.doctor, imported when the command runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.tables import complain, filled, one_line
from isthmus.tools.watching.admin_flags import AdminFlags, admin_options

if TYPE_CHECKING:
    from isthmus.client.admin import AdminClient
    from isthmus.frame.finding import Finding
    from isthmus.frame.patient import Patient
    from isthmus.tools.doctor.bundle import Bundle
    from isthmus.tools.doctor.bundle_parts import BundlePart

_TIMEOUT_S = 5.0
_LIMIT_S = 4 * _TIMEOUT_S


@click.command(
    name="support-bundle",
    short_help="Pack logs and settings into an archive for support, without secrets",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "-f",
    "--file",
    "path",
    metavar="FILE|-",
    callback=filled,
    help="Archive to write, - is standard output [default: isthmus-support-HOST-TIME.tar.gz]",
)
@click.option("--include-audit", is_flag=True, help="Include the last audit records")
@click.option("--force", is_flag=True, help="Replace an existing file")
@admin_options
def command(admin: AdminFlags, path: str | None, include_audit: bool, force: bool) -> int:
    """Pack logs and settings into an archive for support, without secrets

    Versions, flags, snapshots, history, metrics, logs, the doctor's findings, limits, interfaces,
    routes and firewall rules, as far as they can be read; run it as root to get all of them. Keys,
    tokens and passwords are removed. manifest.json in it lists its files and the missing parts.

    \b
    Example:
      isthmus support-bundle
      isthmus support-bundle -f bundle.tar.gz --admin=http://127.0.0.1:8095
      isthmus support-bundle --file - | ssh host 'cat > bundle.tar.gz'
    """
    if path == "-" and sys.stdout.isatty():
        raise ConfigError("--file -: an archive is not for a terminal; name a file, or use a pipe")
    created = datetime.now(UTC)
    chosen = path or f"isthmus-support-{os.uname().nodename}-{created:%Y%m%dT%H%M%SZ}.tar.gz"
    if chosen != "-" and not force and os.path.lexists(chosen):
        raise ConfigError(f"{chosen}: already exists; replace it with --force")
    bundle = _collected(admin, audit=include_audit, created=created)
    _write(bundle, chosen, force=force)
    return 0


def _write(bundle: Bundle, path: str, *, force: bool) -> None:
    from isthmus.frame.private_file import write_private
    from isthmus.text.units import size
    from isthmus.tools.doctor.bundle import described

    content = bundle.to_bytes()
    if path == "-":
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    else:
        write_private(path, content, force=force)
    where = "standard output" if path == "-" else os.path.abspath(path)
    click.echo(f"{where}: {len(bundle.members)} files, {size(len(content))}", err=True)
    for line in described(bundle):
        click.echo(f"  {one_line(line)}", err=True)
    click.echo(f"{bundle.removed} secrets were taken out; review it before you send it", err=True)


def _collected(admin: AdminFlags, *, audit: bool, created: datetime) -> Bundle:
    from isthmus.tools.doctor.bundle import collect
    from isthmus.tools.doctor.bundle_secrets import Scrubber, known_secrets
    from isthmus.tools.doctor.examine import examine
    from isthmus.tools.doctor.looks import LOOKS
    from isthmus.tools.doctor.running import Asking, patients_of

    clients = _clients(admin)
    patients, found = patients_of(clients, Asking(environ=os.environ, timeout_s=_TIMEOUT_S))
    findings = [*found, *examine(patients, LOOKS, limit_s=_LIMIT_S)]
    secrets = known_secrets(patients, os.environ, _tokens(admin))
    parts = _parts(admin, clients, patients, findings, audit=audit)
    return collect(parts, Scrubber(secrets), created=created)


def _clients(admin: AdminFlags) -> list[AdminClient]:
    try:
        return admin.clients(timeout_s=_TIMEOUT_S)
    except ConfigError as error:
        if admin.named:
            raise
        complain(f"{error}; the bundle is of the machine alone")
        return []


def _tokens(admin: AdminFlags) -> list[str]:
    from isthmus.client.admin import read_token

    return [read_token(admin.token_file)] if admin.token_file else []


def _parts(
    admin: AdminFlags,
    clients: Sequence[AdminClient],
    patients: Sequence[Patient],
    findings: Sequence[Finding],
    *,
    audit: bool,
) -> Iterator[BundlePart]:
    from isthmus.tools.doctor.bundle_parts import (
        BundlePart,
        fetched,
        place_names,
        process_parts,
        program_parts,
    )
    from isthmus.tools.doctor.examine import lines, summary, to_json
    from isthmus.tools.watching.looking import at_once

    running = {one.running.url: one for one in patients if one.running is not None}
    places = place_names(clients, {url: one.program for url, one in running.items()})
    yield from admin.surroundings()

    def program(client: AdminClient) -> list[BundlePart]:
        return fetched(program_parts(places[client.url], client, audit=audit))

    for client, parts in zip(clients, at_once(program, clients), strict=True):
        yield from parts
        if client.url in running:
            yield from process_parts(places[client.url], running[client.url])
    text = "".join(
        f"{word}  {rest}\n" if word else f"{rest}\n" for word, _, rest in lines(findings)
    )
    yield BundlePart("doctor.txt", lambda: f"{text}\n{summary(findings)}\n")
    yield BundlePart("doctor.json", lambda: json.dumps(to_json(findings), indent=2) + "\n")
