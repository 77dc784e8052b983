"""The apiserver proxy: a node's own way to the apiserver of its cluster, which runs elsewhere.

Settings in, a running program out: here are the ports and the reload. What happens to connections
is app/apiserver_proxy_connections.py, the address of the node app/apiserver_proxy_address.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import uuid
from functools import partial

from isthmus.app import lifetime, ports
from isthmus.app.admin_tls import admin_tls, say_refused
from isthmus.app.apiserver_proxy_address import Addresses
from isthmus.app.apiserver_proxy_connections import Connections
from isthmus.app.apiserver_proxy_plan import PlanSource, Prepared
from isthmus.app.apiserver_proxy_view import apiserver_proxy_view
from isthmus.app.debug_routes import debug_routes
from isthmus.app.health import Health
from isthmus.app.sni_connection import endpoint
from isthmus.app.sni_connections import allow_descriptors
from isthmus.config.apiserver_proxy import ApiserverProxySettings
from isthmus.net.contexts import HotContext, watch
from isthmus.net.listen import Listener, bind_tcp
from isthmus.observe.apiserver_proxy_metrics import ApiserverProxyMetrics
from isthmus.observe.logs import OncePer, log
from isthmus.observe.tracing import Tracing, open_tracing

#: How long names may take to be looked up before anybody is let in without.
FIRST_LOOK_S = 2.0
_log = logging.getLogger("isthmus.apiserver_proxy")


class ApiserverProxy:
    """A running proxy."""

    def __init__(self, settings: ApiserverProxySettings, *, signals: bool = False) -> None:
        """Read the plan, in the loop; with ``signals``, SIGHUP reads it again.

        Raises:
            ConfigError: it is wrong.
        """
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.started_at = self.loop.time()
        self.draining = False
        self.metrics = ApiserverProxyMetrics()
        self.source = PlanSource(settings, self.metrics, self._adopt)
        self.once = OncePer(self.loop.time)
        self.addresses = Addresses(self.source.current.plan, self.once)
        self.connections = Connections(
            self.loop,
            self.source.current,
            metrics=self.metrics,
            once=self.once,
            uplink_of=self.addresses.uplink_of,
        )
        self.contexts: list[HotContext] = []
        self.listeners: list[Listener] = []
        self.health_port = self.admin_port = 0
        self._signals = signals
        self._tracing: Tracing | None = None
        self._admin_tls: HotContext | None = None
        self._ports: dict[str, ports.Port] = {}
        self.health = Health(
            self.metrics, leaving=lambda: self.draining, listeners=lambda: self.listeners
        )

    def _adopt(self, prepared: Prepared) -> None:
        allow_descriptors(prepared.plan.max_connections * prepared.pairs)
        self.connections.adopt(prepared)
        self._set_contexts(prepared)

    def _set_contexts(self, prepared: Prepared) -> None:
        admin = [self._admin_tls] if self._admin_tls is not None else []
        self.contexts[:] = admin + prepared.contexts

    # Program.

    async def start(self) -> None:
        """Put the address in its place and open every port; see Program."""
        settings, plan = self.settings, self.source.current.plan
        allow_descriptors(plan.max_connections * self.source.current.pairs)
        try:
            self._tracing = self.connections.tracing = open_tracing(
                settings.tracing_endpoint, os.environ, service="isthmus-apiserver-proxy",
                instance=str(uuid.uuid4()),
            )  # fmt: skip
            self._admin_tls = admin_tls(settings)
            self._set_contexts(self.source.current)
            await self.addresses.put()
            bound: list[socket.socket] = []
            try:
                for host, port in plan.listen:
                    bound += bind_tcp(host, port, flag="--listen")
                await self._look_names_up(bound)
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
        if self._signals:
            self.loop.add_signal_handler(signal.SIGHUP, self.source.reload)
        log(
            _log, logging.INFO, "serving", listen=",".join(it.name for it in self.listeners),
            port=self.listeners[0].port, health_port=self.health_port, admin_port=self.admin_port,
            upstreams=",".join(map(str, plan.upstreams)), max_connections=self.connections.most,
        )  # fmt: skip

    async def _look_names_up(self, bound: list[socket.socket]) -> None:
        ways = self.connections.ways
        for sock in bound:
            ways.listens_at(endpoint(sock.getsockname()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await ways.look_all_up()

    async def watch(self) -> None:
        """Check upstreams, follow files and names; see Program."""
        connections = self.connections
        async with self.health.tasks() as tasks:
            tasks.create_task(self.source.watch(), name="config")
            tasks.create_task(connections.checker.watch(), name="checks")
            tasks.create_task(connections.watch_names(), name="names")
            tasks.create_task(connections.watch_idle(), name="idle")
            tasks.create_task(self.addresses.watch(), name="address")
            tasks.create_task(watch(self.contexts), name="reload")
            tasks.create_task(connections.tunnels.watch(), name="sweep")

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
        if self._signals:
            self.loop.remove_signal_handler(signal.SIGHUP)
        for listener in self.listeners:
            listener.stop()
        self.connections.close()
        for port in self._ports.values():
            await port.close()
        await asyncio.sleep(0)  # one turn of the loop, in which the poller closes what is doomed
        self.connections.poller.shut_down()
        await self.addresses.take_away()
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
            snapshot=partial(apiserver_proxy_view, self),
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
        metrics, gauges, connections = self.metrics, self.metrics.gauges, self.connections
        gauges.tunnels = lambda: len(connections.tunnels)
        gauges.reload_failures = lambda: sum(context.failures for context in self.contexts)
        gauges.draining = lambda: int(self.draining)
        gauges.lines_suppressed = lambda: self.once.suppressed
        gauges.live_bytes = connections.tunnels.live_bytes
        gauges.certificates = lambda: {
            path: expiry
            for context in self.contexts
            for path, expiry in context.certificate_expiries().items()
        }
        upstreams = connections.upstreams
        metrics.open_by_upstream = lambda: {str(it.at): it.connections for it in upstreams}
        metrics.up = lambda: {str(it.at): int(it.health.is_up) for it in upstreams}
        metrics.waiting = lambda: connections.dialing

    def ready(self) -> list[ports.Check]:
        """Ready: we do not drain, and an upstream is well.

        Only readiness: to start a proxy again because its apiserver is down mends nothing.
        """
        down = "" if self.connections.upstreams.any_up else "every upstream is down"
        return [
            ports.PING,
            ports.Check("drain", "draining" if self.draining else ""),
            ports.Check("upstreams", down),
        ]


def main(settings: ApiserverProxySettings) -> int:
    """Run a proxy until it is told to stop; the exit code."""
    os.umask(0o077)
    return lifetime.main(
        lambda: ApiserverProxy(settings, signals=True),
        settings,
        drain_s=settings.graceful_shutdown_timeout_s,
    )
