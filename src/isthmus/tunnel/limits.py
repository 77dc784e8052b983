"""The limits of one session: streams, bytes, idle times and rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from isthmus.wire.http2 import DEFAULT_WINDOW, MAX_WINDOW

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one yamux session."""

    max_streams: int = 16_384
    growth_pool_bytes: int = 64 * MIB
    no_growth_above_held_bytes: int = 64 * MIB
    max_waiting_control_bytes: int = MIB
    batch_bytes: int = 256 * 1024
    stall_s: float = 1.0
    #: While the budget is exhausted, a reader that takes nothing for this long is reset.
    stuck_s: float = 300.0
    half_closed_idle_s: float = 300.0
    ping_every_s: float = 10.0
    dead_after_s: float = 20.0
    #: What is kept for a peer that can resume before data is held back: at first, and at most while
    #: the peer is inside its share of the budget; and how often the peer is told what arrived.
    first_kept_bytes: int = 4 * MIB
    most_kept_bytes: int = 16 * MIB
    acknowledge_every_bytes: int = MIB


def with_keepalive(limits: Limits, keepalive_s: float) -> Limits:
    """The limits with more frequent pings; never less frequent than before."""
    return replace(limits, ping_every_s=min(limits.ping_every_s, max(keepalive_s, 0.1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """The limits of one HTTP/2 connection: what a peer may make us store, and for how long."""

    max_streams: int = 16_384
    stream_window_bytes: int = 256 * KIB
    connection_window_bytes: int = 4 * MIB
    max_header_list_bytes: int = 16 * KIB
    max_continuations: int = 8
    max_waiting_control_bytes: int = MIB
    batch_bytes: int = 256 * KIB
    ping_every_s: float = 10.0
    dead_after_s: float = 20.0
    #: How long the last bytes of an ended stream may wait without progress: as long
    #: as a socket's (frame/tunnels.py).
    linger_s: float = 300.0
    #: While the budget is exhausted, a reader that takes nothing for this long is reset.
    stuck_s: float = 300.0

    def __post_init__(self) -> None:
        for window in (self.stream_window_bytes, self.connection_window_bytes):
            # A peer may use the default until it has read our SETTINGS; credit cannot be revoked.
            if not DEFAULT_WINDOW <= window <= MAX_WINDOW:
                raise ValueError(
                    f"window of {window} bytes is not between {DEFAULT_WINDOW} and 2**31 - 1"
                )


# Far above what well-behaved peers do (grpc-go pings at most once per round trip to measure the
# bandwidth; a client may abandon thousands of dials at once), far below what costs us more
# than a few percent of a core.
BURST = 10_000
PER_SECOND = 2_000


class Floods:
    """Rate limits for events that cost a peer nothing: a token bucket for each kind."""

    __slots__ = ("_begun", "_clock", "_left", "_since")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = clock()
        self._left: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def allow(self, kind: str, cost: int = 1) -> bool:
        """Take ``cost`` tokens; False if there are too few."""
        left = self._left.get(kind, BURST)
        if left < cost:
            # The elapsed time matters only now: most connections never get here.
            now = self._clock()
            left = min(BURST, left + (now - self._since.get(kind, self._begun)) * PER_SECOND)
            self._since[kind] = now
        self._left[kind] = left - cost
        return left >= cost
