"""A token bucket: so many requests per second, after a burst. Time comes in as an argument."""

from __future__ import annotations

_DEFAULT_BURST = 10  # what Go's client takes when only the rate is given


class Pace:
    """Spaces requests out; a rate of 0 or less spaces nothing."""

    def __init__(self, *, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = burst if burst > 0 else _DEFAULT_BURST
        self._free = float(self._burst)
        self._at: float | None = None

    def wait_s(self, *, now: float) -> float:
        """Take a turn, and say how long to wait for it."""
        if self._qps <= 0:
            return 0.0
        if self._at is not None:
            self._free = min(self._burst, self._free + (now - self._at) * self._qps)
        self._at = now
        self._free -= 1
        return max(0.0, -self._free / self._qps)
