"""Which backend a TLS connection goes to: one table of TLV, server name, ALPN protocol and source.

Four steps, in this order; each keeps the most specific routes, and no later step goes back:

1. the TLV of the connection's PROXY header: routes for its value, otherwise routes without ``tlv``;
2. the server name: exact, then with ``*`` for its first label, then routes without hosts (the
   default route, if no TLV matched);
3. a protocol that the client offers, then routes for every protocol;
4. the source: the longest matching prefix of ``allowedCIDRs``. A source in none is refused.

Also here: the explanation of a choice, and the choice among the backends of a route. The document
is read in settings_routes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from isthmus.text.addresses import IpAddress, IpNetwork
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import AUTHORITY, SSL, IpPort, ProxyHeader, Tlv

WILDCARD = "*."
#: The TLV in which HyperShift's shared ingress sends the id of a cluster.
CLUSTER_ID_TLV = SSL
#: A TLV with a longer value matches no route.
MAX_TLV_VALUE_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyOut:
    """What a route tells its backends about a connection, by PROXY protocol version 2."""

    authority: bool = True
    tlvs: tuple[Tlv, ...] = ()

    def header(self, *, source: IpPort, destination: IpPort, server_name: str) -> ProxyHeader:
        """The header of one connection; ``name`` is as the client wrote it."""
        tlvs = self.tlvs
        if self.authority and server_name:
            tlvs = (Tlv(AUTHORITY, server_name.encode()), *tlvs)
        return ProxyHeader(source=source, destination=destination, tlvs=tlvs)


@dataclass(frozen=True, slots=True, kw_only=True)
class SniRoute:
    """Where connections for some names go.

    ``hosts`` are in lower case without a trailing dot; ``*`` stands for one label. Without ``alpn``
    the route is for every protocol, without ``tlv`` for connections whose TLV matches no route, and
    without ``allowed_cidrs`` for every source; ``max_connections`` 0 is no limit. ``where`` is its
    location in the document.
    """

    name: str
    backends: tuple[HostPort, ...]
    hosts: tuple[str, ...] = ()
    alpn: tuple[str, ...] = ()
    tlv: tuple[bytes, ...] = ()
    allowed_cidrs: tuple[IpNetwork, ...] = ()
    proxy: ProxyOut | None = None
    max_connections: int = 0
    where: str = field(default="", compare=False)


class Miss(Enum):
    """Why there is no route."""

    NO_NAME = "the client sends no server name, and there is no default route for it"
    UNKNOWN_NAME = "no route matches this server name, and there is no default route for it"
    NO_PROTOCOL = "routes match the server name, but none of them a protocol that the client offers"
    UNKNOWN_TLV = "no route matches the value of the TLV in the PROXY header"
    NOT_ALLOWED = "the source is in none of the route's allowedCIDRs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A route, and what matched: an empty ``host`` is any name, ``tlv`` None is no value."""

    route: SniRoute
    host: str = ""
    alpn: str = ""
    tlv: bytes | None = None
    network: IpNetwork | None = None

    @property
    def why(self) -> str:
        """A clause for people."""
        clauses = [] if self.tlv is None else [f"its TLV is {tlv_text(self.tlv)}"]
        if self.host:
            how = "it matches" if self.host.startswith(WILDCARD) else "it is exactly"
            clauses.append(f"{how} {self.host}")
        elif self.tlv is None:
            clauses.append("no other route matches, and this is the default route")
        else:
            clauses.append("the route is for every name")
        if self.alpn:
            clauses.append(f"the client offers {self.alpn}")
        if self.network is not None:
            clauses.append(f"{self.network} is allowed")
        return ", and ".join(clauses)


