"""A node proxy at one moment, for /snapshot; docs/snapshot.md describes the fields."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from isthmus.frame.model.snapshot import EndedView, MemoryView, Totals, TunnelView


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyFamilyView:
    """One IP family in the kernel. ``failures`` counts those since the last successful sync."""

    family: str
    syncs: int
    ports: int
    endpoints: int
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalhostPortView:
    """A node port on localhost. ``trouble`` is why it is not open, or the owner of the port."""

    address: str
    service: str
    endpoints: tuple[str, ...]
    connections: int
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProxyView:
    """A whole node proxy. ``waiting_for`` is what its first rules wait for.

    Tunnels and their fields are those of node ports on localhost.
    """

    kind: Literal["NodeProxySnapshot"] = "NodeProxySnapshot"
    version: str
    taken_at: datetime | None = None
    uptime_s: float
    draining: bool
    node: str
    mode: str
    ready: bool
    waiting_for: str
    families: tuple[ProxyFamilyView, ...]
    localhost_node_ports: tuple[LocalhostPortView, ...] = ()
    totals: Totals | None = None
    tunnels: tuple[TunnelView, ...] = ()
    truncated: int = 0
    recent_endings: tuple[EndedView, ...] = ()
    memory: MemoryView | None = None
