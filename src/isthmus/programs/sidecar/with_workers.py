"""Both sidecars with workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from isthmus.frame.descriptors import allow_connections
from isthmus.frame.handed import Handed
from isthmus.frame.model.snapshot import SidecarView
from isthmus.frame.observe.counters import Family
from isthmus.frame.operator_ports import Door
from isthmus.frame.workers.kind import BaseKind, BoundSocket, Place, WorkerProgram
from isthmus.net.listen import bind_tcp
from isthmus.programs.sidecar.metrics import SidecarMetrics
from isthmus.programs.sidecar.settings import SidecarSettings

S = TypeVar("S", bound=SidecarSettings)
SERVING = "--serving-port"


class SidecarKind(BaseKind, Generic[S]):
    """``isthmus socks5-proxy`` and ``isthmus https-proxy``."""

    view = SidecarView

    def __init__(
        self,
        name: str,
        settings: S,
        program: Callable[[S, Handed], WorkerProgram],
        metrics: Callable[[], SidecarMetrics],
    ) -> None:
        """``program`` makes the one of a worker, and imports it not before."""
        self.name = name
        self.settings = settings
        self.workers = settings.workers
        self.drain_s = settings.graceful_shutdown_timeout_s
        self.health = Door(host=settings.health_bind_address, port=settings.health_port)
        self.admin_port = settings.admin_port
        self._program = program
        self._metrics = metrics

    def families(self) -> Iterable[Family]:
        """Give those of a worker."""
        return self._metrics().families

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
