"""A sidecar's snapshot: what it is doing right now, as values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from isthmus import __version__
from isthmus.app.views import certificates, memory_view, totals
from isthmus.core.names_view import LookupView, NamesView, WayView
from isthmus.core.snapshot import SidecarView

if TYPE_CHECKING:
    from isthmus.app.sidecar.program import Sidecar
    from isthmus.dialers.sidecar_names import SidecarNames


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
        names=_names_view(sidecar.dialer.names, now),
        totals=totals(sidecar.metrics),
        tunnels=connections.tunnels.views(limit),
        truncated=max(0, len(connections.tunnels) - limit),
        recent_endings=connections.tunnels.endings.views(now=now),
        certificates=certificates(sidecar.all_contexts),
        memory=memory_view(sidecar.budget),
    )


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
