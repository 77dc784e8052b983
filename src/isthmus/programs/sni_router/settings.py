"""The settings of ``isthmus sni-router``; routes are a document, see settings_routes.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import ClassVar

from isthmus.errors import ConfigError
from isthmus.programs.sni_router import PROGRAM
from isthmus.settings.admin import AdminSettings
from isthmus.settings.options import OURS, block, option
from isthmus.settings.parsing import (
    check_at_least,
    check_durations,
    check_host,
    check_values,
)
from isthmus.settings.program import (
    CONFIG,
    GRACEFUL_SHUTDOWN,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_SOURCE,
    WORKERS,
    CarrierSettings,
    check_workers,
)
from isthmus.text.addresses import as_ipv4, cidr

_ROUTING = "Routing"
_PROXY = "PROXY protocol"
_LIMITS = "Limits"

#: An address to listen on, empty for all addresses, and a port.
ListenAt = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SniRouterSettings(CarrierSettings):
    """All settings of the router; ``validate()`` checks them."""

    GO: ClassVar = OURS

    config: str = CONFIG(
        help="File of routes, read again when it changes",
        group=_ROUTING,
        common=True,
    )
    listen: tuple[str, ...] = option(
        (":6443",),
        help="Address to listen on; without a host, on every address",
        repeat=True,
        group=_ROUTING,
        metavar="[HOST]:PORT",
        common=True,
    )
    dial_timeout_s: float = option(
        10.0,
        help="Timeout of a dial, over all backends of a route",
        unit="seconds",
        group=_ROUTING,
        common=True,
    )
    accept_proxy: bool = option(
        False,
        help="Expect a PROXY header, version 1 or 2, before each connection",
        group=_PROXY,
        common=True,
    )
    listen_proxy: tuple[str, ...] = option(
        (),
        help="Address to listen on for connections that begin with a PROXY header, such as those "
        "of proxies on nodes: the header's TLV is read, its source only from --proxy-from",
        repeat=True,
        group=_PROXY,
        metavar="[HOST]:PORT",
        common=True,
    )
    proxy_from: tuple[str, ...] = option(
        (),
        help="Networks whose PROXY headers are believed; with --accept-proxy, connections are "
        "taken from no others",
        repeat=True,
        group=_PROXY,
        metavar="CIDR",
        common=True,
    )
    hello_timeout_s: float = option(
        10.0,
        help="Reset connections that have not sent a ClientHello within this time",
        unit="seconds",
        group=_LIMITS,
        common=True,
    )
    max_hellos: int = option(
        1024,
        help="Maximum number of connections without a complete ClientHello; at one more, the "
        "oldest of the source with the most is reset",
        group=_LIMITS,
    )
    workers: int = WORKERS()
    max_connections: int = MAX_CONNECTIONS(20_000, group=_LIMITS, common=True)
    max_connections_per_source: int = MAX_CONNECTIONS_PER_SOURCE(
        help="Maximum number of connections from one address or IPv6 /64; with --accept-proxy, "
        "from the source in the PROXY header",
        group=_LIMITS,
    )
    graceful_shutdown_timeout_s: float = GRACEFUL_SHUTDOWN(group=_LIMITS, common=True)
    admin: AdminSettings = block(AdminSettings(health_port=8096, port=PROGRAM.admin_port), go=OURS)

    def validate(self) -> None:
        """Check the settings against each other.

        Raises:
            ConfigError: names the flag and says what to do.
        """
        check_values(self)
        check_durations(self)
        if not self.config:
            raise ConfigError("--config is missing: a file with routes, see isthmus sni-router -h")
        _ = self.listeners, self.proxy_listeners
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
        self.admin.check_ports()
        self._check_proxy()
        self.check_carrier()

    def _check_proxy(self) -> None:
        if self.accept_proxy and not self.trusted:
            raise ConfigError(
                "--accept-proxy needs --proxy-from with the networks of the proxies: a sender"
                " of PROXY headers decides where a connection appears to come from"
            )
        if self.proxy_from and not (self.accept_proxy or self.listen_proxy):
            raise ConfigError("--proxy-from needs --accept-proxy or --listen-proxy as well")

    @property
    def listeners(self) -> tuple[ListenAt, ...]:
        """Where to listen.

        Raises:
            ConfigError: one is not an address and port, or is given twice.
        """
        found = [_listen_at(text, "--listen") for text in self.listen]
        if not found:
            raise ConfigError("--listen is empty; set an address and a port such as :6443")
        return _each_once(found, found, "--listen")

    @property
    def proxy_listeners(self) -> tuple[ListenAt, ...]:
        """Where to listen for connections that begin with a PROXY header.

        Raises:
            ConfigError: one is not an address and port, or is given twice.
        """
        found = [_listen_at(text, "--listen-proxy") for text in self.listen_proxy]
        return _each_once(found, [*self.listeners, *found], "--listen-proxy")

    @property
    def trusted(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """The networks of proxies.

        Raises:
            ConfigError: one is not a network.
        """
        return tuple(_network(text) for text in self.proxy_from)


def _each_once(
    found: Sequence[ListenAt], every: Sequence[ListenAt], flag: str
) -> tuple[ListenAt, ...]:
    for at in found:
        if at[1] and every.count(at) > 1:
            host = f"[{at[0]}]" if ":" in at[0] else at[0]
            hint = (
                "" if flag == "--listen" else ": --listen and --listen-proxy need different ports"
            )
            raise ConfigError(f"{flag} {host}:{at[1]} is given twice{hint}")
    return tuple(found)


def _listen_at(text: str, flag: str) -> ListenAt:
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(f"{flag} takes [HOST]:PORT such as :6443 or [::1]:6443, not {text!r}")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        raise ConfigError(f"{flag} {text}: an IPv6 address needs brackets")
    host = host[1:-1] if bracketed else host
    if host:
        check_host(flag.removeprefix("--"), host)
    return host, int(port)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        network = cidr(text)
        # Peers are compared as IPv4, even if the socket has a mapped address.
        return as_ipv4(network) if isinstance(network, IPv6Network) else network
    except ValueError as error:
        raise ConfigError(f"--proxy-from: {text!r} {error}") from error
