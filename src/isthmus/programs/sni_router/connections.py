"""The connections of an SNI router: their states, limits and counters."""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from typing_extensions import override

from isthmus.dial.dialers.direct import DirectDialer
from isthmus.errors import DialFailure, ProtocolError
from isthmus.frame.forwarding import ForwardedConnection, ForwardedConnections
from isthmus.frame.part import Ground
from isthmus.frame.resources import most_connections
from isthmus.frame.tunnels import TunnelTable
from isthmus.logs import log
from isthmus.net.charging import PaidEarly
from isthmus.net.connect import Dialing
from isthmus.net.connection_gate import endpoint, source_named
from isthmus.net.deadlines import Deadlines
from isthmus.net.resolver import Resolver
from isthmus.net.rules_metadata import NO_METADATA_BY_NAME
from isthmus.net.rules_slots import AdmissionRefusal, ConnectionSlots, Strangers
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.sni_router.metrics import SniRefusal, SniRouterMetrics
from isthmus.programs.sni_router.routes_file import RoutesPart
from isthmus.programs.sni_router.rules import (
    MAX_TLV_VALUE_BYTES,
    Backends,
    Found,
    Miss,
    RoutingTable,
    Search,
    SniRoute,
    tlv_text,
)
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.programs.sni_router.view import BackendView, RouteView
from isthmus.tunnel.end import Discard, End, Ending, join
from isthmus.values import HostPort
from isthmus.wire.client_hello import ClientHello, TlsAlert, hello_in
from isthmus.wire.proxy_protocol import BOTH, IpPort, take_proxy_header

#: 16 KiB in fragments of 512 bytes, the smallest that OpenSSL makes.
MAX_RECORDS = 32
OF_MISS = {
    Miss.NO_NAME: SniRefusal.NO_NAME,
    Miss.UNKNOWN_NAME: SniRefusal.UNKNOWN_NAME,
    Miss.NO_PROTOCOL: SniRefusal.NO_PROTOCOL,
    Miss.UNKNOWN_TLV: SniRefusal.UNKNOWN_TLV,
    Miss.NOT_ALLOWED: SniRefusal.SOURCE_NOT_ALLOWED,
}
#: The TLS alert for a refused client; None resets it without one.
ALERT_OF: dict[SniRefusal, TlsAlert | None] = {
    SniRefusal.NO_NAME: TlsAlert.UNRECOGNIZED_NAME,
    SniRefusal.UNKNOWN_NAME: TlsAlert.UNRECOGNIZED_NAME,
    SniRefusal.NO_PROTOCOL: TlsAlert.NO_APPLICATION_PROTOCOL,
    SniRefusal.UNKNOWN_TLV: TlsAlert.UNRECOGNIZED_NAME,
    SniRefusal.SOURCE_NOT_ALLOWED: TlsAlert.ACCESS_DENIED,
    SniRefusal.ROUTE_FULL: TlsAlert.INTERNAL_ERROR,
    SniRefusal.BACKEND_DOWN: TlsAlert.INTERNAL_ERROR,
    SniRefusal.LOOP: TlsAlert.INTERNAL_ERROR,
    SniRefusal.NOT_TLS: None,
    SniRefusal.LATE: None,
    SniRefusal.LEFT: None,
    SniRefusal.CROWDED: None,
    SniRefusal.NO_PROXY_HEADER: None,
    SniRefusal.UNTRUSTED_PROXY: None,
    SniRefusal.TOO_MANY: None,
    SniRefusal.TOO_MANY_OF_SOURCE: None,
}
#: How long a refused client has to read its alert and leave.
FAREWELL_S = 1.0
_QUIET_S = 30.0
_log = logging.getLogger("isthmus.sni")


class ExpectedHeader(Enum):
    """What comes before a ClientHello, and how far it is trusted."""

    NOTHING = "no PROXY header"
    TLVS = "a PROXY header from any sender, whose addresses are ignored"
    SOURCE = "a PROXY header from a trusted proxy"


