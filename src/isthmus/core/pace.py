"""How often somebody may do something: a steady rate, and more at once after a pause."""

from __future__ import annotations


class Pace:
    """One that may do ``burst`` things at once, and ``per_s`` in the long run."""

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, *, per_s: float, burst: int, now: float) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._left = self._burst
        self._at = now

    def allows(self, *, now: float) -> bool:
        """Tell whether one more may be done now; if so, it counts."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
