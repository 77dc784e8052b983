"""How long to wait before trying again: exponential, capped, jittered. Chance comes in."""

from __future__ import annotations

from collections.abc import Callable


class Backoff:
    """Delays between attempts, as konnectivity's agent spaces them, with more jitter.

    Go multiplies by 1.5 and jitters by a tenth; a fifth keeps a thousand agents that lost one
    server from coming back in step.
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
