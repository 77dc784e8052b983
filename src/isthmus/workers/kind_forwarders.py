"""The programs with workers that have no agents: both sidecars and the SNI router."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from isthmus.app.descriptors import allow_connections
from isthmus.app.handed import Handed
from isthmus.app.operator_ports import Door
from isthmus.config.sidecar import SidecarSettings
from isthmus.config.sni_router import SniRouterSettings
from isthmus.core.snapshot import SidecarView, SniRouterView
from isthmus.net.listen import bind_tcp
from isthmus.workers.kind import BaseKind, BoundSocket, Place, WorkerProgram

S = TypeVar("S", bound=SidecarSettings)
SERVING = "--serving-port"
LISTEN = "--listen"


class SidecarKind(BaseKind, Generic[S]):
    """``isthmus socks5-proxy`` and ``isthmus https-proxy``."""

    view = SidecarView

    def __init__(
        self, name: str, settings: S, program: Callable[[S, Handed], WorkerProgram]
    ) -> None:
        """``program`` makes the one of a worker, and imports it not before."""
        self.name = name
        self.settings = settings
        self.workers = settings.workers
        self.drain_s = settings.graceful_shutdown_timeout_s
        self.health = Door(host=settings.health_bind_address, port=settings.health_port)
        self.admin_port = settings.admin_port
        self._program = program

    def allow(self) -> None:
        """Take as many descriptors as all connections want: a worker may have them all for long."""
        allow_connections(self.settings.max_connections)

    def bind(self) -> Iterator[BoundSocket]:
        """Bind the port of clients."""
        settings = self.settings
        for sock in bind_tcp(settings.serving_address, settings.serving_port, flag=SERVING):
            yield BoundSocket(SERVING, sock)
            # systemd may have passed another than the flags say
            settings.check_serves_at(sock.getsockname()[0])

    def make(self, place: Place, handed: Handed) -> WorkerProgram:
        """Make the sidecar of a worker, with its part of what all may carry."""
        settings = replace(
            self.settings,
            max_connections=place.share(self.settings.max_connections),
            max_connections_per_source=place.share(self.settings.max_connections_per_source),
            max_handshakes=place.share(self.settings.max_handshakes),
        )
        return self._program(settings, handed)


class SniRouterKind(BaseKind):
    """``isthmus sni-router``."""

    name = "sni-router"
    view = SniRouterView

    def __init__(self, settings: SniRouterSettings) -> None:
        self.settings = settings
        self.workers = settings.workers
        self.drain_s = settings.graceful_shutdown_timeout_s
        self.health = Door(host=settings.health_bind_address, port=settings.health_port)
        self.admin_port = settings.admin_port

    def allow(self) -> None:
        """Take as many descriptors as all connections want."""
        allow_connections(self.settings.max_connections)

    def bind(self) -> Iterator[BoundSocket]:
        """Bind every port."""
        for host, port in self.settings.listeners:
            for sock in bind_tcp(host, port, flag=LISTEN):
                yield BoundSocket(LISTEN, sock)

    def make(self, place: Place, handed: Handed) -> WorkerProgram:
        """Make the router of a worker, with its part of what all may carry."""
        from isthmus.app.sni_router.program import SniRouter

        settings = replace(
            self.settings,
            max_connections=place.share(self.settings.max_connections),
            max_connections_per_source=place.share(self.settings.max_connections_per_source),
            max_hellos=place.share(self.settings.max_hellos),
        )
        return SniRouter(settings, handed=handed)
