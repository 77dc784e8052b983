"""``isthmus agent``: flags in, a running agent out."""

from __future__ import annotations

from isthmus.cli.flags import settings_command
from isthmus.config.agent import AgentSettings


def run(settings: AgentSettings) -> int:
    """Run an agent until it is told to stop; returns the exit code."""
    from isthmus.app.agent import main

    return main(settings)


command = settings_command(
    "agent",
    AgentSettings,
    run,
    help="Run an agent in the network that the server cannot reach",
    examples="""\
isthmus agent --proxy-server-host=server.example.com --ca-cert=pki/ca.crt \\
    --agent-cert=pki/agent.crt --agent-key=pki/agent.key""",
)
