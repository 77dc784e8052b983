"""The settings of the two ports for operators: addresses, TLS and profiling.

Each program has its own port numbers, and konnectivity's two programs name the flags differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.settings.options import OURS, SAME, SettingsBlock, option, port, shared
from isthmus.settings.parsing import KONNECTIVITY, check_go_port, check_host, check_pair
from isthmus.settings.rules_roles import Admits, Role, admits
from isthmus.text.addresses import is_loopback

#: The group of flags; the health port's are in it, too.
PORTS = "Health and admin"
ADMIN_NAMES = "--admin-client-names"
HEALTH_CERT = shared(
    "",
    help="TLS certificate of the health port; clients do not need one",
    flag="health-cert",
    metavar="FILE",
    go=OURS,
)
HEALTH_KEY = shared(
    "",
    help="Private key of --health-cert",
    flag="health-key",
    metavar="FILE",
    go=OURS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings(SettingsBlock):
    """The health port and the admin port; ``check()`` validates them."""

    PREFIX: ClassVar = "admin"

    health_bind_address: str = option(
        "",
        help="Address to bind the health port to; empty means all addresses",
        flag="health-bind-address",
        group=PORTS,
        metavar="ADDRESS",
    )
    health_port: int = port(
        0, help="Port for health, readiness and metrics", flag="health-port", group=PORTS
    )
    health_cert: str = HEALTH_CERT(group=PORTS)
    health_key: str = HEALTH_KEY(group=PORTS)
    port: int = port(0, help="Port for health, metrics and the snapshot", group=PORTS)
    bind_address: str = option(
        "127.0.0.1",
        help="Address to bind the admin port to; any but loopback needs --admin-cert, "
        "--admin-key, and --admin-client-ca or --admin-token-file",
        group=PORTS,
        metavar="ADDRESS",
        go="127.0.0.1, any address allowed",
    )
    cert: str = option(
        "",
        help="TLS certificate of the admin port",
        group=PORTS,
        metavar="FILE",
        go=OURS,
    )
    key: str = option("", help="Private key of --admin-cert", group=PORTS, metavar="FILE", go=OURS)
    client_ca: str = option(
        "",
        help="CAs that certificates of admin clients must come from",
        group=PORTS,
        metavar="FILE",
        go=OURS,
    )
    client_names: tuple[str, ...] = option(
        (),
        help="Names of admin clients, one of which their certificate must have: ops-* is a common "
        "or alternative name, O=ops an organization",
        repeat=True,
        filled=True,
        group=PORTS,
        metavar="NAME",
        go=OURS,
    )
    token_file: str = option(
        "",
        help="File with the token, of at least 16 characters, that admin clients send as "
        "Authorization: Bearer TOKEN; probes need none",
        group=PORTS,
        metavar="FILE",
        filled=True,
        go=OURS,
    )
    enable_profiling: bool = option(
        False,
        help="Serve profiles under /debug/pprof/ on the admin port",
        flag="enable-profiling",
        group=PORTS,
        go=SAME,
    )
    enable_contention_profiling: bool = option(
        False,
        help="Also serve lock profiles",
        flag="enable-contention-profiling",
        group=PORTS,
        inert=True,
        go=SAME,
    )

    @property
    def admits_operators(self) -> Admits:
        """The certificates that the admin port accepts.

        Raises:
            ConfigError: a name is invalid.
        """
        try:
            return admits(Role.CLIENT, ADMIN_NAMES, self.client_names)
        except ValueError as error:
            raise ConfigError(f"{ADMIN_NAMES}: {error}") from error

    def check(self) -> None:
        """Check that the settings of both ports fit together.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_pair("health-cert", self.health_cert, "health-key", self.health_key)
        check_pair("admin-cert", self.cert, "admin-key", self.key)
        if self.client_ca and not self.cert:
            raise ConfigError("--admin-client-ca needs --admin-cert and --admin-key as well")
        if self.client_names and not self.client_ca:
            raise ConfigError(
                f"{ADMIN_NAMES} needs --admin-client-ca: without it clients do not prove a name"
            )
        _ = self.admits_operators
        if self.enable_contention_profiling and not self.enable_profiling:
            raise ConfigError("--enable-contention-profiling needs --enable-profiling as well")
        host = self.bind_address
        if host:
            check_host("admin-bind-address", host)
        if not is_loopback(host):
            self._check_exposed(host or "empty")

    def check_ports(self, *, compat: str = "") -> None:
        """Check the ports, whose flags have these names.

        Raises:
            ConfigError: Go's programs would refuse a port, or the address is invalid.
        """
        if compat == KONNECTIVITY:
            check_go_port("health-port", self.health_port)
            check_go_port("admin-port", self.port)
        if self.health_bind_address:
            check_host("health-bind-address", self.health_bind_address)

    def _check_exposed(self, host: str) -> None:
        # The snapshot tells who talks to whom: clients that read it over a network must
        # authenticate.
        if not self.cert:
            raise ConfigError(
                f"--admin-bind-address {host} would open the admin port to the network, which needs"
                " --admin-cert and --admin-key, and --admin-client-ca or --admin-token-file; or use"
                " a loopback address"
            )
        if not (self.client_ca or self.token_file):
            raise ConfigError(
                f"--admin-bind-address {host} would show all of the network who talks to"
                " whom, so it needs --admin-client-ca or --admin-token-file as well; or use a"
                " loopback address"
            )
