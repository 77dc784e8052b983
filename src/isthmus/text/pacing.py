"""How long to wait before trying again, and how often something may happen. Pure.

Time and chance come in as arguments.
"""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Delays between attempts, as konnectivity's agent spaces them, with more jitter.

    Go multiplies by 1.5 and jitters by a tenth; a fifth keeps a thousand agents that lost the same
    server from reconnecting in step.
    """

    def __init__(
        self,
        *,
        first_s: float,
        cap_s: float,
        chance: Callable[[], float],
        factor: float = 1.5,
        jitter: float = 0.2,
    ) -> None:
        """``chance()`` gives a random number from 0 to 1."""
        self._first_s = first_s
        self._cap_s = cap_s
        self._chance = chance
        self._factor = factor
        self._jitter = jitter
        self._next_s = first_s

    def next_s(self) -> float:
        """The delay before the next attempt; each is longer than the one before."""
        delay = self._next_s
        self._next_s = min(self._next_s * self._factor, self._cap_s)
        return delay * (1 + self._jitter * (2 * self._chance() - 1))

    def reset(self) -> None:
        """An attempt succeeded: start over."""
        self._next_s = self._first_s


class TokenBucket:
    """A token bucket: never more than rate times time, plus the burst; it starts full."""

    __slots__ = ("_at", "_burst", "_left", "_rate")

    def __init__(self, *, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = max(burst, 1.0)
        self._left = self._burst
        self._at = now

    def change(self, *, rate: float, burst: float, now: float) -> None:
        """Change the rate; a debt stays."""
        self._fill(now)
        self._rate, self._burst = rate, max(burst, 1.0)
        self._left = min(self._left, self._burst)

    def has(self, *, now: float) -> bool:
        """Whether a token can be taken now."""
        self._fill(now)
        return self._left >= 1.0

    def take(self) -> None:
        """Take a token, after ``has``."""
        self._left -= 1.0

    def allows(self, *, now: float) -> bool:
        """Take a token if there is one; False if not."""
        if not self.has(now=now):
            return False
        self._left -= 1.0
        return True

    def spend(self, amount: int, *, now: float) -> bool:
        """Take this amount even if there is less; True if the bucket is in debt now."""
        self._fill(now)
        self._left -= amount
        return self._left < 0.0

    def wait_s(self, *, now: float) -> float:
        """How long until the debt is paid."""
        self._fill(now)
        return max(0.0, -self._left / self._rate)

    def room(self, *, now: float) -> float:
        """How much could be spent without debt."""
        self._fill(now)
        return self._left

    def is_full(self, *, now: float) -> bool:
        """Whether the bucket is full again, so that it can be forgotten."""
        self._fill(now)
        return self._left >= self._burst

    def _fill(self, now: float) -> None:
        if now > self._at:
            self._left = min(self._burst, self._left + (now - self._at) * self._rate)
            self._at = now
