"""The settings of the admin port, which server and agent share: where, behind which TLS, profiling.

Its number is declared by each program, because konnectivity's two have different flags for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.errors import ConfigError
from isthmus.settings.checks import check_host, check_pair
from isthmus.settings.options import OURS, option
from isthmus.settings.rules_roles import Admits, Role, admits
from isthmus.settings.tracing import TracingSettings
from isthmus.text.addresses import is_loopback

#: The group of flags that the health port's are in as well.
PORTS = "Health and admin"
ADMIN_NAMES = "--admin-client-names"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings(TracingSettings):
    """The admin port, apart from its number; ``check_admin()`` says whether it makes sense."""

    admin_bind_address: str = option(
        "127.0.0.1",
        help="Bind the admin port to this address; any but loopback needs --admin-cert, "
        "--admin-key, and --admin-client-ca or --admin-token-file",
        group=PORTS,
        metavar="ADDRESS",
        go="127.0.0.1, any address allowed",
    )
    admin_cert: str = option(
        "",
        help="Speak HTTPS on the admin port, with this certificate",
        group=PORTS,
        metavar="FILE",
        go=OURS,
    )
    admin_key: str = option(
        "", help="Use this private key with --admin-cert", group=PORTS, metavar="FILE", go=OURS
    )
    admin_client_ca: str = option(
        "",
        help="Answer on the admin port only clients with a certificate from these authorities",
        group=PORTS,
        metavar="FILE",
        go=OURS,
    )
    admin_client_names: tuple[str, ...] = option(
        (),
        help="Answer on the admin port only clients whose certificate has one of these names: "
        "ops-* is a common or alternative name, O=ops an organization",
        repeat=True,
        filled=True,
        group=PORTS,
        metavar="NAME",
        go=OURS,
    )
    admin_token_file: str = option(
        "",
        help="Answer on the admin port only clients that send the token in this file, of at least "
        "16 characters, as Authorization: Bearer TOKEN; probes need none",
        group=PORTS,
        metavar="FILE",
        filled=True,
        go=OURS,
    )
    enable_profiling: bool = option(
        False, help="Serve profiles under /debug/pprof/ on the admin port", group=PORTS
    )
    enable_contention_profiling: bool = option(
        False, help="Serve lock profiles too", group=PORTS, inert=True
    )

    @property
    def admits_operators(self) -> Admits:
        """Whose certificates are good at the admin port.

        Raises:
            ConfigError: a name is none.
        """
        try:
            return admits(Role.CLIENT, ADMIN_NAMES, self.admin_client_names)
        except ValueError as error:
            raise ConfigError(f"{ADMIN_NAMES}: {error}") from error

    def check_admin(self) -> None:
        """Hold the admin port's settings against each other.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
        """
        check_pair("admin-cert", self.admin_cert, "admin-key", self.admin_key)
        if self.admin_client_ca and not self.admin_cert:
            raise ConfigError("--admin-client-ca needs --admin-cert and --admin-key as well")
        if self.admin_client_names and not self.admin_client_ca:
            raise ConfigError(
                f"{ADMIN_NAMES} needs --admin-client-ca: without it nobody proves a name there"
            )
        _ = self.admits_operators
        if self.enable_contention_profiling and not self.enable_profiling:
            raise ConfigError("--enable-contention-profiling needs --enable-profiling as well")
        host = self.admin_bind_address
        if host:
            check_host("admin-bind-address", host)
        if not is_loopback(host):
            self._check_exposed(host or "empty")

    def _check_exposed(self, host: str) -> None:
        # The snapshot tells who talks to whom: whoever reads it over a network proves who they are.
        if not self.admin_cert:
            raise ConfigError(
                f"--admin-bind-address {host} would open the admin port to the network, which needs"
                " --admin-cert and --admin-key, and --admin-client-ca or --admin-token-file; or use"
                " a loopback address"
            )
        if not (self.admin_client_ca or self.admin_token_file):
            raise ConfigError(
                f"--admin-bind-address {host} would show everybody in the network who talks to"
                " whom, so it needs --admin-client-ca or --admin-token-file as well; or use a"
                " loopback address"
            )
