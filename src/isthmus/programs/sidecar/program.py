"""A sidecar: settings in, a program out that takes connections on loopback and dials by the tunnel.

The same for SOCKS5 (socks5_proxy.py) and HTTP (https_proxy.py), which say what a client is and
which dialer it gets. The connections are connections.py, here are the ports.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime

from isthmus import __version__
from isthmus.frame import lifetime
from isthmus.frame.descriptors import allow_connections
from isthmus.frame.forwarder import Forwarder
from isthmus.frame.handed import Handed
from isthmus.frame.model.names_view import LookupView, NamesView, WayView
from isthmus.frame.model.snapshot import SidecarView
from isthmus.frame.views import certificates, memory_view, totals
from isthmus.kube.api import Kube
from isthmus.kube.opening import open_kube
from isthmus.logs import log
from isthmus.net.contexts import HotContext, watch
from isthmus.net.poller import Poller
from isthmus.programs.sidecar.connections import SidecarConnections
from isthmus.programs.sidecar.dialer import SidecarDialer
from isthmus.programs.sidecar.dialer_names import SidecarNames
from isthmus.programs.sidecar.frontend import Credentials
from isthmus.programs.sidecar.metrics import SidecarMetrics
from isthmus.programs.sidecar.password import PasswordFile
from isthmus.programs.sidecar.settings import SidecarSettings

SERVING = "--serving-port"
_log = logging.getLogger("isthmus.sidecar")


class Sidecar(Forwarder):
    """A running sidecar; subclasses have a name and make its connections."""

    settings: SidecarSettings
    metrics: SidecarMetrics
    connections: SidecarConnections

    def __init__(
        self, settings: SidecarSettings, metrics: SidecarMetrics, *, handed: Handed | None = None
    ) -> None:
        """Read files, in the loop.

        Raises:
            ConfigError: one is wrong.
        """
        super().__init__(
            settings, metrics, health_port=settings.health_port, admin_port=settings.admin_port,
            handed=handed,
        )  # fmt: skip
        self.poller = Poller(self.loop)
        self._kube: Kube | None = None
        self._password: PasswordFile | None = None
        try:
            if settings.password_file:
                self._password = PasswordFile(settings.username, settings.password_file)
            self._kube = open_kube(settings.kubeconfig) if settings.needs_kube else None
            self.dialer = SidecarDialer(
                self.loop, self.poller, settings, kube=self._kube, environment=os.environ
            )
            self.connections = self.make_connections()
            self.connections.places.budget = self.budget
        except BaseException:
            self.poller.shut_down()
            raise

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
            self.prepare()
            bound = self.bind(settings.serving_address, settings.serving_port, flag=SERVING)
            try:
                for sock in bound:  # systemd may have passed another than the flags say
                    settings.check_serves_at(sock.getsockname()[0])
                await self.open_ports(health_at=settings.health_bind_address)
                await self.dialer.start()
            except BaseException:
                for sock in bound:
                    sock.close()
                raise
        except BaseException:
            await self.stop()
            raise
        self._set_own_gauges()
        self.listen(bound, flag=SERVING)
        if self.handed is not None:
            log(_log, logging.INFO, "worker started", program=self.name)
            return
        place = self.dialer.tunnel.place
        log(
            _log, logging.INFO, "serving", program=self.name, listen=self.listeners[0].name,
            port=self.listeners[0].port, health_port=self.health_port, admin_port=self.admin_port,
            server=str(place), protocol=settings.konnectivity_protocol,
            authenticates=self._password is not None, max_connections=self.connections.most,
        )  # fmt: skip

    def _set_own_gauges(self) -> None:
        metrics, names = self.metrics, self.dialer.names
        metrics.connections = lambda: len(self.connections)
        metrics.waiting = lambda: self.connections.handshakes
        metrics.lookups = lambda: names.counts.asked
        metrics.ways = lambda: names.counts.ways
        metrics.tunnel_works = lambda: names.health.works

    async def watch(self) -> None:
        """Follow files; see Program."""
        async with self.health.tasks() as tasks:
            tasks.create_task(watch(self.contexts), name="reload")
            tasks.create_task(self.connections.tunnels.watch(), name="sweep")
            if self._password is not None:
                tasks.create_task(self._password.watch(), name="password")

    async def drain(self, timeout_s: float) -> None:
        """Let clients finish what they are at, and nothing more; see Program."""
        self.connections.drain()
        await super().drain(timeout_s)

    def view(self, limit: int) -> SidecarView:
        """Show the sidecar, with at most ``limit`` tunnels."""
        now = self.loop.time()
        connections = self.connections
        return SidecarView(
            program=self.name,
            version=__version__,
            taken_at=datetime.now(UTC),
            uptime_s=now - self.started_at,
            draining=self.draining,
            server=str(self.dialer.tunnel.place),
            handshakes=connections.handshakes,
            requests=connections.busy,
            names=_names_view(self.dialer.names, now),
            totals=totals(self.metrics),
            tunnels=connections.tunnels.views(limit),
            truncated=max(0, len(connections.tunnels) - limit),
            recent_endings=connections.tunnels.endings.views(now=now),
            certificates=certificates(self.all_contexts),
            memory=memory_view(self.budget),
        )

    async def stop(self) -> None:
        """Close everything; see Program."""
        self.close_connections()
        await self.dialer.close()
        if self._kube is not None:
            await self._kube.close()
        await self.close_ports()
        await self.close_tracing()

    @property
    def all_contexts(self) -> list[HotContext]:
        """Every certificate in use, that of the tunnel included, which the dialer reloads."""
        ours = self.dialer.context
        return [*self.contexts, *([ours] if ours is not None else [])]


def run(make: Callable[[], Sidecar], settings: SidecarSettings) -> int:
    """Run a sidecar until it is told to stop; the exit code."""
    os.umask(0o077)
    allow_connections(settings.max_connections)
    return lifetime.main(make, settings, drain_s=settings.graceful_shutdown_timeout_s)


def _names_view(names: SidecarNames, now: float) -> NamesView:
    asked = sorted(
        names.counts.asked.items(), key=lambda each: (each[0][0].value, each[0][1].value)
    )
    return NamesView(
        tunnel_works=names.health.works,
        failing_s=names.health.failing_s(now=now),
        lookups=tuple(
            LookupView(source=source, result=outcome, count=count)
            for (source, outcome), count in asked
        ),
        ways=tuple(WayView(way=way, count=count) for way, count in names.counts.ways.items()),
    )
