"""``isthmus apiserver-proxy``: runs a proxy, and checks and converts its configuration file.

The modules that run a proxy are imported when a command runs.
"""

from __future__ import annotations

import click

from isthmus.frame.cli.flags import FlagGroup, checked
from isthmus.programs.apiserver_proxy import PROGRAM
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.settings.options import options_of


def _run(**given: tuple[str, ...]) -> int:
    if click.get_current_context().invoked_subcommand is not None:
        return 0
    from isthmus.frame.running import main

    return main(PROGRAM, checked(ApiserverProxySettings, given))


command = FlagGroup(
    PROGRAM.name,
    options_of(ApiserverProxySettings),
    """\
isthmus apiserver-proxy --upstream=api.example.com:6443 \\
    --ca-cert=/etc/kubernetes/ca.crt
isthmus apiserver-proxy --config=apiserver-proxy.yaml
isthmus apiserver-proxy convert haproxy.cfg \\
    --ca-cert=/etc/kubernetes/ca.crt""",
    callback=_run,
    invoke_without_command=True,
    help=PROGRAM.help,
)


@command.command(short_help="Check a configuration file")
@click.argument("file")
def check(file: str) -> int:
    """Check a configuration file

    All errors are reported at once, with file, line and column; the exit code is then 2. The
    certificates that the file names need not exist.

    \b
    Example:
      isthmus apiserver-proxy check apiserver-proxy.yaml
    """
    from isthmus.programs.apiserver_proxy.planning import read_plan

    plan = read_plan(file, what="")
    listen = ", ".join(f"{host or '*'} port {port}" for host, port in plan.listen)
    upstreams = ", ".join(map(str, plan.upstreams))
    click.echo(f"{file}: ok: {listen} to {upstreams}, checked by {plan.check.kind.value}")
    return 0


@command.command(short_help="Convert the haproxy.cfg that HyperShift writes")
@click.argument("file")
@click.option(
    "--ca-cert",
    default="",
    metavar="FILE",
    help="Check upstreams over TLS, with the CAs of the cluster in this file",
)
def convert(file: str, ca_cert: str) -> int:
    """Convert the haproxy.cfg that HyperShift writes

    The result is printed; warnings go to standard error. A line that cannot be converted is an
    error with its location, and the exit code is 2.

    \b
    Example:
      isthmus apiserver-proxy convert haproxy.cfg --ca-cert /etc/kubernetes/ca.crt
    """
    from isthmus.net.files import read_text
    from isthmus.programs.apiserver_proxy.settings_file import write
    from isthmus.programs.apiserver_proxy.settings_haproxy_cfg import convert as convert_text

    converted = convert_text(read_text(file), file, ca=ca_cert)
    for warning in converted.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(write(converted.plan), nl=False)
    return 0
