"""``isthmus server``, and ``setup-socket``, the part of it that needs privilege."""

from __future__ import annotations

import click

from isthmus.errors import ConfigError
from isthmus.frame.cli.flags import WithSetup, settings_command
from isthmus.programs.server import PROGRAM
from isthmus.programs.server.settings import ServerSettings


def run(settings: ServerSettings) -> int:
    """Run a server until it is told to stop; returns the exit code."""
    from isthmus.frame.running import main

    return main(PROGRAM, settings)


@click.command(
    name="setup-socket",
    short_help="Give the directory of the server's socket to its user, as root",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--uds-name",
    "sockets",
    metavar="PATH",
    multiple=True,
    required=True,
    help="UNIX socket whose directory is set up; repeatable",
)
@click.option(
    "--owner",
    metavar="ID",
    type=click.IntRange(1, 2**31 - 1),
    required=True,
    help="User and group to give the directory to",
)
def setup_socket(sockets: tuple[str, ...], owner: int) -> int:
    """Give the directory of the server's socket to its user, as root

    The kubelet creates a node's directory as root, and a server that is not root cannot create a
    socket there. This needs only CAP_CHOWN. For an init container; safe to repeat.

    \b
    Example:
      isthmus server setup-socket --uds-name=/run/isthmus/server.sock --owner=65532
    """
    import os
    from pathlib import Path

    for directory in dict.fromkeys(Path(path).parent for path in sockets):
        if directory == Path(directory.anchor):
            raise ConfigError(f"--uds-name: refusing to change the owner of {directory}")
        try:
            # Not through a symbolic link, which could point to any directory.
            os.chown(directory, owner, owner, follow_symlinks=False)
        except OSError as error:
            raise ConfigError(f"{directory}: {error.strerror}") from error
        click.echo(f"{directory} now belongs to {owner}")
    return 0


command = WithSetup(
    settings_command(
        "server",
        ServerSettings,
        run,
        help="Run the server beside the control plane",
        examples="""\
isthmus server --uds-name=/run/isthmus/server.sock \\
    --cluster-cert=pki/server.crt --cluster-key=pki/server.key \\
    --cluster-ca-cert=pki/ca.crt
isthmus server setup-socket --help""",
    ),
    setup_socket,
)
