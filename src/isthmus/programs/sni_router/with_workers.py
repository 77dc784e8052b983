"""The SNI router with workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from isthmus.frame.descriptors import allow_connections
from isthmus.frame.handed import Handed
from isthmus.frame.model.snapshot import SniRouterView
from isthmus.frame.observe.counters import Family
from isthmus.frame.operator_ports import Door
from isthmus.frame.workers.kind import BaseKind, BoundSocket, Place, WorkerProgram
from isthmus.net.listen import bind_tcp
from isthmus.programs.sni_router.metrics import SniRouterMetrics
from isthmus.programs.sni_router.settings import SniRouterSettings

LISTEN = "--listen"


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

    def families(self) -> Iterable[Family]:
        """Give those of a worker."""
        return SniRouterMetrics().families

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
        from isthmus.programs.sni_router.program import SniRouter

        settings = replace(
            self.settings,
            max_connections=place.share(self.settings.max_connections),
            max_connections_per_source=place.share(self.settings.max_connections_per_source),
            max_hellos=place.share(self.settings.max_hellos),
        )
        return SniRouter(settings, handed=handed)
