"""Both sidecars with workers."""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.frame.descriptors import allow_connections
from isthmus.frame.listening import tcp_sockets
from isthmus.frame.sharing import BoundSocket, WorkerPlan
from isthmus.programs.sidecar.settings import SidecarSettings

SERVING = "--serving-port"


def worker_plan(settings: SidecarSettings) -> WorkerPlan:
    """Share a sidecar between processes: each has its part of what all may carry."""
    # A worker may have them all for long; it inherits the limit.
    allow_connections(settings.max_connections)

    def bind() -> Iterator[BoundSocket]:
        for bound in tcp_sockets(SERVING, [(settings.serving_address, settings.serving_port)]):
            yield bound
            # systemd may have passed another than the flags say
            settings.check_serves_at(bound.sock.getsockname()[0])

    return WorkerPlan(
        bind=bind,
        settings=lambda slot: slot.shared(
            settings, "max_connections", "max_connections_per_source", "max_handshakes"
        ),
    )
