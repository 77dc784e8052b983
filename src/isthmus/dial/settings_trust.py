"""Which certificates and tokens a server trusts: the roles of certificates, and revocation.

net/revocation.py reads lists of revoked certificates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, SettingsBlock, option
from isthmus.settings.rules_roles import Admits, Role, admits
from isthmus.text.addresses import is_loopback

AGENT_NAMES, CLIENT_NAMES = "--agent-names", "--client-names"
#: The values of --server-auth.
MTLS, NONE_ON_LOOPBACK = "mtls", "none-on-loopback"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSettings(SettingsBlock):
    """Which certificates identify agents and clients, and whether clients need one."""

    GO: ClassVar = OURS

    agent_names: tuple[str, ...] = option(
        (),
        help="Names of agents, one of which their certificate must have: edge-* is a common or "
        "alternative name, O=edge an organization; without it, all but those that isthmus pki "
        "made for other roles",
        repeat=True,
        filled=True,
        group="Agents",
        metavar="NAME",
    )
    client_names: tuple[str, ...] = option(
        (),
        help="Names of TCP clients, one of which their certificate must have, written as for "
        "--agent-names",
        repeat=True,
        filled=True,
        group="Frontend, where kube-apiserver connects",
        metavar="NAME",
    )

    server_auth: str = option(
        MTLS,
        help=f"Authentication of TCP clients: {MTLS} requires a certificate from --server-ca-cert; "
        f"{NONE_ON_LOOPBACK} requires nothing, and needs a --server-bind-address on loopback",
        choices=(MTLS, NONE_ON_LOOPBACK),
        metavar=f"{MTLS}|{NONE_ON_LOOPBACK}",
        group="Frontend, where kube-apiserver connects",
    )

    @property
    def proves_clients(self) -> bool:
        """Whether clients of the TCP frontend have to authenticate."""
        return self.server_auth == MTLS

    def check_frontend_at(self, host: str) -> None:
        """Reject an address at which unauthenticated clients of other machines would be served.

        Raises:
            ConfigError: they would be.
        """
        if not (self.proves_clients or is_loopback(host)):
            raise ConfigError(
                f"--server-auth={NONE_ON_LOOPBACK} needs a --server-bind-address on loopback, such"
                f" as 127.0.0.1, not {host or 'every address'}: anyone who reaches the frontend"
                " reaches what agents reach"
            )

    def check_frontend(self, host: str, clients_ca: str) -> None:
        """Check the address of a TCP frontend against its authentication.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        self.check_frontend_at(host)
        if not self.proves_clients and clients_ca:
            raise ConfigError(
                f"--server-ca-cert and --server-auth={NONE_ON_LOOPBACK} exclude each other: no"
                " client is asked for a certificate"
            )

    def warnings(self) -> list[str]:
        """Warnings about a valid but probably unintended TCP frontend."""
        if self.proves_clients:
            return []
        return [
            f"--server-auth={NONE_ON_LOOPBACK}: every user and every process of this machine"
            " reaches what agents reach; a UNIX socket (--uds-name) is for its user and group alone"
        ]

    @property
    def admits_agents(self) -> Admits:
        """The certificates accepted for agents.

        Raises:
            ConfigError: an invalid name.
        """
        return read_names(Role.AGENT, AGENT_NAMES, self.agent_names)

    @property
    def admits_clients(self) -> Admits:
        """The certificates accepted for clients.

        Raises:
            ConfigError: an invalid name.
        """
        return read_names(Role.CLIENT, CLIENT_NAMES, self.client_names)

    def check(self, *, agents_ca: str, clients_ca: str) -> None:
        """Check that names are required only where certificates are.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        for flag, names, ca_flag, ca in (
            (AGENT_NAMES, self.agent_names, "--cluster-ca-cert", agents_ca),
            (CLIENT_NAMES, self.client_names, "--server-ca-cert", clients_ca),
        ):
            if names and not ca:
                raise ConfigError(
                    f"{flag} needs {ca_flag}: without it no certificate proves a name there"
                )
        _ = self.admits_agents, self.admits_clients


def read_names(role: Role, flag: str, names: Iterable[str]) -> Admits:
    """Read the names of a flag.

    Raises:
        ConfigError: an invalid name.
    """
    try:
        return admits(role, flag, names)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from error


#: The handling of links whose agent's token has expired.
KEEP, CUT = "keep", "cut"
_GROUP = "Revocation"


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationSettings(SettingsBlock):
    """The settings for certificates and tokens revoked before they expire."""

    GO: ClassVar = OURS

    cluster_crl_file: str = option(
        "",
        once=True,
        help="Certificate revocation lists for agents and other servers: those revoked are "
        "refused and their links closed; read again when the file changes",
        group=_GROUP,
        metavar="FILE",
        filled=True,
    )
    server_crl_file: str = option(
        "",
        once=True,
        help="Certificate revocation lists for clients: those revoked are refused and their "
        "connections closed; read again when the file changes",
        group=_GROUP,
        metavar="FILE",
        filled=True,
    )
    agent_token_review_interval_s: float = option(
        300.0,
        help="How often to have the Kubernetes API review the tokens of linked agents again; "
        "agents whose token is no longer accepted are cut; 0 reviews a token once",
        unit="seconds",
        group=_GROUP,
    )
    agent_token_expiry: str = option(
        KEEP,
        help="Keep or cut the link of an agent when its token expires",
        choices=(KEEP, CUT),
        metavar=f"{KEEP}|{CUT}",
        group=_GROUP,
    )

    def check(self, *, cluster_ca: str, server_ca: str) -> None:
        """Check that each file of revoked certificates has its authorities.

        Raises:
            ConfigError: names the missing flag.
        """
        for flag, crl, ca in (
            ("cluster", self.cluster_crl_file, cluster_ca),
            ("server", self.server_crl_file, server_ca),
        ):
            if crl and not ca:
                raise ConfigError(
                    f"--{flag}-ca-cert is missing: a list in --{flag}-crl-file is signed by an"
                    " authority that is in it"
                )
