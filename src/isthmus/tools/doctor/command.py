"""``isthmus doctor``: find problems of a program, its machine and its peers, and what to do.

The checks are in isthmus.tools.doctor, imported when the command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import FlagCommand
from isthmus.frame.cli.tables import (
    TEXT,
    can_show,
    one_line,
    output_option,
    print_data,
    wrapped,
)
from isthmus.programs import programs
from isthmus.programs.sidecar.command_shared import SidecarCommand
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.settings.options import options_of
from isthmus.settings.parsing import load
from isthmus.text.durations import parse_duration
from isthmus.tools.watching.admin_flags import AdminFlags, admin_options
from isthmus.values import HostPort

if TYPE_CHECKING:
    from isthmus.frame.finding import Finding
    from isthmus.frame.patient import Patient
    from isthmus.tools.doctor.examine import Progress

FAILED = 1
_MOST_TIMEOUT_S = 120.0
_TODO = " → "


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The doctor's own flags."""

    admin: AdminFlags
    target: HostPort | None
    timeout_s: float
    output: str
    verbose: bool

    @property
    def limit_s(self) -> float:
        """The time limit of a whole check: it waits for several answers, one after the other."""
        return 4 * self.timeout_s + 5


@click.group(
    name="doctor",
    short_help="Find problems on this machine, and what to do about them",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--target",
    metavar="HOST:PORT",
    help="Target to dial as well, through the server's UNIX socket or from the agent's host",
)
@click.option(
    "--timeout",
    metavar="DURATION",
    default="5s",
    show_default=True,
    help="How long to wait for each answer",
)
@click.option("-v", "--verbose", is_flag=True, help="Show every check, also those that passed")
@output_option()
@admin_options
@click.pass_context
def command(
    ctx: click.Context,
    admin: AdminFlags,
    target: str | None,
    timeout: str,
    verbose: bool,
    output: str,
) -> int:
    """Find problems on this machine, and what to do about them

    Without a program it checks the programs that run on this machine, by their admin ports. With
    the name of a program and its flags it checks a configuration without running the program.
    It changes nothing. Run it as root, or as the program's user, to see everything.

    The exit code is 0 if nothing failed, 1 if something did, and 2 for a wrong flag.

    \b
    Example:
      isthmus doctor
      isthmus doctor --target=10.0.0.5:443
      isthmus doctor -o json --admin=https://10.0.0.7:8095 --cacert=ca.crt --token-file=token
      isthmus doctor agent --proxy-server-host=server.example.com --ca-cert=pki/ca.crt \\
          --agent-cert=pki/agent.crt --agent-key=pki/agent.key
    """
    ctx.obj = Wanted(
        admin=admin,
        target=_target(target),
        timeout_s=_timeout(timeout),
        output=output,
        verbose=verbose,
    )
    return 0 if ctx.invoked_subcommand is not None else _examine_running(ctx.obj)


def _target(text: str | None) -> HostPort | None:
    try:
        return HostPort.parse(text) if text is not None else None
    except ValueError as error:
        raise ConfigError(f"--target: {error}") from error


def _timeout(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"--timeout: {error}") from error
    if not 0 < seconds <= _MOST_TIMEOUT_S:
        raise ConfigError(f"--timeout must be longer than 0 and at most 2m, not {text}")
    return seconds


def _examine_running(wanted: Wanted) -> int:
    from isthmus.tools.doctor.running import Asking, patients_of

    try:
        clients = wanted.admin.clients(timeout_s=wanted.timeout_s)
    except ConfigError as error:
        if wanted.admin.named:
            raise
        raise ConfigError(f"{error}, or examine flags, as in isthmus doctor agent …") from error
    asking = Asking(environ=os.environ, timeout_s=wanted.timeout_s, target=wanted.target)
    patients, found = patients_of(clients, asking)
    return _examine(wanted, patients, found)


def _examine(wanted: Wanted, patients: Sequence[Patient], found: Sequence[Finding]) -> int:
    from isthmus.tools.doctor.examine import examine
    from isthmus.tools.doctor.looks import LOOKS
    from isthmus.tools.doctor.running import failed

    with _Teller() as told:
        findings = [*found, *examine(patients, LOOKS, limit_s=wanted.limit_s, told=told)]
    if wanted.output != TEXT:
        from isthmus.tools.doctor.examine import to_json

        print_data(to_json(findings), wanted.output)
    else:
        _print(findings, brief=not wanted.verbose)
    return FAILED if failed(findings) else 0


def _print(findings: Sequence[Finding], *, brief: bool) -> None:
    from isthmus.frame.cli.tables import coloured
    from isthmus.tools.doctor.examine import TICK, lines, summary

    tick = TICK if can_show(TICK) else "ok"
    for word, colour, rest in lines(findings, brief=brief, tick=tick):
        if word:
            click.echo(f"{coloured(word, colour)}  {_hung(one_line(rest), len(word) + 2)}")
        else:
            click.echo(rest)
    click.echo(f"\n{wrapped(one_line(summary(findings)), 0)}")


def _hung(text: str, hang: int) -> str:
    """A line for a terminal: wrapped, with the advice on a separate line."""
    margin = " " * hang
    shown = wrapped(f"{margin}{text}", hang)[hang:]
    if "\n" not in shown:
        return shown
    said, arrow, todo = text.partition(_TODO)
    parts = [said, f"{arrow.lstrip()}{todo}"] if arrow else [said]
    return f"\n{margin}".join(wrapped(f"{margin}{part}", hang + 2)[hang:] for part in parts)


class _Teller:
    """Shows on a terminal which checks are running, in one line that is erased afterwards."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def __enter__(self) -> Callable[[Progress], None]:
        return self._tell

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo("\r\x1b[K", nl=False, err=True)

    def _tell(self, progress: Progress) -> None:
        if self._shown:
            waits = ", ".join(dict.fromkeys(progress.waits_for))
            text = f"{progress.done} of {progress.of} checks done; waiting for {waits}"
            # A line that wraps cannot be erased.
            shown = shorten(text, get_terminal_size().columns - 1, placeholder=" …")
            click.echo(f"\r\x1b[K{shown}", nl=False, err=True)


def _check_command(name: str, settings: type[Any], what: str, example: str) -> click.Command:
    """The sub-command of one program: takes the program's flags and checks them."""

    def callback(**given: tuple[str, ...]) -> int:
        from isthmus.frame.patient import Patient

        wanted: Wanted = click.get_current_context().obj
        patient = Patient(
            program=name,
            settings=_settings(settings, given),
            environ=os.environ,
            given=given,
            target=wanted.target,
            timeout_s=wanted.timeout_s,
        )
        return _examine(wanted, [patient], [])

    says = f"Check the flags of {what}, and this machine for it"
    kind = SidecarCommand if issubclass(settings, SidecarSettings) else FlagCommand
    return kind(
        name,
        options_of(settings),
        f"isthmus doctor {name} {example}",
        callback=callback,
        help=says,
        short_help=says,  # otherwise click shortens it to fit the list
    )


def _settings(settings: type[Any], given: Mapping[str, tuple[str, ...]]) -> Any:
    from isthmus.tools.doctor.layout import layout_of

    found = load(settings, given, os.environ)
    return layout_of(found).read(found)


for _it in programs():
    command.add_command(_check_command(_it.name, _it.settings_class, _it.called, _it.example))
