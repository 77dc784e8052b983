"""The apiserver proxy's snapshot: what it is doing right now, as values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from isthmus import __version__
from isthmus.app.views import certificates, memory_view, totals
from isthmus.core.snapshot import ApiserverProxyView, UpstreamView
from isthmus.core.upstreams import Upstream

if TYPE_CHECKING:
    from isthmus.app.apiserver_proxy.program import ApiserverProxy


def apiserver_proxy_view(proxy: ApiserverProxy, limit: int) -> ApiserverProxyView:
    """Show the proxy, with at most ``limit`` tunnels."""
    now = proxy.loop.time()
    connections = proxy.connections
    return ApiserverProxyView(
        version=__version__,
        taken_at=datetime.now(UTC),
        uptime_s=now - proxy.started_at,
        draining=proxy.draining,
        config=proxy.settings.config,
        listeners=tuple(it.name for it in proxy.listeners),
        addresses=proxy.addresses.held,
        dialing=connections.dialing,
        totals=totals(proxy.metrics),
        upstreams=tuple(_upstream(proxy, each, now) for each in connections.upstreams),
        tunnels=connections.tunnels.views(limit),
        truncated=max(0, len(connections.tunnels) - limit),
        recent_endings=connections.tunnels.endings.views(now=now),
        certificates=certificates(proxy.contexts),
        memory=memory_view(proxy.budget),
    )


def _upstream(proxy: ApiserverProxy, upstream: Upstream, now: float) -> UpstreamView:
    ways = proxy.connections.ways
    through = ways.proxy_of(upstream.at)
    return UpstreamView(
        address=str(upstream.at),
        connections=upstream.connections,
        up=upstream.health.is_up,
        failed=upstream.has_failed(now),
        checks=upstream.health.checks,
        last_check=upstream.health.said,
        resolved=ways.addresses_of(upstream.at),
        through="" if through is None else str(through),
    )
