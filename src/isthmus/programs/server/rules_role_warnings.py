"""Whether anything tells the certificates of agents, clients and operators apart.

What a certificate may be used for is settings/rules_roles.py; reading the authorities' files is for
others.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.errors import ConfigError
from isthmus.programs.server.settings import ServerSettings

#: What to do, for people.
TODO = (
    "give each its own authority, or list the names that each may have; docs/pki.md has the steps"
)


def role_warnings(settings: ServerSettings, read: Callable[[str], frozenset[bytes]]) -> list[str]:
    """Say who can pass for somebody else, one sentence for each two ports; empty: nobody can.

    ``read`` gives the authorities of a file. What cannot be read is for others to complain about.
    """
    found = []
    agents = settings.cluster_ca_cert
    tcp = any(door.port is not None for door in settings.doors)
    if tcp and _shared(agents, settings.server_ca_cert, read):
        open_to = [
            *([] if settings.roles.client_names else ["an agent's certificate opens the frontend"]),
            *(
                []
                if settings.roles.agent_names
                else ["a client's certificate can come as an agent"]
            ),
        ]
        missing = [
            *([] if settings.roles.client_names else ["--client-names"]),
            *([] if settings.roles.agent_names else ["--agent-names"]),
        ]
        if open_to:
            found.append(
                "--server-ca-cert and --cluster-ca-cert trust the same authority without"
                f" {' and '.join(missing)}: {', and '.join(open_to)}; {TODO}"
            )
    if not settings.admin.client_names and _shared(agents, settings.admin.client_ca, read):
        found.append(
            "--admin-client-ca and --cluster-ca-cert trust the same authority without"
            f" --admin-client-names: an agent's certificate opens the admin port; {TODO}"
        )
    return found


def _shared(one: str, other: str, read: Callable[[str], frozenset[bytes]]) -> bool:
    if not one or not other:
        return False
    try:
        return not read(one).isdisjoint(read(other))
    except ConfigError:
        return False
