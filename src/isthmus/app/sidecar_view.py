"""A sidecar's snapshot: what it is doing right now, as values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from isthmus import __version__
from isthmus.app.server_view import certificates, totals
from isthmus.core.snapshot import SidecarView

if TYPE_CHECKING:
    from isthmus.app.sidecar import Sidecar


def sidecar_view(sidecar: Sidecar, limit: int) -> SidecarView:
    """Show the sidecar, with at most ``limit`` tunnels."""
    now = sidecar.loop.time()
    connections = sidecar.connections
    return SidecarView(
        program=sidecar.name,
        version=__version__,
        taken_at=datetime.now(UTC),
        uptime_s=now - sidecar.started_at,
        draining=sidecar.draining,
        server=str(sidecar.dialer.tunnel.place),
        handshakes=connections.handshakes,
        requests=connections.busy,
        totals=totals(sidecar.metrics),
        tunnels=connections.tunnels.views(limit),
        truncated=max(0, len(connections.tunnels) - limit),
        recent_endings=connections.tunnels.endings.views(now=now),
        certificates=certificates(sidecar.all_contexts),
    )
