"""The settings of ``isthmus sni-router``; its routes are a document, see sni_routes.py."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from isthmus.errors import ConfigError
from isthmus.settings.admin import PORTS, AdminSettings
from isthmus.settings.checks import (
    check_at_least,
    check_choices,
    check_durations,
    check_host,
    check_port,
)
from isthmus.settings.options import OURS, option
from isthmus.settings.workers import check_workers, workers_option
from isthmus.text.addresses import cidr

_ROUTING = "Routing"
_PROXY = "PROXY protocol"
_LIMITS = "Limits"

#: An address to listen on, empty for all of them, and a port.
ListenAt = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SniRouterSettings(AdminSettings):
    """Everything that the router can be told; ``validate()`` says whether it makes sense."""

    config: str = option(
        "",
        once=True,
        help="Route by this file, and by what it says later",
        group=_ROUTING,
        metavar="FILE",
        go=OURS,
    )
    listen: tuple[str, ...] = option(
        (":6443",),
        help="Listen here; without a host on every address",
        repeat=True,
        group=_ROUTING,
        metavar="[HOST]:PORT",
        go=OURS,
    )
    dial_timeout_s: float = option(
        10.0,
        help="Give up on all backends of a route together after this long",
        unit="seconds",
        group=_ROUTING,
        go=OURS,
    )
    accept_proxy: bool = option(
        False,
        help="Expect a PROXY header, version 1 or 2, before each connection",
        group=_PROXY,
        go=OURS,
    )
    proxy_from: tuple[str, ...] = option(
        (),
        help="Take connections with --accept-proxy from these networks, and no others",
        repeat=True,
        group=_PROXY,
        metavar="CIDR",
        go=OURS,
    )
    hello_timeout_s: float = option(
        10.0,
        help="Reset a connection whose ClientHello is not here after this long",
        unit="seconds",
        group=_LIMITS,
        go=OURS,
    )
    max_hellos: int = option(
        1024,
        help="Wait for so many ClientHellos; one more, and the oldest of the source that has most"
        " is reset",
        group=_LIMITS,
        go=OURS,
    )
    workers: int = workers_option()
    max_connections: int = option(
        20_000,
        help="Carry so many connections, each with two descriptors, and reset what comes besides",
        group=_LIMITS,
        go=OURS,
    )
    max_connections_per_source: int = option(
        0,
        help="Carry so many of these for one address or /64 of IPv6; behind --accept-proxy, the one"
        " that the PROXY header has",
        group=_LIMITS,
        metavar="N",
        shown_default="three quarters of --max-connections",
        go=OURS,
    )
    graceful_shutdown_timeout_s: float = option(
        25.0,
        help="Wait this long for open connections after SIGTERM",
        unit="seconds",
        group=_LIMITS,
        go=OURS,
    )
    health_bind_address: str = option(
        "",
        help="Bind the health port to this address instead of all",
        group=PORTS,
        metavar="ADDRESS",
        go=OURS,
    )
    health_port: int = option(
        8096,
        help="Serve health, readiness and metrics on this port",
        group=PORTS,
        metavar="PORT",
        go=OURS,
    )
    admin_port: int = option(
        8097,
        help="Serve health, metrics and the snapshot on this port",
        group=PORTS,
        metavar="PORT",
        go=OURS,
    )

    def validate(self) -> None:
        """Hold the settings against each other.

        Raises:
            ConfigError: one sentence that names the flag and says what to do.
        """
        check_choices(self)
        check_durations(self)
        if not self.config:
            raise ConfigError("--config is needed: a file with routes, see isthmus sni-router -h")
        _ = self.listeners
        for flag, seconds in (
            ("hello-timeout", self.hello_timeout_s),
            ("dial-timeout", self.dial_timeout_s),
        ):
            if not seconds:
                raise ConfigError(f"--{flag} must be more than 0")
        check_at_least("max-hellos", self.max_hellos, 1)
        check_workers(self.workers)
        check_at_least("max-connections", self.max_connections, 1)
        check_at_least("max-connections-per-source", self.max_connections_per_source, 0)
        for flag, port in (("health-port", self.health_port), ("admin-port", self.admin_port)):
            check_port(flag, port, compat="")
        if self.health_bind_address:
            check_host("health-bind-address", self.health_bind_address)
        self._check_proxy()
        self.check_admin()
        self.check_tracing()
        self.check_memory()

    def _check_proxy(self) -> None:
        if self.accept_proxy and not self.trusted:
            raise ConfigError(
                "--accept-proxy needs --proxy-from with the networks of the proxies: whoever may"
                " send a PROXY header says where a connection comes from"
            )
        if self.proxy_from and not self.accept_proxy:
            raise ConfigError("--proxy-from needs --accept-proxy as well")

    @property
    def listeners(self) -> tuple[ListenAt, ...]:
        """Where to listen.

        Raises:
            ConfigError: one is no address and port, or is there twice.
        """
        found = [_listen_at(text) for text in self.listen]
        if not found:
            raise ConfigError("--listen is empty: give it an address and a port such as :6443")
        for index, at in enumerate(found):
            if at[1] and at in found[:index]:
                raise ConfigError(f"--listen {self.listen[index]} is there twice")
        return tuple(found)

    @property
    def trusted(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The networks of proxies.

        Raises:
            ConfigError: one is no network.
        """
        return tuple(_network(text) for text in self.proxy_from)


def _listen_at(text: str) -> ListenAt:
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"--listen takes [HOST]:PORT such as :6443 or [::1]:6443, not {text!r}")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise ConfigError(f"--listen {text}: an IPv6 address needs brackets")
    host = host[1:-1] if bracketed else host
    if host:
        check_host("listen", host)
    return host, int(port)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return cidr(text)
    except ValueError as error:
        raise ConfigError(f"--proxy-from: {text!r} {error}") from error
