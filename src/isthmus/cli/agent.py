"""``isthmus agent``: flags in, a running agent out; its one sub-command is setup_interface.py."""

from __future__ import annotations

from typing import Any

import click

from isthmus.cli.flags import FlagCommand, settings_command
from isthmus.config.agent import AgentSettings

_SETUP = "setup-interface"


def run(settings: AgentSettings) -> int:
    """Run an agent until it is told to stop; returns the exit code."""
    from isthmus.app.agent import main

    return main(settings)


class AgentCommand(FlagCommand):
    """The agent's flags; a first word ``setup-interface`` is a command of its own.

    No group: ``isthmus agent`` runs an agent, as konnectivity's proxy-agent does.
    """

    def __init__(self, plain: click.Command) -> None:
        assert isinstance(plain, FlagCommand)
        super().__init__(
            "agent", plain.declared, plain.examples, callback=plain.callback, help=plain.help
        )

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **rest: Any,
    ) -> click.Context:
        """Read the command line, of the sub-command if the first word is one."""
        if args[:1] != [_SETUP]:
            return super().make_context(info_name, args, parent, **rest)
        from isthmus.cli.setup_interface import command as setup

        above = click.Context(self, parent=parent, info_name=info_name)
        return setup.make_context(_SETUP, args[1:], above, **rest)


command = AgentCommand(
    settings_command(
        "agent",
        AgentSettings,
        run,
        help="Run an agent in the network that the server cannot reach",
        examples="""\
isthmus agent --proxy-server-host=server.example.com --ca-cert=pki/ca.crt \\
    --agent-cert=pki/agent.crt --agent-key=pki/agent.key
isthmus agent setup-interface --help""",
    )
)
