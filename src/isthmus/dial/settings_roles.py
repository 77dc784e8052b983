"""The settings that tell agents' certificates from clients', where one authority signs both."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.settings.rules_roles import Admits, Role, admits

AGENT_NAMES, CLIENT_NAMES = "--agent-names", "--client-names"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings(SettingsBlock):
    """Which names certificates must have that come as agents, and as clients."""

    GO: ClassVar = OURS

    agent_names: tuple[str, ...] = option(
        (),
        help="Accept agents only if their certificate has one of these names: edge-* is a common "
        "or alternative name, O=edge an organization; without it, all but those that isthmus pki "
        "made for others",
        repeat=True,
        filled=True,
        group="Agents",
        metavar="NAME",
    )
    client_names: tuple[str, ...] = option(
        (),
        help="Accept clients of the TCP frontend only if their certificate has one of these names, "
        "as --agent-names has them",
        repeat=True,
        filled=True,
        group="Frontend, where kube-apiserver connects",
        metavar="NAME",
    )

    @property
    def admits_agents(self) -> Admits:
        """Whose certificates are an agent's.

        Raises:
            ConfigError: a name is none.
        """
        return read_names(Role.AGENT, AGENT_NAMES, self.agent_names)

    @property
    def admits_clients(self) -> Admits:
        """Whose certificates are a client's.

        Raises:
            ConfigError: a name is none.
        """
        return read_names(Role.CLIENT, CLIENT_NAMES, self.client_names)

    def check(self, *, agents_ca: str, clients_ca: str) -> None:
        """See that names are asked for only where certificates are.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
        """
        for flag, names, ca_flag, ca in (
            (AGENT_NAMES, self.agent_names, "--cluster-ca-cert", agents_ca),
            (CLIENT_NAMES, self.client_names, "--server-ca-cert", clients_ca),
        ):
            if names and not ca:
                raise ConfigError(f"{flag} needs {ca_flag}: without it nobody proves a name there")
        _ = self.admits_agents, self.admits_clients


def read_names(role: Role, flag: str, names: Iterable[str]) -> Admits:
    """Read the names of a flag.

    Raises:
        ConfigError: one is none.
    """
    try:
        return admits(role, flag, names)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from error
