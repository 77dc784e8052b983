"""Warns if nothing distinguishes the certificates of agents, clients and operators.

settings/rules_roles.py defines the roles; the caller reads the authorities' files.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.errors import ConfigError
from isthmus.programs.server.settings import ServerSettings

#: The remedy, for users.
TODO = "give each its own authority, or list the allowed names of each; docs/pki.md has the steps"


def role_warnings(settings: ServerSettings, read: Callable[[str], frozenset[bytes]]) -> list[str]:
    """Warnings about roles that can impersonate each other, one for each two ports.

    ``read`` returns the authorities of a file. Unreadable files are reported elsewhere.
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
                else ["a client's certificate can register as an agent"]
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
