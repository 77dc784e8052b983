"""The apiserver proxy: a node's own way to the apiserver of its cluster, which runs elsewhere.

Settings in, a running program out: here are the ports and the reload. What happens to connections
is connections.py, the address of the node address.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from datetime import UTC, datetime

from isthmus import __version__
from isthmus.frame import lifetime
from isthmus.frame.admin.answers import Check
from isthmus.frame.descriptors import allow_connections
from isthmus.frame.forwarder import Forwarder
from isthmus.frame.handed import Handed
from isthmus.frame.model.snapshot import ApiserverProxyView, UpstreamView
from isthmus.frame.views import certificates, memory_view, totals
from isthmus.logs import log
from isthmus.net.accepted import endpoint
from isthmus.net.contexts import watch
from isthmus.net.poller import Poller
from isthmus.programs.apiserver_proxy.address import Addresses
from isthmus.programs.apiserver_proxy.connections import Connections
from isthmus.programs.apiserver_proxy.metrics import ApiserverProxyMetrics
from isthmus.programs.apiserver_proxy.planning import PlanSource, Prepared
from isthmus.programs.apiserver_proxy.rules import Upstream
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.values import is_address

#: How long names may take to be looked up before anybody is let in without.
FIRST_LOOK_S = 2.0
LISTEN = "--listen"
_log = logging.getLogger("isthmus.apiserver_proxy")


class ApiserverProxy(Forwarder):
    """A running proxy."""

    name = "apiserver-proxy"
    settings: ApiserverProxySettings
    metrics: ApiserverProxyMetrics
    connections: Connections

    def __init__(
        self,
        settings: ApiserverProxySettings,
        *,
        signals: bool = False,
        handed: Handed | None = None,
    ) -> None:
        """Read the plan, in the loop; with ``signals``, SIGHUP reads it again.

        Raises:
            ConfigError: it is wrong.
        """
        super().__init__(
            settings, ApiserverProxyMetrics(),
            health_port=settings.health_port, admin_port=settings.admin_port, handed=handed,
        )  # fmt: skip
        self.source = PlanSource(settings, self.metrics, self._adopt)
        self.addresses = Addresses(self.source.current.plan, self.once)
        self.connections = Connections(
            self.loop,
            self.source.current,
            metrics=self.metrics,
            once=self.once,
            uplink_of=self.addresses.uplink_of,
        )
        self.connections.places.budget = self.budget
        self._signals = signals

    def _adopt(self, prepared: Prepared) -> None:
        allow_connections(prepared.plan.max_connections * prepared.pairs)
        self.connections.adopt(prepared)
        self._set_contexts(prepared)

    def _set_contexts(self, prepared: Prepared) -> None:
        admin = [self.admin_tls] if self.admin_tls is not None else []
        self.contexts[:] = admin + prepared.contexts

    @property
    def poller(self) -> Poller:
        """What watches its sockets."""
        return self.connections.poller

    # Program.

    async def start(self) -> None:
        """Put the address in its place and open every port; see Program."""
        settings, plan = self.settings, self.source.current.plan
        allow_connections(plan.max_connections * self.source.current.pairs)
        try:
            self.prepare()
            self._set_contexts(self.source.current)
            if self.handed is None:  # else its parent does
                await self.addresses.put()
            bound: list[socket.socket] = []
            try:
                for host, port in plan.listen:
                    bound += self.bind(host, port, flag=LISTEN)
                await self._look_names_up(bound)
                await self.open_ports(health_at=settings.health_bind_address)
            except BaseException:
                for sock in bound:
                    sock.close()
                raise
        except BaseException:
            await self.stop()
            raise
        self._set_own_gauges()
        self.listen(bound, flag=LISTEN)
        if self.handed is not None:
            log(_log, logging.INFO, "worker started", program=self.name)
            return
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
        if self.handed is not None:
            for host, port in self.source.current.plan.listen:
                self.listens_at(host, port)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await ways.look_all_up()

    def listens_at(self, host: str, port: int) -> None:
        """No name may lead there; see Forwarder."""
        if is_address(host):
            self.connections.ways.listens_at(endpoint((host, port)))

    def reload(self) -> None:
        """Read the plan again."""
        self.source.reload()

    async def watch(self) -> None:
        """Check upstreams, follow files and names; see Program."""
        connections = self.connections
        async with self.health.tasks() as tasks:
            if self.source.file is not None:
                tasks.create_task(self.source.file.watch(), name="config")
            tasks.create_task(connections.checker.watch(), name="checks")
            tasks.create_task(connections.watch_names(), name="names")
            tasks.create_task(connections.watch_idle(), name="idle")
            tasks.create_task(self.addresses.watch(), name="address")
            tasks.create_task(watch(self.contexts), name="reload")
            tasks.create_task(connections.tunnels.watch(), name="sweep")

    def view(self, limit: int) -> ApiserverProxyView:
        """Show the proxy, with at most ``limit`` tunnels."""
        now = self.loop.time()
        connections = self.connections
        return ApiserverProxyView(
            version=__version__,
            taken_at=datetime.now(UTC),
            uptime_s=now - self.started_at,
            draining=self.draining,
            config=self.settings.config,
            listeners=tuple(it.name for it in self.listeners),
            addresses=self.addresses.held,
            dialing=connections.dialing,
            totals=totals(self.metrics),
            upstreams=tuple(self._upstream(each, now) for each in connections.upstreams),
            tunnels=connections.tunnels.views(limit),
            truncated=max(0, len(connections.tunnels) - limit),
            recent_endings=connections.tunnels.endings.views(now=now),
            certificates=certificates(self.contexts),
            memory=memory_view(self.budget),
        )

    def _upstream(self, upstream: Upstream, now: float) -> UpstreamView:
        ways = self.connections.ways
        through = ways.proxy_of(upstream.at)
        return UpstreamView(
            address=str(upstream.at),
            connections=upstream.connections,
            up=upstream.health.is_up,
            failed=upstream.has_failed(now),
            checks=upstream.health.checks,
            last_check=upstream.health.said,
            resolved=ways.addresses_of(upstream.at),
            through="" if through is None else str(through),
        )

    async def stop(self) -> None:
        """Close everything; see Program."""
        if self._signals:
            self.loop.remove_signal_handler(signal.SIGHUP)
        self.close_connections()
        await self.close_ports()
        await self.addresses.take_away()
        await self.close_tracing()

    def _set_own_gauges(self) -> None:
        metrics, connections = self.metrics, self.connections
        upstreams = connections.upstreams
        metrics.open_by_upstream = lambda: {str(it.at): it.connections for it in upstreams}
        metrics.up = lambda: {str(it.at): int(it.health.is_up) for it in upstreams}
        metrics.waiting = lambda: connections.dialing

    def ready(self) -> list[Check]:
        """Ready: we do not drain, and an upstream is well.

        Only readiness: to start a proxy again because its apiserver is down mends nothing.
        """
        down = "" if self.connections.upstreams.any_up else "every upstream is down"
        return [*super().ready(), Check("upstreams", down)]


def main(settings: ApiserverProxySettings) -> int:
    """Run a proxy until it is told to stop; the exit code."""
    os.umask(0o077)
    return lifetime.main(
        lambda: ApiserverProxy(settings, signals=True),
        settings,
        drain_s=settings.graceful_shutdown_timeout_s,
    )
