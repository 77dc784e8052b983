"""The SNI router: many TLS servers behind one address, told apart by the name that clients want.

Settings and routes in, a running program out. What happens to one connection until it is joined is
connection.py, the bounds and the counting connections.py; here are the ports.
"""

from __future__ import annotations

import logging
import os
import socket
from datetime import UTC, datetime

from isthmus import __version__
from isthmus.frame import lifetime
from isthmus.frame.descriptors import allow_connections
from isthmus.frame.forwarder import Forwarder
from isthmus.frame.handed import Handed
from isthmus.frame.model.snapshot import BackendView, RouteView, SniRouterView
from isthmus.frame.views import certificates, memory_view, totals
from isthmus.logs import log
from isthmus.net.contexts import watch
from isthmus.net.poller import Poller
from isthmus.programs.sni_router.connections import Connections
from isthmus.programs.sni_router.metrics import SniRouterMetrics
from isthmus.programs.sni_router.routes_file import follow_routes
from isthmus.programs.sni_router.rules import Route
from isthmus.programs.sni_router.settings import SniRouterSettings

LISTEN = "--listen"
_log = logging.getLogger("isthmus.sni")


class SniRouter(Forwarder):
    """A running router."""

    name = "sni-router"
    settings: SniRouterSettings
    metrics: SniRouterMetrics
    connections: Connections

    def __init__(self, settings: SniRouterSettings, *, handed: Handed | None = None) -> None:
        """Read the routes, in the loop.

        Raises:
            ConfigError: they are wrong.
        """
        super().__init__(
            settings, SniRouterMetrics(),
            health_port=settings.health_port, admin_port=settings.admin_port, handed=handed,
        )  # fmt: skip
        self.routes = follow_routes(settings.config, self.metrics)
        self.connections = Connections(
            self.loop,
            settings,
            metrics=self.metrics,
            once=self.once,
            table=lambda: self.routes.current,
        )
        self.connections.places.budget = self.budget

    @property
    def poller(self) -> Poller:
        """What watches its sockets."""
        return self.connections.poller

    # Program.

    async def start(self) -> None:
        """Open every port; see Program."""
        settings = self.settings
        try:
            self.prepare()
            bound: list[socket.socket] = []
            try:
                for host, port in settings.listeners:
                    bound += self.bind(host, port, flag=LISTEN)
                await self.open_ports(health_at=settings.health_bind_address)
            except BaseException:
                for sock in bound:
                    sock.close()
                raise
        except BaseException:
            await self.stop()
            raise
        self.metrics.open_by_route = lambda: self.connections.by_route
        self.metrics.waiting_hellos = lambda: self.connections.hellos
        self.metrics.routes = lambda: len(self.routes.current.routes)
        self.listen(bound, flag=LISTEN)
        if self.handed is not None:
            log(_log, logging.INFO, "worker started", program=self.name)
            return
        table = self.routes.current
        log(
            _log, logging.INFO, "serving", listen=",".join(it.name for it in self.listeners),
            port=self.listeners[0].port, health_port=self.health_port, admin_port=self.admin_port,
            routes=len(table.routes), hosts=table.hosts, max_connections=self.connections.most,
        )  # fmt: skip

    async def watch(self) -> None:
        """Follow the routes and the certificate files; see Program."""
        async with self.health.tasks() as tasks:
            tasks.create_task(self.routes.watch(), name="routes")
            tasks.create_task(watch(self.contexts), name="reload")
            tasks.create_task(self.connections.tunnels.watch(), name="sweep")

    def view(self, limit: int) -> SniRouterView:
        """Show the router, with at most ``limit`` tunnels."""
        now = self.loop.time()
        return SniRouterView(
            version=__version__,
            taken_at=datetime.now(UTC),
            uptime_s=now - self.started_at,
            draining=self.draining,
            config=self.settings.config,
            hellos=self.connections.hellos,
            totals=totals(self.metrics),
            routes=tuple(self._route(route, now) for route in self.routes.current.routes),
            tunnels=self.connections.tunnels.views(limit),
            truncated=max(0, len(self.connections.tunnels) - limit),
            recent_endings=self.connections.tunnels.endings.views(now=now),
            certificates=certificates(self.contexts),
            memory=memory_view(self.budget),
        )

    def _route(self, route: Route, now: float) -> RouteView:
        return RouteView(
            name=route.name,
            hosts=route.hosts,
            alpn=route.alpn,
            is_default=route is self.routes.current.default,
            connections=self.connections.by_route[route.name],
            max_connections=route.max_connections,
            backends=tuple(
                BackendView(
                    address=str(backend),
                    connections=self.connections.backends.count(backend),
                    failed=self.connections.backends.has_failed(backend, now=now),
                )
                for backend in route.backends
            ),
        )

    async def stop(self) -> None:
        """Close everything; see Program."""
        self.close_connections()
        await self.close_ports()
        await self.close_tracing()


def main(settings: SniRouterSettings) -> int:
    """Run a router until it is told to stop; the exit code."""
    os.umask(0o077)
    allow_connections(settings.max_connections)
    return lifetime.main(
        lambda: SniRouter(settings), settings, drain_s=settings.graceful_shutdown_timeout_s
    )
