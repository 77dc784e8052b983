"""``isthmus agent``: flags in, a running agent out; its one sub-command is setup_interface.py."""

from __future__ import annotations

import click

from isthmus.frame.cli.flags import WithSetup, settings_command
from isthmus.programs.agent import PROGRAM
from isthmus.programs.agent.settings import AgentSettings


def run(settings: AgentSettings) -> int:
    """Run an agent until it is told to stop; returns the exit code."""
    from isthmus.frame.running import main

    return main(PROGRAM, settings)


def _setup() -> click.Command:
    from isthmus.programs.agent.command_setup_interface import command as setup

    return setup


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
    "setup-interface",
    _setup,
)