#: By whether a PROXY header is required, and whether the peer is in a network of --proxy-from.
PROXY_OF = {
    (False, False): ExpectedHeader.NOTHING,
    (False, True): ExpectedHeader.NOTHING,
    (True, False): ExpectedHeader.TLVS,
    (True, True): ExpectedHeader.SOURCE,
}


class _Reader(PaidEarly):
    """The early peer of a client: keeps its bytes and parses them."""

    __slots__ = ("heard",)

    def __init__(self, heard: Callable[[], None]) -> None:
        super().__init__()
        self.heard = heard

    def write(self, data: bytes) -> bool:
        """Keep the bytes and parse them."""
        self.buffer += data
        self.heard()
        # Checked last: when a backend was reached at once, nothing is left here.
        self.charge()
        return len(self.buffer) < self.limit

    def write_eof(self) -> None:
        """Remember the end of file; an incomplete hello will never be complete."""
        super().write_eof()
        self.heard()


def _unheard() -> None:
    """The client is gone."""


class SniConnections(ForwardedConnections["SniConnection", SniRefusal]):
    """Every connection of a router, from accept to the end."""

    gone = SniRefusal.LEFT
    all_failed = SniRefusal.BACKEND_DOWN

    def __init__(
        self,
        ground: Ground[SniRouterSettings, SniRouterMetrics],
        routes: RoutesPart,
        tunnels: TunnelTable,
    ) -> None:
        loop, settings = ground.loop, ground.settings
        self.backends = Backends()
        #: The limits on connections.
        self.most = most_connections(settings.max_connections)
        places = ConnectionSlots(self.most, settings.max_connections_per_source)
        super().__init__(ground, tunnels, places, self.backends)
        self._settings = settings
        self._metrics = ground.metrics
        self._routes = routes
        self._resolver = Resolver(loop)
        self.dialer = DirectDialer(loop, self.poller, self._resolver, metadata=NO_METADATA_BY_NAME)
        self.dial_timeout_s = settings.dial_timeout_s
        self._expects_proxy = settings.accept_proxy
        # Connections that are dialing or joined keep their place. All others are strangers: their
        # hello is incomplete, or they were refused. Strangers make room for each other by source.
        self._strangers: Strangers[SniConnection] = Strangers(settings.max_hellos)
        #: By route, including connections that are dialing.
        self.by_route: Counter[str] = Counter()
        self._trusted = settings.trusted
        self._late = Deadlines(loop, settings.hello_timeout_s, self._too_late)
        self._leaving: Deadlines[SniConnection] = Deadlines(loop, FAREWELL_S, self._cut_off)
        self._randoms: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._strangers) + super().__len__()

    @property
    def hellos(self) -> int:
        """The number of connections that have not sent a whole ClientHello."""
        return len(self._late)

    # Part.

    @override
    def start(self) -> None:
        self._metrics.open_by_route = lambda: self.by_route
        self._metrics.waiting_hellos = lambda: self.hellos
        if self.table().goes_by_tlv and not (self._expects_proxy or self._settings.listen_proxy):
            log(
                _log, logging.WARNING, "routes with tlv get no connections: no port takes PROXY"
                " headers, which --listen-proxy and --accept-proxy do",
            )  # fmt: skip

    @override
    def serving(self) -> dict[str, Any]:
        return {**self._routes.serving(), "max_connections": self.most}

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {
            "hellos": self.hellos,
            "routes": tuple(self._route_view(route) for route in self.table().routes),
        }

    def _route_view(self, route: SniRoute) -> RouteView:
        now = self.now()
        return RouteView(
            name=route.name,
            hosts=route.hosts,
            alpn=route.alpn,
            tlv=tuple(map(tlv_text, route.tlv)),
            allowed_cidrs=tuple(map(str, route.allowed_cidrs)),
            is_default=route is self.table().default,
            connections=self.by_route[route.name],
            max_connections=route.max_connections,
            sources_refused=self._metrics.sources_refused.get(route.name, 0),
            backends=tuple(
                BackendView(
                    address=str(backend),
                    connections=self.backends.count(backend),
                    failed=self.backends.has_failed(backend, now=now),
                )
                for backend in route.backends
            ),
        )

    @override
    def close(self) -> None:
        for connection in [*self._late.take_all(), *self.dialing]:
            connection.refuse(SniRefusal.LEFT)
        for connection in self._leaving.take_all():
            connection.client.abort(Ending.DRAINED)
        self._resolver.close()

    # Accepting.

    def accept(self, sock: socket.socket, *, at_proxy_port: bool = False) -> None:
        """Take a new connection; ``at_proxy_port`` accepts a PROXY header from any sender."""
        self._metrics.accepted += 1
        try:
            source, destination = endpoint(sock.getpeername()), endpoint(sock.getsockname())
        except OSError:  # gone already
            sock.close()
            self._metrics.refused(SniRefusal.LEFT)
            return
        is_proxy = any(source.ip in network for network in self._trusted)
        refusal = None
        if len(self.places) >= self.most:
            refusal = SniRefusal.TOO_MANY
        elif self.places.refusal(source_named(str(source.ip))) is AdmissionRefusal.MEMORY:
            refusal = SniRefusal.TOO_MANY_OF_SOURCE
        elif self._expects_proxy and not (at_proxy_port or is_proxy):
            refusal = SniRefusal.UNTRUSTED_PROXY
        if refusal is not None:
            SocketEnd(sock, self.poller).abort(Ending.CANCELLED)
            self._count(refusal, source=str(source))
            return
        expected = PROXY_OF[at_proxy_port or self._expects_proxy, is_proxy]
        connection = SniConnection(
            self, sock, source=source, destination=destination, proxy=expected
        )
        self.pay(connection, _source_of(connection))
        self._add_stranger(connection)
        self._late.add(connection)

    def _add_stranger(self, connection: SniConnection) -> None:
        """Give a connection a place among strangers, if necessary that of the greediest source."""
        strangers = self._strangers
        strangers.most = max(1, min(self._settings.max_hellos, self.most - len(self.places)))
        # The oldest goes, which had enough time. If the new one went, a client that opens many
        # connections and sends nothing would lock out everyone else.
        while (greedy := strangers.must_leave(oldest=True)) is not None:
            if greedy in self._leaving:
                strangers.remove(greedy)
                self._cut_off(greedy)
            else:
                greedy.refuse(SniRefusal.CROWDED)
        strangers.add(connection, _source_of(connection))

    def _too_late(self, connection: SniConnection) -> None:
        connection.refuse(SniRefusal.LATE)

    # What connections ask.

    def table(self) -> RoutingTable:
        """The routes in use."""
        return self._routes.table

    def told_source(self, connection: SniConnection) -> None:
        """Count it as a stranger of that source from now on, not of the proxy's address."""
        self._strangers.remove(connection)
        self._strangers.add(connection, _source_of(connection))
        self.pay(connection, _source_of(connection))

    def missed(self, search: Search) -> None:
        """Count, for each route that refused the source, a search that found no route."""
        if search.result is Miss.NOT_ALLOWED:
            for route in search.offered:
                self._metrics.source_refused(route.name)

    def refusal_of(self, connection: SniConnection, found: Found) -> SniRefusal | None:
        """Check a connection against the limits, and count one that passes with its route."""
        route, random = found.route, connection.hello.random
        if random in self._randoms:
            return SniRefusal.LOOP  # a backend has sent our own connection back to us
        if route.max_connections and self.by_route[route.name] >= route.max_connections:
            return SniRefusal.ROUTE_FULL
        source = _source_of(connection)
        if self.places.refusal(source) in (
            AdmissionRefusal.TOO_MANY_OF_SOURCE,
            AdmissionRefusal.MEMORY,
        ):
            return SniRefusal.TOO_MANY_OF_SOURCE
        self.places.enter(source)
        self._forget(connection)
        self._metrics.hellos.observe(self.now() - connection.accepted_at)
        self.dialing.add(connection)
        self._randoms.add(random)
        self.by_route[route.name] += 1
        return None

    @override
    def dial(self, at: HostPort, **how: Any) -> Dialing:
        return self.dialer.dial(at, **how)

    @override
    def target_failed(
        self, connection: SniConnection, at: HostPort, failure: DialFailure, detail: str
    ) -> None:
        assert connection.found is not None
        route = connection.found.route.name
        self._metrics.dial_failed(failure, self.now() - connection.dialed_at)
        self._metrics.backend_failed(route, str(at))
        self.ground.once.log(
            ("backend", route, at), _QUIET_S, _log, logging.WARNING,
            "a backend cannot be reached", route=route, backend=str(at),
            reason=detail or failure.value,
        )  # fmt: skip

    @override
    def joining(self, connection: SniConnection, far: SocketEnd, at: HostPort) -> str:
        assert connection.found is not None
        route = connection.found.route.name
        self._metrics.routed(route)
        return route

    @override
    def ended(self, connection: SniConnection, at: HostPort) -> None:
        super().ended(connection, at)
        self._leave_route(connection)

    def _leave_route(self, connection: SniConnection) -> None:
        assert connection.found is not None
        name = connection.found.route.name
        self._randoms.discard(connection.hello.random)
        self.places.leave(_source_of(connection))
        self.by_route[name] -= 1
        if not self.by_route[name]:
            del self.by_route[name]

    @override
    def refused(self, connection: SniConnection, why: SniRefusal, detail: str) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            log(
                _log, logging.DEBUG, "connection refused", source=str(connection.source),
                server_name=connection.hello.server_name, reason=why.value, detail=detail,
            )  # fmt: skip
        self._forget(connection)
        if connection in self.dialing:
            self.dialing.discard(connection)
            self._leave_route(connection)
        self._count(
            why, source=str(connection.source), server_name=connection.hello.server_name,
            detail=detail,
        )  # fmt: skip
        alert = ALERT_OF[why]
        if alert is None:
            connection.client.abort(Ending.CANCELLED)
        else:
            self._say_goodbye(connection, alert)

    def _say_goodbye(self, connection: SniConnection, alert: TlsAlert) -> None:
        """Send an alert; an immediate close could discard it before the client has read it."""
        client = connection.client
        client.on_done = partial(self._farewell_over, connection)
        self._add_stranger(connection)
        self._leaving.add(connection)
        join(client, Discard())
        client.write(alert.to_bytes_fatal())
        client.write_eof()

    def _farewell_over(self, connection: SniConnection, end: End, ending: Ending) -> None:
        self._leaving.remove(connection)
        self._strangers.remove(connection)

    def _cut_off(self, connection: SniConnection) -> None:
        """Close a client that does not leave by itself, or whose place is needed."""
        connection.client.abort(Ending.TIMED_OUT)

    def _forget(self, connection: SniConnection) -> None:
        """The hello has arrived, or the router no longer waits for it."""
        self._strangers.remove(connection)
        self._late.remove(connection)

    def _count(
        self, why: SniRefusal, *, source: str, server_name: str = "", detail: str = ""
    ) -> None:
        self._metrics.refused(why)
        if why is not SniRefusal.LEFT:  # as probes of load balancers do all day
            self.ground.once.log(
                ("refused", why), _QUIET_S, _log, logging.WARNING, "connection refused",
                reason=why.value, source=source, server_name=server_name, detail=detail,
            )  # fmt: skip


