"""``isthmus bootstrap``: connect a node to kube-apiserver through its agent (KEP-2025).

The work is in kubeconfig.py, check.py and apiserver.py, imported when a command runs.
"""

from __future__ import annotations

import textwrap
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.tables import TEXT, console, filled, one_line, output_option, print_data
from isthmus.net.settings_bind import parse_bind_addresses
from isthmus.settings.parsing import listed
from isthmus.text.durations import parse_duration
from isthmus.values import HostPort

if TYPE_CHECKING:
    from isthmus.tools.bootstrap.rules import CheckReport, CheckStep

_HELP = {"help_option_names": ["-h", "--help"]}
_PORT = click.IntRange(1, 65535)
_DEFAULT_PORT = 6443
_WIDTH = 100


@click.group(
    name="bootstrap",
    short_help="Lead nodes to kube-apiserver through their agents",
    context_settings=_HELP,
)
def command() -> None:
    """Lead nodes to kube-apiserver through their agents

    \b
    Example:
      isthmus bootstrap kubeconfig /etc/kubernetes/bootstrap-kubelet.conf \\
          --bind-address=10.0.0.1 --ca-cert=ca.crt --token-file=token
      isthmus bootstrap check --kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf
      isthmus bootstrap apiserver --bind-address=10.0.0.1 --target=6443:localhost:6443
    """


@command.command(
    short_help="Write a kubeconfig that leads a kubelet to its agent", context_settings=_HELP
)
@click.argument("output", metavar="FILE|-", callback=filled)
@click.option(
    "--bind-address",
    metavar="ADDRESS",
    required=True,
    help="Address to connect to, the agent's --bind-address",
)
@click.option(
    "--local-port",
    type=_PORT,
    default=_DEFAULT_PORT,
    show_default=True,
    help="Port to connect to, the first of the agent's --target",
)
@click.option(
    "--ca-cert", metavar="FILE", required=True, callback=filled,
    help="CAs that kube-apiserver's certificate must come from",
)  # fmt: skip
@click.option(
    "--by-path", is_flag=True, help="Refer to files by their paths instead of embedding them"
)
@click.option(
    "--tls-server-name",
    metavar="NAME",
    default="",
    help="Name expected in kube-apiserver's certificate",
)
@click.option(
    "--apiserver-cert",
    metavar="FILE",
    default="",
    help="Certificate of kube-apiserver; one of its names is asked for if it does not have the "
    "address",
)
@click.option(
    "--token-file",
    metavar="FILE",
    default="",
    help="File with the token to put into the kubeconfig",
)
@click.option(
    "--token-id",
    metavar="ID",
    default="",
    help="ID of the bootstrap token, with --token-secret-file",
)
@click.option(
    "--token-secret-file",
    metavar="FILE",
    default="",
    help="File with the secret part of the bootstrap token",
)
@click.option(
    "--client-cert",
    metavar="FILE",
    default="",
    help="Client certificate to put into the kubeconfig",
)
@click.option("--client-key", metavar="FILE", default="", help="Private key of --client-cert")
@click.option("--force", is_flag=True, help="Replace an existing file")
def kubeconfig(
    output: str, bind_address: str, local_port: int, force: bool, by_path: bool, **files: str
) -> None:
    """Write a kubeconfig that leads a kubelet to its agent

    For --bootstrap-kubeconfig of a kubelet, with a bootstrap token, or with a certificate for its
    --kubeconfig. Written as a whole, for its owner only; - is standard output.

    \b
    Example:
      isthmus bootstrap kubeconfig /etc/kubernetes/bootstrap-kubelet.conf \\
          --bind-address=10.0.0.1 --ca-cert=/etc/kubernetes/pki/ca.crt --token-file=token
      isthmus bootstrap kubeconfig - --bind-address=10.0.0.1 --ca-cert=ca.crt \\
          --apiserver-cert=apiserver.crt --client-cert=kubelet.crt --client-key=kubelet.key
    """
    from isthmus.frame.private_file import write_private
    from isthmus.tools.bootstrap.kubeconfig import KubeconfigInput, make_kubeconfig

    at = HostPort(str(_first(bind_address)[0]), local_port)
    text, warning = make_kubeconfig(KubeconfigInput(at=at, by_path=by_path, **files))
    if warning:
        click.echo(f"isthmus: {warning}", err=True)
    if output == "-":
        click.echo(text, nl=False)
        return
    write_private(output, text, force=force)
    click.echo(f"{output} leads to https://{at}", err=True)


def _first(text: str) -> tuple[IPv4Address | IPv6Address, ...]:
    """The agents' addresses; kube-apiserver advertises the first."""
    found = parse_bind_addresses(listed((text,)))
    if not found:
        raise ConfigError("--bind-address is empty: give the agents' address")
    return found


