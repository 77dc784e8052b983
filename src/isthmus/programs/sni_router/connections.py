"""The connections of an SNI router: who waits for what, the bounds, and what is counted.

What happens to one of them is connection.py; the program around them program.py.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from functools import partial
from typing import Any

from typing_extensions import override

from isthmus.dial.dialers.direct import DirectDialer
from isthmus.errors import DialFailure
from isthmus.frame.descriptors import most_connections
from isthmus.frame.observe.tracing import Span
from isthmus.frame.part import Ground, Part
from isthmus.frame.tunnels import TunnelTable
from isthmus.net.accepted import endpoint
from isthmus.net.deadlines import Deadlines
from isthmus.net.gate import source_named
from isthmus.net.resolver import Resolver
from isthmus.net.rules_metadata import NO_METADATA_BY_NAME
from isthmus.net.rules_places import Full, Places, Strangers
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.sni_router.connection import ALERT_OF, Connection
from isthmus.programs.sni_router.metrics import Refusal, SniRouterMetrics
from isthmus.programs.sni_router.routes_file import RoutesPart
from isthmus.programs.sni_router.rules import Found, Route, RoutingTable
from isthmus.programs.sni_router.rules_backends import Backends
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.programs.sni_router.view import BackendView, RouteView
from isthmus.tunnel.end import Discard, End, Ending, join
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import Asking, DialRequest, HostPort, Identity
from isthmus.wire.tls_alert import Alert

#: How long a refused client has to read its alert and leave.
FAREWELL_S = 1.0
_QUIET_S = 30.0
_log = logging.getLogger("isthmus.sni")


class SniConnections(Part):
    """Every connection of a router, from accept to the end."""

    def __init__(
        self,
        ground: Ground[SniRouterSettings, SniRouterMetrics],
        routes: RoutesPart,
        tunnels: TunnelTable,
    ) -> None:
        loop, settings = ground.loop, ground.settings
        self._ground = ground
        self._settings = settings
        self._metrics = ground.metrics
        self._routes = routes
        self.poller = ground.poller
        self._resolver = Resolver(loop)
        self.dialer = DirectDialer(loop, self.poller, self._resolver, metadata=NO_METADATA_BY_NAME)
        self.backends = Backends()
        self.tunnels = tunnels
        self.dial_timeout_s = settings.dial_timeout_s
        self.expects_proxy = settings.accept_proxy
        #: How many there may be.
        self.most = most_connections(settings.max_connections)
        # Those that said what they want, dialing and joined; the others are strangers, who make way
        # for each other by where they come from: their hello is not here, or they were told no.
        self._strangers: Strangers[Connection] = Strangers(settings.max_hellos)
        self.places = Places(self.most, settings.max_connections_per_source)
        self.places.budget = ground.budget
        #: By route, those that are dialing included.
        self.by_route: Counter[str] = Counter()
        self._trusted = settings.trusted
        self._dialing: set[Connection] = set()
        self._late = Deadlines(loop, settings.hello_timeout_s, self._too_late)
        self._leaving: Deadlines[Connection] = Deadlines(loop, FAREWELL_S, self._cut_off)
        self._randoms: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._strangers) + len(self._dialing) + len(self.tunnels)

    @property
    def hellos(self) -> int:
        """How many have not sent their whole ClientHello."""
        return len(self._late)

    # Part.

    @override
    def start(self) -> None:
        self._metrics.open_by_route = lambda: self.by_route
        self._metrics.waiting_hellos = lambda: self.hellos

    @override
    def busy(self) -> bool:
        return len(self) > 0

    @override
    def serving(self) -> dict[str, Any]:
        return {**self._routes.serving(), "max_connections": self.most}

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {
            "hellos": self.hellos,
            "routes": tuple(self._route_view(route) for route in self.table().routes),
        }

    def _route_view(self, route: Route) -> RouteView:
        now = self.now()
        return RouteView(
            name=route.name,
            hosts=route.hosts,
            alpn=route.alpn,
            is_default=route is self.table().default,
            connections=self.by_route[route.name],
            max_connections=route.max_connections,
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
        for connection in [*self._late.take_all(), *self._dialing]:
            connection.refuse(Refusal.LEFT)
        for connection in self._leaving.take_all():
            connection.client.abort(Ending.DRAINED)
        self._resolver.close()

    # Accepting.

    def accept(self, sock: socket.socket) -> None:
        """Take a new connection."""
        self._metrics.accepted += 1
        try:
            source, destination = endpoint(sock.getpeername()), endpoint(sock.getsockname())
        except OSError:  # gone already
            sock.close()
            self._metrics.refused(Refusal.LEFT)
            return
        refusal = None
        if len(self.places) >= self.most:
            refusal = Refusal.TOO_MANY
        elif self.places.refusal(source_named(str(source.ip))) is Full.MEMORY:
            refusal = Refusal.TOO_MANY_OF_SOURCE
        elif self.expects_proxy and not any(source.ip in network for network in self._trusted):
            refusal = Refusal.UNTRUSTED_PROXY
        if refusal is not None:
            SocketEnd(sock, self.poller).abort(Ending.CANCELLED)
            self._count(refusal, source=str(source))
            return
        connection = Connection(self, sock, source=source, destination=destination)
        self._charge(connection)
        self._add_stranger(connection)
        self._late.add(connection)

    def _add_stranger(self, connection: Connection) -> None:
        """Give a connection a place among strangers, if need be that of the greediest source."""
        strangers = self._strangers
        strangers.most = max(1, min(self._settings.max_hellos, self.most - len(self.places)))
        # The oldest, which had time enough; not the new one: whoever opens many and says nothing
        # would keep everybody out.
        while (greedy := strangers.must_leave(oldest=True)) is not None:
            if greedy in self._leaving:
                strangers.remove(greedy)
                self._cut_off(greedy)
            else:
                greedy.refuse(Refusal.CROWDED)
        strangers.add(connection, _source_of(connection))

    def _charge(self, connection: Connection) -> None:
        """Have its source pay for what is kept of it."""
        account = self.places.account(_source_of(connection))
        if account is not None:
            connection.client.charge_to(account)
            account.close()

    def _too_late(self, connection: Connection) -> None:
        connection.refuse(Refusal.LATE)

    # What connections ask.

    def table(self) -> RoutingTable:
        """The routes in use."""
        return self._routes.table

    def told_source(self, connection: Connection) -> None:
        """It is a stranger of that source from now on, and no more of the proxy's."""
        self._strangers.remove(connection)
        self._strangers.add(connection, _source_of(connection))
        self._charge(connection)

    def now(self) -> float:
        """The loop's time."""
        return self._ground.now()

    def trace(self, target: HostPort) -> Span | None:
        """A span for a dial, where somebody traces."""
        tracing = self._ground.tracing
        if tracing is None:
            return None
        return tracing.connect(Asking(), connection_id="", target=target)

    def refusal_of(self, connection: Connection, found: Found) -> Refusal | None:
        """Hold a connection against the bounds; one that may go on is counted with its route."""
        route, random = found.route, connection.hello.random
        if random in self._randoms:
            return Refusal.LOOP  # it came to us before, and a backend sent it back
        if route.max_connections and self.by_route[route.name] >= route.max_connections:
            return Refusal.ROUTE_FULL
        source = _source_of(connection)
        if self.places.refusal(source) in (Full.TOO_MANY_OF_SOURCE, Full.MEMORY):
            return Refusal.TOO_MANY_OF_SOURCE
        self.places.enter(source)
        self._forget(connection)
        self._metrics.hellos.observe(self.now() - connection.accepted_at)
        self._dialing.add(connection)
        self._randoms.add(random)
        self.by_route[route.name] += 1
        return None

    def backend_failed(
        self, connection: Connection, backend: HostPort, failure: DialFailure, detail: str
    ) -> None:
        """Count a dial that failed, and say it now and then."""
        assert connection.found is not None
        route = connection.found.route.name
        self._metrics.dial_failed(failure, self.now() - connection.dialed_at)
        self._metrics.backend_failed(route, str(backend))
        self._ground.once.log(
            ("backend", route, backend), _QUIET_S, _log, logging.WARNING,
            "a backend cannot be reached", route=route, backend=str(backend),
            reason=detail or failure.value,
        )  # fmt: skip

    def reached(self, connection: Connection, far: SocketEnd, backend: HostPort) -> None:
        """Join a connection to its backend."""
        assert connection.found is not None
        route = connection.found.route.name
        self._dialing.discard(connection)
        self._metrics.dial_succeeded(self.now() - connection.dialed_at)
        self._metrics.routed(route)
        self.tunnels.open_here(
            DialRequest(backend, Identity(str(connection.source), kind="address"), route),
            client=connection.client,
            far=far,
            on_ended=partial(self._ended, connection, backend),
            payer=connection.client.payer,
        )

    def _ended(self, connection: Connection, backend: HostPort, _: Tunnel, _s: float) -> None:
        self.backends.let_go(backend)
        self._leave_route(connection)

    def _leave_route(self, connection: Connection) -> None:
        assert connection.found is not None
        name = connection.found.route.name
        self._randoms.discard(connection.hello.random)
        self.places.leave(_source_of(connection))
        self.by_route[name] -= 1
        if not self.by_route[name]:
            del self.by_route[name]

    def refused(self, connection: Connection, why: Refusal, detail: str) -> None:
        """Count a connection that is over before it was joined, and say goodbye."""
        self._forget(connection)
        if connection in self._dialing:
            self._dialing.discard(connection)
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

    def _say_goodbye(self, connection: Connection, alert: Alert) -> None:
        """Send an alert; closing at once could destroy it before the client has read it."""
        client = connection.client
        client.on_done = partial(self._farewell_over, connection)
        self._add_stranger(connection)
        self._leaving.add(connection)
        join(client, Discard())
        client.write(alert.to_bytes_fatal())
        client.write_eof()

    def _farewell_over(self, connection: Connection, end: End, ending: Ending) -> None:
        self._leaving.remove(connection)
        self._strangers.remove(connection)

    def _cut_off(self, connection: Connection) -> None:
        """It does not leave by itself, or another needs its place."""
        connection.client.abort(Ending.TIMED_OUT)

    def _forget(self, connection: Connection) -> None:
        """Its hello is here, or is not waited for any more."""
        self._strangers.remove(connection)
        self._late.remove(connection)

    def _count(self, why: Refusal, *, source: str, server_name: str = "", detail: str = "") -> None:
        self._metrics.refused(why)
        if why is not Refusal.LEFT:  # which is what a probe of a balancer does all day
            self._ground.once.log(
                ("refused", why), _QUIET_S, _log, logging.WARNING, "connection refused",
                reason=why.value, source=source, server_name=server_name, detail=detail,
            )  # fmt: skip


def _source_of(connection: Connection) -> str:
    """Where a connection comes from, as far as places go."""
    return source_named(str(connection.source.ip))
