"""``isthmus server``: flags in, a running server out."""

from __future__ import annotations

from isthmus.cli.flags import settings_command
from isthmus.config.server import ServerSettings


def run(settings: ServerSettings) -> int:
    """Run a server until it is told to stop; returns the exit code."""
    from isthmus.app.server import main

    return main(settings)


command = settings_command(
    "server",
    ServerSettings,
    run,
    help="Run the server beside the control plane",
    examples="""\
isthmus server --uds-name=/run/isthmus/server.sock \\
    --cluster-cert=pki/server.crt --cluster-key=pki/server.key --cluster-ca-cert=pki/ca.crt""",
)
