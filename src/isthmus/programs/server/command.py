"""``isthmus server``: flags in, a running server out; its one sub-command is setup_socket.py."""

from __future__ import annotations

import click

from isthmus.frame.cli.flags import WithSetup, settings_command
from isthmus.programs.server import PROGRAM
from isthmus.programs.server.settings import ServerSettings


def run(settings: ServerSettings) -> int:
    """Run a server until it is told to stop; returns the exit code."""
    from isthmus.frame.running import main

    return main(PROGRAM, settings)


def _setup() -> click.Command:
    from isthmus.programs.server.command_setup_socket import command as setup

    return setup


command = WithSetup(
    settings_command(
        "server",
        ServerSettings,
        run,
        help="Run the server beside the control plane",
        examples="""\
isthmus server --uds-name=/run/isthmus/server.sock \\
    --cluster-cert=pki/server.crt --cluster-key=pki/server.key --cluster-ca-cert=pki/ca.crt
isthmus server setup-socket --help""",
    ),
    "setup-socket",
    _setup,
)