class AllowedSources:
    """Networks that a source may be in; a lookup takes one step per prefix length."""

    def __init__(self, networks: Iterable[IpNetwork]) -> None:
        found: dict[int, dict[int, dict[int, IpNetwork]]] = {}
        for network in networks:
            shift = network.max_prefixlen - network.prefixlen
            of_version = found.setdefault(network.version, {})
            of_version.setdefault(shift, {})[int(network.network_address) >> shift] = network
        self._longest_first = {version: sorted(them.items()) for version, them in found.items()}

    def narrowest(self, source: IpAddress) -> IpNetwork | None:
        """The network with the longest prefix that contains this address, if any."""
        number = int(source)
        for shift, networks in self._longest_first.get(source.version, ()):
            network = networks.get(number >> shift)
            if network is not None:
                return network
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What each step kept, and the result; ``tlv`` is None if no route matches its value."""

    result: Found | Miss
    tlv: bytes | None = None
    host: str = ""
    named: Sequence[SniRoute] = ()
    alpn: str = ""
    offered: Sequence[SniRoute] = ()


class RoutingTable:
    """All routes; a lookup takes one or two steps, however many there are."""

    def __init__(
        self,
        routes: Sequence[SniRoute],
        default: SniRoute | None = None,
        *,
        tlv_type: int = CLUSTER_ID_TLV,
    ) -> None:
        """Take routes without conflicts; ``tlv_type`` is the type of the TLV that is matched."""
        self.routes = tuple(routes)
        self.default = default
        self.tlv_type = tlv_type
        self._by_key: dict[tuple[bytes | None, str], list[SniRoute]] = {}
        self._tlvs = frozenset(value for route in routes for value in route.tlv)
        self._ranges = {
            route.name: AllowedSources(route.allowed_cidrs)
            for route in routes
            if route.allowed_cidrs
        }
        for route in routes:
            every_name = ("",) if route.tlv else ()
            for value in route.tlv or (None,):
                for host in route.hosts or every_name:
                    self._by_key.setdefault((value, host), []).append(route)

    @property
    def hosts(self) -> int:
        """The number of names and wildcards with routes."""
        return len({host for _, host in self._by_key if host})

    @property
    def goes_by_tlv(self) -> bool:
        """Whether any route has a TLV."""
        return bool(self._tlvs)

    def find(
        self,
        server_name: str,
        alpn: Sequence[str] = (),
        *,
        tlv: bytes | None = None,
        source: IpAddress | None = None,
    ) -> Found | Miss:
        """The route of a connection, or why there is none; see ``search``."""
        return self.search(server_name, alpn, tlv=tlv, source=source).result

    def search(
        self,
        server_name: str,
        alpn: Sequence[str] = (),
        *,
        tlv: bytes | None = None,
        source: IpAddress | None = None,
    ) -> Search:
        """Go through the steps; without a ``source`` every source is allowed."""
        # An unknown id must not fall through to other routes, or a typing error would lead to
        # another tenant. If no route has a TLV, a proxy may send any value.
        if tlv is not None and self._tlvs and tlv not in self._tlvs:
            return Search(result=Miss.UNKNOWN_TLV)
        known = tlv if self._tlvs else None
        name = normal(server_name)
        for host in (name, WILDCARD + name.partition(".")[2], ""):
            routes = self._by_key.get((known, host))
            # The exact name owns its connections: one that it has no protocol for goes nowhere
            # else, or a typing error in a protocol would lead to another tenant.
            if routes is not None:
                return self._by_protocol(routes, alpn, source, known=known, host=host)
        if known is None and self.default is not None:
            return self._by_source([self.default], source, Search(result=Miss.UNKNOWN_NAME))
        return Search(result=Miss.UNKNOWN_NAME if name else Miss.NO_NAME, tlv=known)

    def _by_protocol(
        self,
        routes: Sequence[SniRoute],
        alpn: Sequence[str],
        source: IpAddress | None,
        *,
        known: bytes | None,
        host: str,
    ) -> Search:
        protocol = _offered(routes, frozenset(alpn))
        left = [it for it in routes if (protocol in it.alpn if protocol else not it.alpn)]
        so_far = Search(
            result=Miss.NO_PROTOCOL, tlv=known, host=host, named=routes, alpn=protocol, offered=left
        )
        return self._by_source(left, source, so_far) if left else so_far

    def _by_source(
        self, routes: Sequence[SniRoute], source: IpAddress | None, so_far: Search
    ) -> Search:
        """Of routes that differ only in their networks, the one with the narrowest."""
        best: tuple[int, SniRoute, IpNetwork | None] | None = None
        for route in routes:
            ranges = self._ranges.get(route.name)
            network = None if ranges is None or source is None else ranges.narrowest(source)
            if ranges is not None and source is not None and network is None:
                continue
            length = -1 if network is None else network.prefixlen
            if best is None or length > best[0]:
                best = length, route, network
        result: Found | Miss = Miss.NOT_ALLOWED
        if best is not None:
            result = Found(
                route=best[1], host=so_far.host, alpn=so_far.alpn, tlv=so_far.tlv, network=best[2]
            )
        return Search(
            result=result, tlv=so_far.tlv, host=so_far.host, named=so_far.named,
            alpn=so_far.alpn, offered=routes,
        )  # fmt: skip


def _offered(routes: Sequence[SniRoute], offered: frozenset[str]) -> str:
    """The first protocol that the client offers and a route matches; empty if none."""
    named = (protocol for route in routes for protocol in route.alpn)
    return next((protocol for protocol in named if protocol in offered), "")


def normal(server_name: str) -> str:
    """A name as routes have it: lower case, no trailing dot (RFC 6066 §3 does not allow one)."""
    return server_name.lower().removesuffix(".")


def tlv_text(value: bytes) -> str:
    """The value of a TLV for messages: quoted, and shortened if it is long."""
    cut = value[:64]
    try:
        text = repr(cut.decode())
    except UnicodeDecodeError:
        text = f"0x{cut.hex()}"
    return text if cut == value else f"{text}…"


#: How long a failed backend is tried last.
FAILED_FOR_S = 5.0


class Backends:
    """The connections of each backend, including pending dials, and recent failures."""

    def __init__(self) -> None:
        self._open: dict[HostPort, int] = {}
        self._failed_until: dict[HostPort, float] = {}
        self._turn = 0

    def in_order(self, backends: Sequence[HostPort], *, now: float) -> list[HostPort]:
        """The backends in the order to try them; equally loaded ones take turns to be first."""
        if len(backends) == 1:
            return list(backends)
        self._turn += 1
        first = self._turn % len(backends)
        turned = [*backends[first:], *backends[:first]]
        return sorted(turned, key=lambda it: (self.has_failed(it, now=now), self.count(it)))

    def count(self, backend: HostPort) -> int:
        """The number of connections of a backend."""
        return self._open.get(backend, 0)

    def has_failed(self, backend: HostPort, *, now: float) -> bool:
        """Whether a backend failed recently."""
        return self._failed_until.get(backend, 0.0) > now

    def took(self, backend: HostPort) -> None:
        """Count a dial that begins."""
        self._open[backend] = self.count(backend) + 1

    def reached(self, backend: HostPort) -> None:
        """Note that a backend was reached."""
        self._failed_until.pop(backend, None)

    def failed(self, backend: HostPort, *, now: float) -> None:
        """Note that a backend could not be reached."""
        self.let_go(backend)
        # Backends that a reload removed are forgotten too.
        old = [it for it, until in self._failed_until.items() if until <= now]
        for it in old:
            del self._failed_until[it]
        self._failed_until[backend] = now + FAILED_FOR_S

    def let_go(self, backend: HostPort) -> None:
        """Count a dial that was cancelled, or a connection that has ended."""
        left = self.count(backend) - 1
        if left > 0:
            self._open[backend] = left
        else:
            self._open.pop(backend, None)


class AskedConnection(NamedTuple):
    """A connection as it presents itself, and its source; None is not known."""

    server_name: str = ""
    alpn: tuple[str, ...] = ()
    tlv: bytes | None = None
    source: IpAddress | None = None


def reasons(table: RoutingTable, asked: AskedConnection) -> Iterator[tuple[SniRoute, str]]:
    """Each route with a clause: what matched, or the first step that excluded it."""
    name, alpn, tlv, source = asked
    search = table.search(name, alpn, tlv=tlv, source=source)
    for route in table.routes:
        if isinstance(search.result, Found) and route is search.result.route:
            yield route, f"yes: {search.result.why}"
        else:
            yield route, f"no: {_why_not(table, route, asked, search)}"


def _why_not(table: RoutingTable, route: SniRoute, asked: AskedConnection, search: Search) -> str:
    if table.goes_by_tlv and asked.tlv is not None and asked.tlv not in route.tlv:
        return f"it is not for the TLV {tlv_text(asked.tlv)}"
    if route.tlv and asked.tlv is None:
        values = " or ".join(map(tlv_text, route.tlv[:3]))
        return f"it is only for connections whose TLV {table.tlv_type:#04x} is {values}"
    if route in search.named:
        return _why_not_named(route, asked, search)
    if route is table.default:
        return _why_not_default(asked, search)
    name = normal(asked.server_name)
    if not search.host and not search.named:
        return f"none of its hosts is {name}" if name else "it has hosts, and no name is sent"
    if not route.hosts:
        return f"a route for {search.host} comes before one for every name"
    ours = {host for host in route.hosts if host in (name, f"*.{name.partition('.')[2]}")}
    if ours:
        return f"{search.host} is more specific than {min(ours)}"
    return f"none of its hosts is {name}" if name else "it has hosts, and no name is sent"


def _why_not_named(route: SniRoute, asked: AskedConnection, search: Search) -> str:
    if route not in search.offered:
        if not route.alpn:
            return f"a route for the protocol {search.alpn}, which the client offers, comes first"
        wanted = " or ".join(route.alpn)
        if search.alpn and set(route.alpn) & set(asked.alpn):
            return f"the route for the protocol {search.alpn} comes first in the file"
        return f"the client does not offer {wanted}"
    return _why_not_source(asked, search)


def _why_not_default(asked: AskedConnection, search: Search) -> str:
    if search.host:
        return f"a route for {search.host} comes before the default route"
    return _why_not_source(asked, search)


def _why_not_source(asked: AskedConnection, search: Search) -> str:
    if isinstance(search.result, Miss):
        return f"{asked.source} is in none of its allowedCIDRs"
    return f"the allowedCIDRs of {search.result.route.name} are more specific for {asked.source}"
