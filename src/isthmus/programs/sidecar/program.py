"""The parts of both sidecars: connections on loopback, dialed through the tunnel.

programs/socks5_proxy and programs/https_proxy have the protocols and choose the dialer.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from typing_extensions import override

from isthmus.frame.listening import Listening, tcp_sockets
from isthmus.frame.part import BoundSocket, Ground, Part, WorkerPlan
from isthmus.frame.resources import allow_connections
from isthmus.kube.opening import open_kube
from isthmus.net.contexts import HotContext
from isthmus.programs.sidecar.connections import SidecarConnections
from isthmus.programs.sidecar.dialer import SidecarDialer
from isthmus.programs.sidecar.dialer_names import SidecarNames
from isthmus.programs.sidecar.metrics import SidecarMetrics
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.programs.sidecar.view import LookupView, NamesView, WayView

SERVING = "--serving-port"

SidecarGround = Ground[Any, Any]


class DialingPart(Part):
    """The dialer of a sidecar, with the guest cluster's API if it needs that.

    Raises:
        ConfigError: a file, or a proxy in the environment, is invalid.
    """

    def __init__(self, ground: SidecarGround) -> None:
        settings: SidecarSettings = ground.settings
        self._ground = ground
        self._metrics: SidecarMetrics = ground.metrics
        self._kube = open_kube(settings.kubeconfig) if settings.needs_kube else None
        self.dialer = SidecarDialer(
            ground.loop, ground.poller, settings, kube=self._kube, environment=os.environ
        )

    @override
    async def open(self) -> None:
        await self.dialer.start()

    @override
    def start(self) -> None:
        metrics, names = self._metrics, self.dialer.names
        metrics.lookups = lambda: names.counts.asked
        metrics.ways = lambda: names.counts.ways
        metrics.tunnel_works = lambda: names.health.works

    @override
    async def wait_closed(self) -> None:
        await self.dialer.close()
        if self._kube is not None:
            await self._kube.close()

    @override
    def contexts(self) -> Iterable[HotContext]:
        context = self.dialer.context
        return () if context is None else (context,)

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {
            "program": self._ground.program.name,
            "server": str(self.dialer.tunnel.place),
            "names": _names_view(self.dialer.names, self._ground.now()),
        }


class SidecarListening(Listening):
    """The port of a sidecar's clients."""

    def __init__(self, ground: SidecarGround, connections: SidecarConnections) -> None:
        self._program = ground.program.name
        self._protocol: str = ground.settings.konnectivity_protocol
        accept = {SERVING: connections.accept}
        super().__init__(ground, lambda: _bind(ground.settings), accept)

    @override
    def serving(self) -> dict[str, Any]:
        return {"program": self._program, **super().serving()}


def worker_plan(settings: SidecarSettings) -> WorkerPlan:
    """Split a sidecar between processes: each gets its share of the limits."""
    # One worker may hold all connections for a while; it inherits the limit.
    allow_connections(settings.max_connections)
    return WorkerPlan(
        bind=lambda: _bind(settings),
        settings=lambda slot: slot.shared(
            settings, "max_connections", "max_connections_per_source", "max_handshakes"
        ),
    )


def _bind(settings: SidecarSettings) -> Iterator[BoundSocket]:
    for bound in tcp_sockets(SERVING, [(settings.serving_address, settings.serving_port)]):
        yield bound
        # systemd may have passed a socket at another address
        settings.check_serves_at(bound.sock.getsockname()[0])


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
