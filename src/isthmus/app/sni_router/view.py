"""The SNI router's snapshot: what it is doing right now, as values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from isthmus import __version__
from isthmus.app.views import certificates, memory_view, totals
from isthmus.core.snapshot import BackendView, RouteView, SniRouterView
from isthmus.core.sni import Route

if TYPE_CHECKING:
    from isthmus.app.sni_router.program import SniRouter


def sni_router_view(router: SniRouter, limit: int) -> SniRouterView:
    """Show the router, with at most ``limit`` tunnels."""
    now = router.loop.time()
    return SniRouterView(
        version=__version__,
        taken_at=datetime.now(UTC),
        uptime_s=now - router.started_at,
        draining=router.draining,
        config=router.settings.config,
        hellos=router.connections.hellos,
        totals=totals(router.metrics),
        routes=tuple(_route(router, route, now) for route in router.routes.current.routes),
        tunnels=router.connections.tunnels.views(limit),
        truncated=max(0, len(router.connections.tunnels) - limit),
        recent_endings=router.connections.tunnels.endings.views(now=now),
        certificates=certificates(router.contexts),
        memory=memory_view(router.budget),
    )


def _route(router: SniRouter, route: Route, now: float) -> RouteView:
    return RouteView(
        name=route.name,
        hosts=route.hosts,
        alpn=route.alpn,
        is_default=route is router.routes.current.default,
        connections=router.connections.by_route[route.name],
        max_connections=route.max_connections,
        backends=tuple(
            BackendView(
                address=str(backend),
                connections=router.connections.backends.count(backend),
                failed=router.connections.backends.has_failed(backend, now=now),
            )
            for backend in route.backends
        ),
    )
