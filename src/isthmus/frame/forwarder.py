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
from typing import Protocol

from isthmus.frame.admin.answers import PING, Check
from isthmus.frame.admin.watched import Watched
from isthmus.frame.handed import Handed
from isthmus.frame.health import Health
from isthmus.frame.memory import open_budget
from isthmus.frame.model.snapshot import ProgramView
from isthmus.frame.observe.program import ProgramMetrics
from isthmus.frame.observe.tracing import Tracing, open_tracing
from isthmus.frame.operator_ports import OperatorPorts
from isthmus.frame.program import OperatorFlags
from isthmus.frame.supervised import counted
from isthmus.frame.tunnels import TunnelTable
from isthmus.frame.views import tally
from isthmus.logs import OncePer
from isthmus.net.contexts import HotContext, lifetimes_of
from isthmus.net.listen import Listener, bind_tcp
from isthmus.net.poller import Poller
from isthmus.settings.admin import AdminSettings


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
    #: Requests that share sockets with others: none.
    calls = 0
    #: Others that agents may go to: none, nor agents.
    has_peers = False
    connections: Connections

    def __init__(
        self,
        settings: AdminSettings,
        metrics: ProgramMetrics,
        *,
        health_port: int,
        admin_port: int,
        handed: Handed | None = None,
    ) -> None:
        """Prepare in the loop; nothing is opened. The ports are those that were asked for.

        A worker, which is ``handed`` its connections, opens none.
        """
        self.handed = handed
        self.settings = settings
        self.metrics = metrics
        self.budget = open_budget(settings)
        self.loop = asyncio.get_running_loop()
        self.started_at = self.loop.time()
        self.draining = False
        self.once = OncePer(self.loop.time)
        self.contexts: list[HotContext] = []
        self.listeners: list[Listener] = []
        self.health_port = health_port
        self.admin_port = admin_port
        self.id = str(uuid.uuid4())
        self.health = Health(
            self.metrics,
            leaving=lambda: self.draining,
            listeners=lambda: self.listeners,
            counted=lambda: tally(self.metrics, tunnels=len(self.connections.tunnels)),
        )
        self._tracing: Tracing | None = None
        self._ports: OperatorPorts | None = None

    @property
    def all_contexts(self) -> list[HotContext]:
        """Every certificate in use."""
        return self.contexts

    def status(self) -> str:
        """How many connections are joined; see Supervisable."""
        return counted(len(self.connections.tunnels), "connection")

    def ready(self) -> list[Check]:
        """Ready: we do not drain. What is behind us has a readiness of its own."""
        return [PING, Check("drain", "draining" if self.draining else "")]

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
            instance=self.id,
        )  # fmt: skip
        self._ports = OperatorPorts(self.settings, once=self.once, handed=self.handed)
        self.contexts += [self._ports.tls] if self._ports.tls is not None else []

    @property
    def admin_tls(self) -> HotContext | None:
        """The admin port's certificate, if it has one."""
        return self._ports.tls if self._ports is not None else None

    def bind(self, host: str, port: int, *, flag: str) -> list[socket.socket]:
        """Bind a port; a worker binds nothing.

        Raises:
            ConfigError: it cannot be bound.
        """
        return bind_tcp(host, port, flag=flag) if self.handed is None else []

    def listen(self, bound: list[socket.socket], *, flag: str) -> None:
        """Everything is open: take connections from now on, by the door of this flag."""
        if self.handed is not None:
            self.handed.open(flag, self.connections.accept, bound=self.listens_at)
        self.listeners += [
            Listener(self.loop, self.connections.poller, sock, self.connections.accept)
            for sock in bound
        ]
        self._set_gauges()
        assert self._ports is not None
        self.health.start(self._ports.open_ones)

    def listens_at(self, host: str, port: int) -> None:
        """Hear where the parent of a worker listens for it."""

    def view(self, limit: int) -> ProgramView:
        """Show what it is doing, with at most ``limit`` tunnels; for subclasses to say."""
        raise NotImplementedError

    async def open_ports(self, *, health_at: str) -> None:
        """Open health and admin ports, once prepared.

        Raises:
            ConfigError: one cannot be bound.
        """
        assert self._ports is not None
        watched = Watched(
            program=self.name,
            instance=self.id,
            settings=self.settings,
            live=self.health.live,
            ready=self.ready,
            metrics=self.metrics.render,
            open_metrics=self.metrics.render_open,
            snapshot=self.view,
            history=self.health.history,
            end_tunnel=self.connections.tunnels.end,
        )
        await self._ports.open(watched, OperatorFlags())
        self.health_port, self.admin_port = self._ports.health, self._ports.admin

    def _set_gauges(self) -> None:
        gauges = self.metrics.gauges
        gauges.tunnels = lambda: len(self.connections.tunnels)
        gauges.budget = self.budget
        gauges.reload_failures = lambda: sum(context.failures for context in self.all_contexts)
        gauges.draining = lambda: int(self.draining)
        gauges.lines_suppressed = lambda: self.once.suppressed
        gauges.live_bytes = self.connections.tunnels.live_bytes
        gauges.certificates = lambda: lifetimes_of(self.all_contexts)

    def close_connections(self) -> None:
        """Accept nothing more, and end what is open."""
        self.health.stop()
        for listener in self.listeners:
            listener.stop()
        self.connections.close()

    async def close_ports(self) -> None:
        """Close health and admin ports, and the poller."""
        if self._ports is not None:
            await self._ports.close()
        await asyncio.sleep(0)  # one turn of the loop, in which the poller closes what is doomed
        self.connections.poller.shut_down()

    async def close_tracing(self) -> None:
        """Send the last spans."""
        if self._tracing is not None:
            await self._tracing.close()
