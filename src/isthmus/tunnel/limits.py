"""The bounds of one session: how many streams, how many bytes, how long a silence."""

from __future__ import annotations

from dataclasses import dataclass, replace

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one session."""

    max_streams: int = 16_384
    growth_pool_bytes: int = 64 * MIB
    no_growth_above_held_bytes: int = 64 * MIB
    max_waiting_control_bytes: int = MIB
    batch_bytes: int = 256 * 1024
    stall_s: float = 1.0
    #: While the budget is exhausted: a reader that takes nothing for so long is reset.
    stuck_s: float = 300.0
    half_closed_idle_s: float = 300.0
    ping_every_s: float = 10.0
    dead_after_s: float = 20.0


def with_keepalive(limits: Limits, keepalive_s: float) -> Limits:
    """Ping more often if so asked; never less often than the limits say."""
    return replace(limits, ping_every_s=min(limits.ping_every_s, max(keepalive_s, 0.1)))