class SniConnection(ForwardedConnection[SniRefusal]):
    """A client to be joined to a backend of the route that its ClientHello names.

    The hello is read and kept; nothing is decrypted. The bytes go to the backend unchanged, after a
    PROXY header if the route sends one.
    """

    __slots__ = ("_proxy", "_reader", "_tlv", "_wanted", "accepted_at", "found", "hello")

    _owner: SniConnections

    def __init__(
        self,
        owner: SniConnections,
        sock: socket.socket,
        *,
        source: IpPort,
        destination: IpPort,
        proxy: ExpectedHeader,
    ) -> None:
        self._proxy = proxy
        self._tlv: bytes | None = None
        self._wanted = 1
        self.accepted_at = owner.now()
        self.hello = ClientHello()
        self.found: Found | None = None
        self._reader = _Reader(self._heard)
        # A PROXY header may replace its source and destination later.
        super().__init__(owner, sock, self._reader, source=source, destination=destination)

    def _heard(self) -> None:
        if self.found is not None or self.is_over:
            return
        buffer = self._reader.buffer
        try:
            if self._proxy is not ExpectedHeader.NOTHING and not self._take_proxy(buffer):
                return
            hello: ClientHello | int = self._wanted
            if len(buffer) >= self._wanted:  # so that it is not parsed again for every byte
                hello = hello_in(bytes(buffer), max_records=MAX_RECORDS)
        except ProtocolError as exc:
            no_header = self._proxy is not ExpectedHeader.NOTHING
            self.refuse(SniRefusal.NO_PROXY_HEADER if no_header else SniRefusal.NOT_TLS, str(exc))
            return
        if isinstance(hello, ClientHello):
            self._route(hello)
        elif self._reader.eof:
            self.refuse(SniRefusal.LEFT)
        else:
            self._wanted = hello

    def _take_proxy(self, buffer: bytearray) -> bool:
        """Take the PROXY header; False if it is not complete yet."""
        header = take_proxy_header(buffer, versions=BOTH)
        if header is None:
            if self._reader.eof:
                self.refuse(SniRefusal.LEFT)
            return False
        expected, self._proxy = self._proxy, ExpectedHeader.NOTHING
        table = self._owner.table()
        if table.goes_by_tlv:
            # One byte more than a route's value may have is enough: it matches none.
            value = header.tlv(table.tlv_type)
            self._tlv = None if value is None else value[: MAX_TLV_VALUE_BYTES + 1]
        if expected is ExpectedHeader.SOURCE and header.source and header.destination:
            self.source, self.destination = _plain(header.source), _plain(header.destination)
            self._owner.told_source(self)
        return True

    def _route(self, hello: ClientHello) -> None:
        owner = self._owner
        self.hello = hello
        table = owner.table()
        search = table.search(hello.server_name, hello.alpn, tlv=self._tlv, source=self.source.ip)
        found = search.result
        if isinstance(found, Miss):
            owner.missed(search)
            self.refuse(
                OF_MISS[found], "" if self._tlv is None else f"the TLV is {tlv_text(self._tlv)}"
            )
            return
        refusal = owner.refusal_of(self, found)
        if refusal is not None:
            self.refuse(refusal)
            return
        self.found = found
        order = owner.backends.in_order(found.route.backends, now=owner.now())
        self.try_each(order, timeout_s=owner.dial_timeout_s)

    @override
    def header(self) -> bytes:
        assert self.found is not None
        proxy = self.found.route.proxy
        if proxy is None:
            return b""
        header = proxy.header(
            source=self.source, destination=self.destination, server_name=self.hello.server_name
        )
        return header.to_bytes()

    @override
    def over(self) -> None:
        super().over()
        self._reader.heard = _unheard  # otherwise only the garbage collector would free this client


def _plain(at: IpPort) -> IpPort:
    """An address of a header as sockets have it: IPv4-mapped addresses become IPv4."""
    return endpoint((at.ip, at.port))


def _source_of(connection: SniConnection) -> str:
    """The source that a connection counts against."""
    return source_named(str(connection.source.ip))
