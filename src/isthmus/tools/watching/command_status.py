"""``isthmus status``: the running programs on one screen.

status_report.py selects what to report; this module prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from isthmus.frame.cli.tables import (
    bars,
    can_show,
    coloured,
    complain,
    counted,
    one_line,
    output_option,
)
from isthmus.net.rules_expiry import Standing
from isthmus.text.units import age, rate, size
from isthmus.tools.watching.admin_flags import FORMATS_OF_TABLES, AdminFlags, admin_options
from isthmus.tools.watching.status_report import BudgetUse, Recent, Report, ends_when

if TYPE_CHECKING:
    from isthmus.client.admin import AdminClient, AdminError

NOT_READY = 1
_MOST_TUNNELS = 10_000


@click.command(
    name="status",
    short_help="Show the health of running Isthmus programs",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@admin_options
@output_option(FORMATS_OF_TABLES)
def command(admin: AdminFlags, output: str) -> int:
    """Show the health of running Isthmus programs

    Readiness, agents, links and tunnels, dials and traffic of the last five minutes, stalled
    tunnels with the reason, certificates to renew, and problems to look into. The exit code is 0
    if all programs are ready, 1 if one is not or does not answer.

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
    return 0 if well else NOT_READY


def ask(client: AdminClient) -> Report | AdminError:
    """Query everything that is shown of a program; the error if it gives no snapshot."""
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
    except AdminError as error:  # it ended between two requests
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


_MOST_STALLED = 5
_MOST_HOLDERS = 2
_LABEL_CHARS = 14


def report_json(report: Report) -> dict[str, Any]:
    """A program for JSON and YAML; docs/how-to/terminal.md lists the keys."""
    recent = report.recent
    return {
        "address": report.address,
        "program": report.program,
        "id": report.id,
        "version": report.version,
        "startedAt": report.started_at,
        "uptimeSeconds": report.uptime_s,
        "ready": report.ready,
        "notReady": list(report.not_ready),
        "draining": report.draining,
        "agents": report.agents,
        "links": report.links,
        "tunnels": report.tunnels,
        "dials": report.dials,
        "dialsFailed": report.dials_failed,
        "recent": None
        if recent is None
        else {
            "seconds": recent.seconds,
            "dials": recent.dials,
            "failures": recent.failures,
            "bytesPerSecondToTarget": round(recent.rate_to_target, 1),
            "bytesPerSecondToClient": round(recent.rate_to_client, 1),
        },
        "memory": None if report.memory is None else _memory_json(report.memory),
        "stalled": [
            {"id": int(each) if each.isdecimal() else each, "target": target, "why": why}
            for each, target, why in report.stalled
        ],
        "certificates": [
            {
                "file": each.file,
                "notAfter": each.not_after,
                "daysLeft": each.days_left,
                "standing": each.standing.value,
            }
            for each in report.certificates
        ],
        "featureGates": list(report.gates),
        "lookAt": list(report.look_at),
    }


def _memory_json(memory: BudgetUse) -> dict[str, Any]:
    return {
        "usedBytes": memory.used_bytes,
        "budgetBytes": memory.budget_bytes,
        "peers": memory.peers,
        "largest": [{"peer": peer, "bytes": held} for peer, held in memory.largest],
    }


def print_reports(
    reports: Sequence[Report], errors: Sequence[tuple[str, str]], *, wide: bool
) -> None:
    """Print programs as text, ``wide`` with every detail; unreachable programs go to stderr."""
    for at, report in enumerate(reports):
        if at:
            click.echo()
        _print_report(report, wide)
    for _, error in errors:
        complain(error)


def _print_report(report: Report, wide: bool) -> None:
    name = click.style(report.program, bold=True) if _fancy() else report.program
    words = (report.id, report.version, report.address)
    shown = "  ".join(one_line(word) for word in dict.fromkeys(words) if word)
    click.echo(f"{name}  {shown}")
    for label, text in _rows(report, wide):
        _print_row(label, text)


def _print_row(label: str, text: str) -> None:
    click.echo(f"  {label:<{_LABEL_CHARS}}{text}")


def _fancy() -> bool:
    return coloured("x", "red") != "x"


def _rows(report: Report, wide: bool) -> Iterator[tuple[str, str]]:
    yield "up", f"{age(report.uptime_s)}, since {report.started_at}"
    yield "ready", _ready(report)
    if wide:
        yield from (("check", one_line(check)) for check in report.checks)
    yield "open", _open(report)
    yield "dials", _dials(report)
    if report.recent is None:
        yield "traffic", "not known (an older program, without /history)"
    elif not report.recent.seconds:
        yield "traffic", "not known yet (ten seconds after the start)"
    else:
        yield "traffic", _traffic(report.recent)
    if report.memory is not None:
        yield "memory", _memory(report.memory, wide)
    for each, target, why in report.stalled[: None if wide else _MOST_STALLED]:
        yield "stalled", one_line(f"{each} to {target}: {why}")
    hidden = 0 if wide else len(report.stalled) - _MOST_STALLED
    if hidden > 0:
        yield "stalled", f"and {hidden} more: isthmus tunnels --stalled"
    for certificate in report.certificates if wide else report.ending_soon:
        text = one_line(f"{certificate.file} {ends_when(certificate)}")
        well = certificate.standing is Standing.OK
        yield "certificate", text if well else coloured(text, "yellow")
    if report.gates:
        yield "feature gates", one_line(", ".join(report.gates))
    for line in report.hints:
        yield "look at", coloured(one_line(line), "yellow")


def _ready(report: Report) -> str:
    if report.ready is None:
        return "not known"
    if report.ready:
        return coloured("yes", "green")
    return f"{coloured('no', 'red')}: {one_line('; '.join(report.not_ready))}"


def _open(report: Report) -> str:
    counts = (
        (report.agents, "agent"),
        (report.links, "link"),
        (report.tunnels, "tunnel"),
    )
    return ", ".join(counted(number, word) for number, word in counts if number is not None)


def _dials(report: Report) -> str:
    recent = report.recent
    total = f"{report.dials} since the start, {report.dials_failed} failed"
    if recent is None or not recent.seconds:
        return total
    why = ", ".join(f"{reason} {count}" for reason, count in recent.failures.items())
    failed = f"{recent.failed} failed{f' ({one_line(why)})' if why else ''}"
    if recent.failed:
        failed = coloured(failed, "yellow")
    return f"{recent.dials} in {age(recent.seconds)}, {failed}{_bars(recent.dial_steps)}; {total}"


def _traffic(recent: Recent) -> str:
    to_target, to_client = rate(recent.rate_to_target), rate(recent.rate_to_client)
    return f"{to_target} to targets, {to_client} to clients{_bars(recent.byte_steps)}"


def _memory(memory: BudgetUse, wide: bool) -> str:
    shown = f"{size(memory.used_bytes)} of {size(memory.budget_bytes)} kept for peers"
    if memory.used_up:
        shown = coloured(shown, "yellow")
    held = memory.largest[: None if wide else _MOST_HOLDERS]
    largest = ", ".join(f"{one_line(peer)} {size(each)}" for peer, each in held)
    return f"{shown}, most for {largest}" if largest else shown


def _bars(values: Sequence[int]) -> str:
    """Bars, if the terminal can show them."""
    shown = bars(values)
    return f"  {shown}" if sys.stdout.isatty() and can_show(shown) else ""
