"""``isthmus agent``: flags in, a running agent out; and the part that needs privilege, on its own.

What setup-interface does is net/host_address.py, imported when it runs.
"""

from __future__ import annotations

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import WithSetup, settings_command
from isthmus.net.settings_bind import INTERFACE, BindSettings
from isthmus.programs.agent import PROGRAM
from isthmus.programs.agent.settings import AgentSettings


def run(settings: AgentSettings) -> int:
    """Run an agent until it is told to stop; returns the exit code."""
    from isthmus.frame.running import main

    return main(PROGRAM, settings)


@click.command(
    name="setup-interface",
    short_help="Put the agent's address on its interface, as root",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--bind-address", metavar="ADDRESS", default="", help="Put this address there")
@click.option(
    "--bind-interface",
    metavar="NAME",
    default=INTERFACE,
    show_default=True,
    help="Put it on this interface, made if it is missing; lo puts it on the loopback",
)
@click.option(
    "--uplink-interface",
    "uplinks",
    metavar="NAME",
    multiple=True,
    help="Drop connections to the address that come in here; repeatable; none drops nothing"
    " [default: those found]",
)
@click.option("--remove", is_flag=True, help="Remove what this command made")
def setup_interface(
    bind_address: str, bind_interface: str, uplinks: tuple[str, ...], remove: bool
) -> int:
    """Put the agent's address on its interface, as root

    Does what an agent with --bind-address does at its start and needs CAP_NET_ADMIN for: the
    interface, the address, and the rule that keeps other machines from it. It stays when the agent
    ends, and the agent needs no capability. For an init container or a unit's ExecStartPre; safe to
    repeat.

    \b
    Example:
      isthmus agent setup-interface --bind-address=10.0.0.1
      isthmus agent setup-interface --bind-address=10.0.0.1 --remove
    """
    named = tuple(name.strip() for text in uplinks for name in text.split(",") if name.strip())
    settings = BindSettings(address=bind_address, interface=bind_interface, uplink_interface=named)
    warnings = settings.check()
    address = settings.bound_address
    if address is None:
        raise ConfigError("setup-interface needs --bind-address")
    from isthmus.net.host_address import set_up, undo_set_up

    if remove:
        removed = undo_set_up(address, interface=bind_interface)
        click.echo(f"{address} removed" if removed else f"{address} was not there")
        return 0
    where, said = set_up(address, interface=bind_interface, uplinks=named)
    for sentence in (*warnings, *said):
        click.echo(f"isthmus: {sentence}", err=True)
    click.echo(f"{address} is on {where}")
    return 0


command = WithSetup(
    settings_command(
        "agent",
        AgentSettings,
        run,
        help="Run an agent in the network that the server cannot reach",
        examples="""\
isthmus agent --proxy-server-host=server.example.com --ca-cert=pki/ca.crt \\
    --agent-cert=pki/agent.crt --agent-key=pki/agent.key
isthmus agent setup-interface --help""",
    ),
    setup_interface,
)
