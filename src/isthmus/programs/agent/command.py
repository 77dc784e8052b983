"""``isthmus agent``, and ``setup-interface``, the part of it that needs privilege.

setup-interface is implemented in net/host_address.py, imported when it runs.
"""

from __future__ import annotations

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import WithSetup, settings_command
from isthmus.net.settings_bind import INTERFACE, BindSettings
from isthmus.programs.agent import PROGRAM
from isthmus.programs.agent.settings import AgentSettings
from isthmus.settings.parsing import listed


def run(settings: AgentSettings) -> int:
    """Run an agent until it is told to stop; returns the exit code."""
    from isthmus.frame.running import main

    return main(PROGRAM, settings)


@click.command(
    name="setup-interface",
    short_help="Put the agent's address on its interface, as root",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--bind-address",
    "addresses",
    metavar="ADDRESS",
    multiple=True,
    help="Address to put on the interface; repeatable, one of each family",
)
@click.option(
    "--bind-interface",
    metavar="NAME",
    default=INTERFACE,
    show_default=True,
    help="Interface for the address, created if it is missing; lo puts it on the loopback",
)
@click.option(
    "--uplink-interface",
    "uplinks",
    metavar="NAME",
    multiple=True,
    help="Interface on which incoming connections to the address are dropped; repeatable; none "
    "drops nothing [default: the uplinks that are found]",
)
@click.option("--remove", is_flag=True, help="Remove what this command created")
def setup_interface(
    addresses: tuple[str, ...], bind_interface: str, uplinks: tuple[str, ...], remove: bool
) -> int:
    """Put the agent's address on its interface, as root

    Does the part of an agent's startup with --bind-address that needs CAP_NET_ADMIN: creates the
    interface, the address, and the rule that keeps other machines from it. They stay when the agent
    ends, and the agent needs no capability. For an init container or a unit's ExecStartPre; safe to
    repeat.

    \b
    Example:
      isthmus agent setup-interface --bind-address=10.0.0.1
      isthmus agent setup-interface --bind-address=10.0.0.1 --remove
      isthmus agent setup-interface --bind-address=10.0.0.1,fd00::1
    """
    settings = BindSettings(
        address=listed(addresses), interface=bind_interface, uplink_interface=listed(uplinks)
    )
    for sentence in settings.check():
        click.echo(f"isthmus: {sentence}", err=True)
    if not settings.bound_addresses:
        raise ConfigError("setup-interface needs --bind-address")
    from isthmus.net.host_address import set_up, undo_set_up

    for address in settings.bound_addresses:
        if remove:
            removed = undo_set_up(address, interface=bind_interface)
            click.echo(f"{address} removed" if removed else f"{address} was not configured")
            continue
        where, said = set_up(address, interface=bind_interface, uplinks=settings.uplink_interface)
        for sentence in said:
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
