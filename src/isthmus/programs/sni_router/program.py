"""The SNI router: many TLS servers behind one address, told apart by TLS server name.

Connections are handled in connections.py; routes are read in routes_file.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from isthmus.frame.listening import Listening, tcp_sockets
from isthmus.frame.part import BoundSocket, Ground, Part, WorkerPlan
from isthmus.frame.resources import allow_connections
from isthmus.frame.tunnels import TunnelsPart
from isthmus.net.listen import Accepted
from isthmus.programs.sni_router.connections import SniConnections
from isthmus.programs.sni_router.metrics import SniRouterMetrics
from isthmus.programs.sni_router.routes_file import RoutesPart
from isthmus.programs.sni_router.settings import SniRouterSettings

LISTEN, LISTEN_PROXY = "--listen", "--listen-proxy"


def parts(ground: Ground[SniRouterSettings, SniRouterMetrics]) -> tuple[Part, ...]:
    """The parts of a router, foundations first."""
    settings = ground.settings
    allow_connections(settings.max_connections)
    routes = RoutesPart(settings.config, ground.metrics)
    tunnels = TunnelsPart(ground)
    connections = SniConnections(ground, routes, tunnels.table)
    accept: dict[str, Accepted] = {
        LISTEN: connections.accept,
        LISTEN_PROXY: partial(connections.accept, at_proxy_port=True),
    }
    listening = Listening(ground, lambda: _bind(settings), accept)
    return routes, tunnels, connections, listening


def worker_plan(settings: SniRouterSettings) -> WorkerPlan:
    """Split a router between processes: each gets its share of the limits."""
    allow_connections(settings.max_connections)
    return WorkerPlan(
        bind=lambda: _bind(settings),
        settings=lambda slot: slot.shared(
            settings, "max_connections", "max_connections_per_source", "max_hellos"
        ),
    )


def _bind(settings: SniRouterSettings) -> Iterator[BoundSocket]:
    yield from tcp_sockets(LISTEN, settings.listeners)
    yield from tcp_sockets(LISTEN_PROXY, settings.proxy_listeners)
