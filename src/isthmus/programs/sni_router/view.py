"""The snapshot of an SNI router; docs/snapshot.md explains the fields."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from isthmus.frame.model.merge import KEY, MIN, ROWS, SAME, SUM, merges
from isthmus.frame.model.snapshot import (
    PROGRAM_RULES,
    CertificateView,
    EndedView,
    MemoryView,
    Totals,
    TunnelView,
)


@merges(address=KEY, connections=SUM, failed=MIN)
@dataclass(frozen=True, slots=True, kw_only=True)
class BackendView:
    """A backend of a route. ``failed``: it failed recently and is tried last."""

    address: str
    connections: int
    failed: bool


@merges(
    name=KEY, hosts=SAME, alpn=SAME, tlv=SAME, allowed_cidrs=SAME, is_default=SAME,
    connections=SUM, max_connections=SUM, sources_refused=SUM, backends=ROWS,
)  # fmt: skip
@dataclass(frozen=True, slots=True, kw_only=True)
class RouteView:
    """A route of the SNI router. ``max_connections`` 0 is no limit.

    ``allowed_cidrs`` is empty if every source is allowed; ``sources_refused`` counts connections
    from sources that are not.
    """

    name: str
    hosts: tuple[str, ...]
    alpn: tuple[str, ...]
    tlv: tuple[str, ...]
    allowed_cidrs: tuple[str, ...]
    is_default: bool
    connections: int
    max_connections: int
    sources_refused: int
    backends: tuple[BackendView, ...]


@merges(PROGRAM_RULES, config=SAME, hellos=SUM, routes=ROWS)
@dataclass(frozen=True, slots=True, kw_only=True)
class SniRouterView:
    """An SNI router. The ``frontend`` of its tunnels is the name of their route."""

    kind: Literal["SniRouterSnapshot"] = "SniRouterSnapshot"
    version: str
    taken_at: datetime | None = None
    uptime_s: float
    draining: bool
    config: str
    hellos: int
    totals: Totals
    routes: tuple[RouteView, ...]
    tunnels: tuple[TunnelView, ...]
    truncated: int = 0
    recent_endings: tuple[EndedView, ...] = ()
    certificates: tuple[CertificateView, ...] = ()
    memory: MemoryView | None = None
