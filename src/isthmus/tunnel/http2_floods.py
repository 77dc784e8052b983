"""How much of what costs a peer nothing it may do: a bucket of tokens for each kind of it."""

from __future__ import annotations

from collections.abc import Callable

# Far above what honest peers do (grpc-go pings at most once per round trip to learn the
# bandwidth; a client may give up thousands of dials in one moment), far below what costs us more
# than a few percent of a core.
BURST = 10_000
PER_SECOND = 2_000


class Floods:
    """Counts by kind."""

    __slots__ = ("_begun", "_clock", "_left", "_since")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._begun = clock()
        self._left: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def allow(self, kind: str, cost: int = 1) -> bool:
        """Take tokens, as many as it costs; False when there are not so many."""
        left = self._left.get(kind, BURST)
        if left < cost:
            # Only now does it matter how long it took: most connections never come here.
            now = self._clock()
            left = min(BURST, left + (now - self._since.get(kind, self._begun)) * PER_SECOND)
            self._since[kind] = now
        self._left[kind] = left - cost
        return left >= cost
