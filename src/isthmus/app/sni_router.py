"""The SNI router: many TLS servers behind one address, told apart by the name that clients want.

Settings and routes in, a running program out. What happens to one connection until it is joined is
app/sni_connection.py, the bounds and the counting app/sni_connections.py; here are the ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from functools import partial

from isthmus.app import lifetime, ports
from isthmus.app.admin_tls import admin_tls, say_refused
from isthmus.app.debug_routes import debug_routes
from isthmus.app.health import Health
from isthmus.app.sni_connections import Connections, allow_descriptors
from isthmus.app.sni_routes_file import RoutesFile
from isthmus.app.sni_view import sni_router_view
from isthmus.config.sni_router import SniRouterSettings
from isthmus.net.contexts import HotContext, watch
from isthmus.net.listen import Listener, bind_tcp
from isthmus.observe.logs import OncePer, log
from isthmus.observe.sni_metrics import SniRouterMetrics
from isthmus.observe.tracing import Tracing, open_tracing

_log = logging.getLogger("isthmus.sni")


class SniRouter:
    """A running router."""

    def __init__(self, settings: SniRouterSettings) -> None:
        """Read the routes, in the loop.

        Raises:
            ConfigError: they are wrong.
        """
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.started_at = self.loop.time()
        self.draining = False
        self.metrics = SniRouterMetrics()
        self.routes = RoutesFile(settings.config, self.metrics)
        self.once = OncePer(self.loop.time)
        self.connections = Connections(
            self.loop,
            settings,
            metrics=self.metrics,
            once=self.once,
            table=lambda: self.routes.current,
        )
        self.contexts: list[HotContext] = []
        self.listeners: list[Listener] = []
        self.health_port = self.admin_port = 0
        self._tracing: Tracing | None = None
        self._admin_tls: HotContext | None = None
        self._ports: dict[str, ports.Port] = {}
        self.health = Health(
            self.metrics, leaving=lambda: self.draining, listeners=lambda: self.listeners
        )

    # Program.

    async def start(self) -> None:
        """Open every port; see Program."""
        settings = self.settings
        try:
            self._tracing = self.connections.tracing = open_tracing(
                settings.tracing_endpoint, os.environ, service="isthmus-sni-router",
                instance=str(uuid.uuid4()),
            )  # fmt: skip
            self._admin_tls = admin_tls(settings)
            self.contexts += [self._admin_tls] if self._admin_tls is not None else []
            bound: list[socket.socket] = []
            try:
                for host, port in settings.listeners:
                    bound += bind_tcp(host, port, flag="--listen")
                await self._open_ports()
            except BaseException:
                for sock in bound:
                    sock.close()
                raise
        except BaseException:
            await self.stop()
            raise
        self.listeners += [
            Listener(self.loop, self.connections.poller, sock, self.connections.accept)
            for sock in bound
        ]
        self._set_gauges()
        self.health.start(self._ports)
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

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing more and wait for what is open; see Program."""
        self.draining = True
        for listener in self.listeners:
            listener.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.connections.wait_empty()

    async def stop(self) -> None:
        """Close everything; see Program."""
        self.health.stop()
        for listener in self.listeners:
            listener.stop()
        self.connections.close()
        for port in self._ports.values():
            await port.close()
        await asyncio.sleep(0)  # one turn of the loop, in which the poller closes what is doomed
        self.connections.poller.shut_down()
        if self._tracing is not None:
            await self._tracing.close()

    async def _open_ports(self) -> None:
        settings, live = self.settings, self.health.live
        render, render_open = self.metrics.render, self.metrics.render_open
        health = self._ports["health-port"] = await ports.serve(
            ports.server_health(
                live=live, ready=self.ready, metrics=render, open_metrics=render_open
            ),
            host=settings.health_bind_address,
            port=settings.health_port,
            host_flag="--health-bind-address",
            port_flag="--health-port",
        )
        routes = ports.server_admin(
            live=live,
            ready=self.ready,
            snapshot=partial(sni_router_view, self),
            metrics=render,
            open_metrics=render_open,
        )
        admin = self._ports["admin-port"] = await ports.serve(
            {**routes, **debug_routes(settings.enable_profiling)},
            host=settings.admin_bind_address,
            port=settings.admin_port,
            host_flag="--admin-bind-address",
            port_flag="--admin-port",
            tls=self._admin_tls,
            refused=partial(say_refused, self.once),
            admin=True,
        )
        self.health_port, self.admin_port = health.number, admin.number

    def _set_gauges(self) -> None:
        metrics, gauges = self.metrics, self.metrics.gauges
        gauges.tunnels = lambda: len(self.connections.tunnels)
        gauges.reload_failures = lambda: sum(context.failures for context in self.contexts)
        gauges.draining = lambda: int(self.draining)
        gauges.lines_suppressed = lambda: self.once.suppressed
        gauges.live_bytes = self.connections.tunnels.live_bytes
        gauges.certificates = lambda: {
            path: expiry
            for context in self.contexts
            for path, expiry in context.certificate_expiries().items()
        }
        metrics.open_by_route = lambda: self.connections.by_route
        metrics.waiting_hellos = lambda: self.connections.hellos
        metrics.routes = lambda: len(self.routes.current.routes)

    def ready(self) -> list[ports.Check]:
        """Ready: we do not drain. Backends have readiness of their own."""
        return [ports.PING, ports.Check("drain", "draining" if self.draining else "")]


def main(settings: SniRouterSettings) -> int:
    """Run a router until it is told to stop; the exit code."""
    os.umask(0o077)
    allow_descriptors(settings.max_connections)
    return lifetime.main(
        lambda: SniRouter(settings), settings, drain_s=settings.graceful_shutdown_timeout_s
    )
