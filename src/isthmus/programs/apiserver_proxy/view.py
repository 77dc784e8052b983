"""The snapshot of an apiserver proxy; docs/snapshot.md explains the fields."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from isthmus.frame.model.merge import KEY, MAX, MIN, ROWS, SAME, SUM, merges
from isthmus.frame.model.snapshot import (
    PROGRAM_RULES,
    CertificateView,
    EndedView,
    MemoryView,
    Totals,
    TunnelView,
)


@merges(
    # If an upstream is down, the check that failed.
    lead=lambda row: row.up,
    address=KEY, connections=SUM, up=MIN, failed=MAX, checks=SUM, last_check=SAME, resolved=SAME,
    through=SAME,
)  # fmt: skip
@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamView:
    """An upstream of the apiserver proxy. ``failed``: a dial to it failed recently."""

    address: str
    connections: int
    up: bool
    failed: bool
    checks: int
    last_check: str
    resolved: tuple[str, ...] = ()
    through: str = ""


@merges(
    PROGRAM_RULES, config=SAME, listeners=SAME, addresses=SAME, dialing=SUM, upstreams=ROWS
)  # fmt: skip
@dataclass(frozen=True, slots=True, kw_only=True)
class ApiserverProxyView:
    """An apiserver proxy."""

    kind: Literal["ApiserverProxySnapshot"] = "ApiserverProxySnapshot"
    version: str
    taken_at: datetime | None = None
    uptime_s: float
    draining: bool
    config: str
    listeners: tuple[str, ...]
    addresses: tuple[str, ...]
    dialing: int
    totals: Totals
    upstreams: tuple[UpstreamView, ...]
    tunnels: tuple[TunnelView, ...]
    truncated: int = 0
    recent_endings: tuple[EndedView, ...] = ()
    certificates: tuple[CertificateView, ...] = ()
    memory: MemoryView | None = None