@command.command(
    short_help="Check every step from this node to kube-apiserver", context_settings=_HELP
)
@click.option(
    "--bind-address",
    metavar="ADDRESS",
    default="",
    help="Address to check, the agent's --bind-address [default: that of --kubeconfig]",
)
@click.option(
    "--local-port",
    type=_PORT,
    help=f"Port to check [default: that of --kubeconfig, or {_DEFAULT_PORT}]",
)
@click.option(
    "--kubeconfig",
    metavar="FILE",
    default="",
    help="Kubeconfig of the kubelet to check as well, and to ask for endpoints with",
)
@click.option(
    "--ca-cert",
    metavar="FILE",
    default="",
    help="CAs that kube-apiserver's certificate must come from [default: those of --kubeconfig, "
    "or the system's]",
)
@click.option(
    "--tls-server-name",
    metavar="NAME",
    default="",
    help="Name expected in kube-apiserver's certificate [default: that of --kubeconfig, or the "
    "address]",
)
@click.option(
    "--agent-admin",
    metavar="HOST:PORT",
    default="127.0.0.1:8094",
    show_default=True,
    help="Admin port of the agent",
)
@click.option(
    "--agent-admin-ca",
    metavar="FILE",
    default="",
    help="CAs that the admin port's certificate must come from; it is then asked by HTTPS",
)
@click.option(
    "--agent-admin-cert", metavar="FILE", default="", help="TLS certificate shown to the admin port"
)
@click.option(
    "--agent-admin-key", metavar="FILE", default="", help="Private key of --agent-admin-cert"
)
@click.option(
    "--timeout",
    metavar="DURATION",
    default="15s",
    show_default=True,
    help="How long to wait for each answer",
)
@output_option()
def check(output: str, **given: str | int | None) -> int:
    """Check every step from this node to kube-apiserver

    Run it on the node, as root to see firewall rules. If a step failed, begin with the first such
    step; the exit code is then 1. Nothing is changed.

    \b
    Example:
      isthmus bootstrap check --kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf
      isthmus bootstrap check --bind-address=10.0.0.1 --ca-cert=ca.crt -o json
    """
    from isthmus.tools.bootstrap.check import BootstrapCheck, CheckFlags, check_input

    timeout = given.pop("timeout")
    try:
        timeout_s = parse_duration(str(timeout))
    except ValueError as error:
        raise ConfigError(f"--timeout: {error}") from error
    if not 0 < timeout_s <= 600:
        raise ConfigError(f"--timeout must be longer than 0 and at most 10m, not {timeout}")
    flags = CheckFlags(timeout_s=timeout_s, default_port=_DEFAULT_PORT, **given)  # type: ignore[arg-type]  # as click gives them
    asked = check_input(flags)
    report = BootstrapCheck(asked).run()
    if output == TEXT:
        _print_table(report)
    else:
        print_data(report.to_json(), output)
    return 1 if report.failed else 0


def _print_table(report: CheckReport) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("Step", "", "Found", box=None, pad_edge=False)
    table.columns[-1].overflow = "fold"
    styles = {"ok": "green", "warning": "yellow", "failed": "red", "skipped": "dim"}
    for step in report.steps:
        state = step.state.value
        table.add_row(
            step.name.value, Text(state, style=styles[state]), Text(one_line(_said(step)))
        )
    console().print(table)
    first = report.failed[:1]
    if first:
        click.echo(f"\nbegin with {first[0].name.value}: {one_line(first[0].found)}", err=True)


def _said(step: CheckStep) -> str:
    found = one_line(step.found)
    return f"{found}\n→ {one_line(step.advice)}" if step.advice else found


def _comment(text: str, *, indent: str = "") -> str:
    start = f"# {indent}"
    return textwrap.fill(
        text, _WIDTH, initial_indent=start, subsequent_indent=start, break_on_hyphens=False
    )


@command.command(
    short_help="Print and explain the settings that kube-apiserver needs", context_settings=_HELP
)
@click.option(
    "--bind-address",
    metavar="ADDRESS",
    required=True,
    help="Address to advertise, the agents' --bind-address",
)
@click.option(
    "--target",
    metavar="LOCAL_PORT:HOST:PORT",
    required=True,
    help="Value of the agents' --target that leads to kube-apiserver; the ports are taken from it",
)
@click.option(
    "--by-hand",
    is_flag=True,
    help="Stop kube-apiserver from writing endpoints, and print them for you to apply",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "flags", "yaml"]),
    default="text",
    show_default=True,
    help="Print everything with explanations, only the flags, or only the manifests",
)
def apiserver(bind_address: str, target: str, by_hand: bool, output: str) -> None:
    """Print and explain the settings that kube-apiserver needs

    \b
    Example:
      isthmus bootstrap apiserver --bind-address=10.0.0.1 --target=6443:localhost:6443
      isthmus bootstrap apiserver --bind-address=10.0.0.1 --target=6443:localhost:6443 \\
          --by-hand -o yaml | kubectl apply -f -
    """
    from isthmus.dial.settings_targets import parse_target
    from isthmus.tools.bootstrap.apiserver import apiserver_plan

    addresses = _first(bind_address)
    read, warning = parse_target(target)
    if warning:
        click.echo(f"isthmus: {warning}", err=True)
    plan = apiserver_plan(addresses, read, by_hand=by_hand)
    if output == "flags":
        for flag in plan.flags:
            click.echo(flag.text)
        return
    if output == "text":
        for flag in plan.flags:
            click.echo(f"# {flag.text}\n{_comment(flag.why, indent='    ')}")
        for note in plan.notes:
            click.echo(f"#\n{_comment(note)}")
    click.echo(plan.manifests(), nl=False)
