"""What programs share that accept connections here and join each to another one.

The SNI router, the sidecars and the apiserver proxy: their health and admin ports, what every
program measures, draining. What a connection is, and where it goes, is theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from isthmus.app import ports
from isthmus.app.admin_tls import admin_tls, say_refused
from isthmus.app.debug_routes import debug_routes
from isthmus.app.health import Health
from isthmus.app.tunnels import TunnelTable
from isthmus.config.admin import AdminSettings
from isthmus.net.contexts import HotContext
from isthmus.net.listen import Listener
from isthmus.net.poller import Poller
from isthmus.observe.logs import OncePer
from isthmus.observe.program import ProgramMetrics
from isthmus.observe.tracing import Tracing, open_tracing


class Connections(Protocol):
    """The connections of such a program, from the first byte to the last."""

    poller: Poller
    tracing: Tracing | None

    @property
    def tunnels(self) -> TunnelTable:
        """Those that are joined."""

    def accept(self, sock: socket.socket) -> None:
        """Take a new one."""

    async def wait_empty(self) -> None:
        """Wait until none is left."""

    def close(self) -> None:
        """End all of them."""


class Forwarder:
    """A running program; subclasses set ``connections`` and start, watch and stop it."""

    #: What it is called in traces.
    name = ""
    connections: Connections

    def __init__(
        self, settings: AdminSettings, metrics: ProgramMetrics, *, health_port: int, admin_port: int
    ) -> None:
        """Prepare in the loop; nothing is opened. The ports are those that were asked for."""
        self.settings = settings
        self.metrics = metrics
        self.loop = asyncio.get_running_loop()
        self.started_at = self.loop.time()
        self.draining = False
        self.once = OncePer(self.loop.time)
        self.contexts: list[HotContext] = []
        self.listeners: list[Listener] = []
        self.health_port = health_port
        self.admin_port = admin_port
        self.admin_tls: HotContext | None = None
        self.health = Health(
            self.metrics, leaving=lambda: self.draining, listeners=lambda: self.listeners
        )
        self._tracing: Tracing | None = None
        self._ports: dict[str, ports.Port] = {}

    @property
    def all_contexts(self) -> list[HotContext]:
        """Every certificate in use."""
        return self.contexts

    def ready(self) -> list[ports.Check]:
        """Ready: we do not drain. What is behind us has a readiness of its own."""
        return [ports.PING, ports.Check("drain", "draining" if self.draining else "")]

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing more and wait for what is open; see Program."""
        self.draining = True
        for listener in self.listeners:
            listener.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.connections.wait_empty()

    # For subclasses.

    def prepare(self) -> None:
        """Read the admin port's certificates, and find out where spans go.

        Raises:
            ConfigError: something is wrong with them.
        """
        self._tracing = self.connections.tracing = open_tracing(
            self.settings.tracing_endpoint, os.environ, service=f"isthmus-{self.name}",
            instance=str(uuid.uuid4()),
        )  # fmt: skip
        self.admin_tls = admin_tls(self.settings)
        self.contexts += [self.admin_tls] if self.admin_tls is not None else []

    def listen(self, bound: list[socket.socket]) -> None:
        """Everything is open: take connections from now on."""
        self.listeners += [
            Listener(self.loop, self.connections.poller, sock, self.connections.accept)
            for sock in bound
        ]
        self._set_gauges()
        self.health.start(self._ports)

    async def open_ports(self, snapshot: Callable[[int], Any], *, health_at: str) -> None:
        """Open health and admin ports.

        Raises:
            ConfigError: one cannot be bound.
        """
        settings, live = self.settings, self.health.live
        render, render_open = self.metrics.render, self.metrics.render_open
        health = self._ports["health-port"] = await ports.serve(
            ports.server_health(
                live=live, ready=self.ready, metrics=render, open_metrics=render_open
            ),
            host=health_at,
            port=self.health_port,
            host_flag="--health-bind-address",
            port_flag="--health-port",
        )
        routes = ports.server_admin(
            live=live,
            ready=self.ready,
            snapshot=snapshot,
            metrics=render,
            open_metrics=render_open,
        )
        admin = self._ports["admin-port"] = await ports.serve(
            {**routes, **debug_routes(settings.enable_profiling)},
            host=settings.admin_bind_address,
            port=self.admin_port,
            host_flag="--admin-bind-address",
            port_flag="--admin-port",
            tls=self.admin_tls,
            refused=partial(say_refused, self.once),
            admin=True,
        )
        self.health_port, self.admin_port = health.number, admin.number

    def _set_gauges(self) -> None:
        gauges = self.metrics.gauges
        gauges.tunnels = lambda: len(self.connections.tunnels)
        gauges.reload_failures = lambda: sum(context.failures for context in self.all_contexts)
        gauges.draining = lambda: int(self.draining)
        gauges.lines_suppressed = lambda: self.once.suppressed
        gauges.live_bytes = self.connections.tunnels.live_bytes
        gauges.certificates = lambda: {
            path: expiry
            for context in self.all_contexts
            for path, expiry in context.certificate_expiries().items()
        }

    def close_connections(self) -> None:
        """Accept nothing more, and end what is open."""
        self.health.stop()
        for listener in self.listeners:
            listener.stop()
        self.connections.close()

    async def close_ports(self) -> None:
        """Close health and admin ports, and the poller."""
        for port in self._ports.values():
            await port.close()
        await asyncio.sleep(0)  # one turn of the loop, in which the poller closes what is doomed
        self.connections.poller.shut_down()

    async def close_tracing(self) -> None:
        """Send the last spans."""
        if self._tracing is not None:
            await self._tracing.close()
