"""Which backend a TLS connection goes to, by the name and the protocols of its ClientHello.

A name is looked for as it is, then as ``*.`` and all but its first label, then the default route
takes it, if there is one. Within a name, routes for certain ALPN protocols come before the one for
all others. Reading the document is settings_routes.py, choosing among the backends of a route
rules_backends.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import AUTHORITY, IpPort, ProxyHeader, Tlv

WILDCARD = "*."


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOut:
    """What a route tells its backends about a connection, by PROXY protocol version 2."""

    authority: bool = True
    tlvs: tuple[Tlv, ...] = ()

    def header(self, *, source: IpPort, destination: IpPort, server_name: str) -> ProxyHeader:
        """The header of one connection; the name as the client wrote it."""
        tlvs = self.tlvs
        if self.authority and server_name:
            tlvs = (Tlv(AUTHORITY, server_name.encode()), *tlvs)
        return ProxyHeader(source=source, destination=destination, tlvs=tlvs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SniRoute:
    """Where connections for some names go.

    ``hosts`` are in lower case without a last dot; ``*.`` stands for one label. Without ``alpn``
    the route is for every protocol; ``max_connections`` 0 is no limit. ``where`` is its place in
    the document.
    """

    name: str
    backends: tuple[HostPort, ...]
    hosts: tuple[str, ...] = ()
    alpn: tuple[str, ...] = ()
    proxy: ProxyOut | None = None
    max_connections: int = 0
    where: str = field(default="", compare=False)


class Miss(Enum):
    """Why there is no route."""

    NO_NAME = "the client sends no server name, and there is no default route"
    UNKNOWN_NAME = "no route is for this server name, and there is no default route"
    NO_PROTOCOL = "the name is known, and no route of it is for a protocol that the client offers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A route, and why it was chosen; ``host`` is empty for the default route."""

    route: SniRoute
    host: str = ""
    alpn: str = ""

    @property
    def why(self) -> str:
        """A clause for people."""
        if not self.host:
            return "no route is for it, and this is the default route"
        how = "it matches" if self.host.startswith(WILDCARD) else "it is exactly"
        by = f", and the client offers {self.alpn}" if self.alpn else ""
        return f"{how} {self.host}{by}"


class RoutingTable:
    """All routes, found by name in a step or two, however many there are."""

    def __init__(self, routes: Sequence[SniRoute], default: SniRoute | None = None) -> None:
        """Take routes whose hosts and protocols do not clash; ``default`` is for all else."""
        self.routes = tuple(routes)
        self.default = default
        self._by_host: dict[str, list[SniRoute]] = {}
        for route in routes:
            for host in route.hosts:
                self._by_host.setdefault(host, []).append(route)

    @property
    def hosts(self) -> int:
        """How many names and wildcards are routed."""
        return len(self._by_host)

    def find(self, server_name: str, alpn: Sequence[str] = ()) -> Found | Miss:
        """The route of a connection, or why there is none."""
        name = normal(server_name)
        for host in (name, WILDCARD + name.partition(".")[2]):
            routes = self._by_host.get(host)
            # The exact name owns its connections: one that it has no protocol for goes nowhere
            # else, or a typing error in a protocol would lead to another tenant.
            if routes is not None:
                return _by_protocol(routes, host, alpn)
        if self.default is not None:
            return Found(route=self.default)
        return Miss.UNKNOWN_NAME if name else Miss.NO_NAME


def _by_protocol(routes: Sequence[SniRoute], host: str, offered: Sequence[str]) -> Found | Miss:
    for route in routes:
        for protocol in route.alpn:
            if protocol in offered:
                return Found(route=route, host=host, alpn=protocol)
    plain = next((route for route in routes if not route.alpn), None)
    return Miss.NO_PROTOCOL if plain is None else Found(route=plain, host=host)


def normal(server_name: str) -> str:
    """A name as routes have it: in lower case, without a last dot (RFC 6066 §3 allows none)."""
    return server_name.lower().removesuffix(".")
