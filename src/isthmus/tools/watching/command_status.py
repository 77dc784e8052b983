"""``isthmus status``: one screen for whatever runs here.

What is worth saying is status_report.py's part, and how it is printed status_output.py's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from isthmus.tools.watching.admin_flags import AdminFlags, admin_options, output_option

if TYPE_CHECKING:
    from isthmus.client.admin import AdminClient, AdminError
    from isthmus.tools.watching.status_report import Report

NOT_READY = 1
NOTHING = 2
_MOST_TUNNELS = 10_000


@click.command(
    name="status",
    short_help="Show on one screen how the programs here are",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@admin_options
@output_option
def command(admin: AdminFlags, output: str) -> int:
    """Show on one screen how the programs here are

    Readiness, agents, links and tunnels, dials and traffic of the last five minutes, what is
    stalled and why, certificates to be renewed, and what to look at. Exit code 0 when
    everything is ready, 1 when something is not or one of several does not answer, 2 when nothing
    answers.

    \b
    Example:
      isthmus status
      isthmus status -o json --admin http://127.0.0.1:8095 --admin http://127.0.0.1:8094
      isthmus status --admin https://server.example.com:8095 --cacert pki/ca.crt \\
          --cert pki/client.crt --key pki/client.key
    """
    from isthmus.client.admin import AdminError
    from isthmus.frame.cli.tables import print_data
    from isthmus.tools.watching.looking import at_once
    from isthmus.tools.watching.status_output import print_reports, report_json

    clients = admin.clients()
    found = at_once(ask, clients)
    reports = [each for each in found if not isinstance(each, AdminError)]
    errors = [
        (client.url, str(each))
        for client, each in zip(clients, found, strict=True)
        if isinstance(each, AdminError)
    ]
    well = not errors and all(each.ready for each in reports)
    if output in ("json", "yaml"):
        data = {
            "kind": "Status",
            "ready": well,
            "programs": [report_json(each) for each in reports],
            "errors": [{"url": url, "error": error} for url, error in errors],
        }
        print_data(data, output)
    else:
        print_reports(reports, errors, wide=output == "wide")
    if not reports:
        return NOTHING
    return 0 if well else NOT_READY


def ask(client: AdminClient) -> Report | AdminError:
    """Ask a program for everything that is shown of it; the error when it has no snapshot."""
    from datetime import UTC, datetime

    from isthmus.client.admin import AdminError
    from isthmus.tools.watching.looking import look
    from isthmus.tools.watching.status_report import Heard, report

    seen = look(client, _MOST_TUNNELS)
    if seen.error is not None:
        return seen.error
    try:
        ready = client.ask("/readyz?verbose")
        history = client.get_if_known("/history")
        configuration = client.get_if_known("/configz")
    except AdminError as error:  # it went away between two questions
        return error
    heard = Heard(
        address=client.address,
        program=seen.program,
        id=seen.id,
        snapshot=seen.snapshot,
        ready_status=ready.status,
        ready_text=ready.text,
        history=history,
        configuration=configuration,
    )
    return report(heard, now=datetime.now(UTC))
