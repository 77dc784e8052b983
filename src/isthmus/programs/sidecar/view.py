"""The snapshot of a sidecar; docs/snapshot.md explains the fields."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from isthmus.dial.rules_name_order import Outcome, Source, Way
from isthmus.frame.model.merge import KEY, MAX, MIN, PARTS, ROWS, SAME, SUM, merges
from isthmus.frame.model.snapshot import (
    PROGRAM_RULES,
    CertificateView,
    EndedView,
    MemoryView,
    Totals,
    TunnelView,
)


@merges(source=KEY, result=KEY, count=SUM)
@dataclass(frozen=True, slots=True, kw_only=True)
class LookupView:
    """The number of name lookups with one source and result."""

    source: Source
    result: Outcome
    count: int


@merges(way=KEY, count=SUM)
@dataclass(frozen=True, slots=True, kw_only=True)
class WayView:
    """The number of dials by one way."""

    way: Way
    count: int


@merges(tunnel_works=MIN, failing_s=MAX, lookups=ROWS, ways=ROWS)
@dataclass(frozen=True, slots=True, kw_only=True)
class NamesView:
    """Name resolution of a sidecar. ``failing_s`` is how long the tunnel has been down, or 0."""

    tunnel_works: bool
    failing_s: float
    lookups: tuple[LookupView, ...]
    ways: tuple[WayView, ...]


@merges(
    PROGRAM_RULES, program=SAME, server=SAME, handshakes=SUM, requests=SUM, names=PARTS
)  # fmt: skip
@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarView:
    """A sidecar. ``requests``: clients that wait for a dial, or exchange plain HTTP."""

    kind: Literal["SidecarSnapshot"] = "SidecarSnapshot"
    program: str
    version: str
    taken_at: datetime | None = None
    uptime_s: float
    draining: bool
    server: str
    handshakes: int
    requests: int
    names: NamesView
    totals: Totals
    tunnels: tuple[TunnelView, ...]
    truncated: int = 0
    recent_endings: tuple[EndedView, ...] = ()
    certificates: tuple[CertificateView, ...] = ()
    memory: MemoryView | None = None
