"""A sidecar: settings in, a program out that takes connections on loopback and dials by the tunnel.

The same for SOCKS5 (app/socks5_proxy.py) and HTTP (app/https_proxy.py), which say what a client is
and which dialer it gets. The connections are app/sidecar_connections.py, here are the ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import uuid
from collections.abc import Callable
from functools import partial

from isthmus.app import lifetime, ports
from isthmus.app.admin_tls import admin_tls, say_refused
from isthmus.app.debug_routes import debug_routes
from isthmus.app.health import Health
from isthmus.app.sidecar_connections import SidecarConnections
from isthmus.app.sidecar_password import PasswordFile
from isthmus.app.sidecar_view import sidecar_view
from isthmus.app.sni_connections import allow_descriptors
from isthmus.config.sidecar import SidecarSettings
from isthmus.dialers.sidecar import SidecarDialer
from isthmus.frontends.sidecar import Credentials
from isthmus.kube.api import Kube, open_kube
from isthmus.net.contexts import HotContext, watch
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.poller import Poller
from isthmus.observe.logs import OncePer, log
from isthmus.observe.sidecar_metrics import SidecarMetrics
from isthmus.observe.tracing import Tracing, open_tracing

_log = logging.getLogger("isthmus.sidecar")


class Sidecar:
    """A running sidecar; subclasses make its connections."""

    #: What it is called in snapshots and traces.
    name = ""

    def __init__(self, settings: SidecarSettings, metrics: SidecarMetrics) -> None:
        """Read files, in the loop.

        Raises:
            ConfigError: one is wrong.
        """
        self.settings = settings
        self.metrics = metrics
        self.loop = asyncio.get_running_loop()
        self.started_at = self.loop.time()
        self.draining = False
        self.once = OncePer(self.loop.time)
        self.poller = Poller(self.loop)
        self._kube: Kube | None = None
        self._password: PasswordFile | None = None
        self._tracing: Tracing | None = None
        self._admin_tls: HotContext | None = None
        self._ports: dict[str, ports.Port] = {}
        self.contexts: list[HotContext] = []
        self.listeners: list[Listener] = []
        self.health_port = self.admin_port = 0
        try:
            if settings.password_file:
                self._password = PasswordFile(settings.username, settings.password_file)
            self._kube = open_kube(settings.kubeconfig) if settings.needs_kube else None
            self.dialer = SidecarDialer(
                self.loop, self.poller, settings, kube=self._kube, environment=os.environ
            )
            self.connections = self.make_connections()
        except BaseException:
            self.poller.shut_down()
            raise
        self.health = Health(
            self.metrics, leaving=lambda: self.draining, listeners=lambda: self.listeners
        )

    def make_connections(self) -> SidecarConnections:
        """Say what a client is, and how its targets are dialed."""
        raise NotImplementedError

    def credentials(self) -> Credentials | None:
        """What clients have to say now; None when everybody is served."""
        return self._password.current if self._password is not None else None

    # Program.

    async def start(self) -> None:
        """Open every port; see Program."""
        settings = self.settings
        try:
            self._tracing = self.connections.tracing = open_tracing(
                settings.tracing_endpoint, os.environ, service=f"isthmus-{self.name}",
                instance=str(uuid.uuid4()),
            )  # fmt: skip
            self._admin_tls = admin_tls(settings)
            self.contexts += [self._admin_tls] if self._admin_tls is not None else []
            bound = bind_tcp(settings.serving_address, settings.serving_port, flag="--serving-port")
            try:
                await self._open_ports()
                await self.dialer.start()
            except BaseException:
                for sock in bound:
                    sock.close()
                raise
        except BaseException:
            await self.stop()
            raise
        self._listen(bound)
        self._set_gauges()
        self.health.start(self._ports)
        place = self.dialer.tunnel.place
        log(
            _log, logging.INFO, "serving", program=self.name, listen=self.listeners[0].name,
            port=self.listeners[0].port, health_port=self.health_port, admin_port=self.admin_port,
            server=str(place), protocol=settings.konnectivity_protocol,
            authenticates=self._password is not None, max_connections=self.connections.most,
        )  # fmt: skip

    def _listen(self, bound: list[socket.socket]) -> None:
        self.listeners += [
            Listener(self.loop, self.poller, sock, self.connections.accept) for sock in bound
        ]

    async def watch(self) -> None:
        """Follow files; see Program."""
        async with self.health.tasks() as tasks:
            tasks.create_task(watch(self.contexts), name="reload")
            tasks.create_task(self.connections.tunnels.watch(), name="sweep")
            if self._password is not None:
                tasks.create_task(self._password.watch(), name="password")

    async def drain(self, timeout_s: float) -> None:
        """Accept nothing more and wait for what is open; see Program."""
        self.draining = True
        for listener in self.listeners:
            listener.stop()
        self.connections.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self.connections.wait_empty()

    async def stop(self) -> None:
        """Close everything; see Program."""
        self.health.stop()
        for listener in self.listeners:
            listener.stop()
        self.connections.close()
        await self.dialer.close()
        for port in self._ports.values():
            await port.close()
        if self._kube is not None:
            await self._kube.close()
        await asyncio.sleep(0)  # one turn of the loop, in which the poller closes what is doomed
        self.poller.shut_down()
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
            snapshot=partial(sidecar_view, self),
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

    @property
    def all_contexts(self) -> list[HotContext]:
        """Every certificate in use, that of the tunnel included, which the dialer reloads."""
        ours = self.dialer.context
        return [*self.contexts, *([ours] if ours is not None else [])]

    def _set_gauges(self) -> None:
        metrics, gauges = self.metrics, self.metrics.gauges
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
        metrics.connections = lambda: len(self.connections)
        metrics.waiting = lambda: self.connections.handshakes

    def ready(self) -> list[ports.Check]:
        """Ready: we do not drain. The tunnel has a readiness of its own."""
        return [ports.PING, ports.Check("drain", "draining" if self.draining else "")]


def run(make: Callable[[], Sidecar], settings: SidecarSettings) -> int:
    """Run a sidecar until it is told to stop; the exit code."""
    os.umask(0o077)
    allow_descriptors(settings.max_connections)
    return lifetime.main(make, settings, drain_s=settings.graceful_shutdown_timeout_s)
