"""A clock that a test sets, for code that takes the time as a callable."""

from __future__ import annotations


class ManualClock:
    """Call it to read the time; it stands still until ``advance``."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __repr__(self) -> str:
        return f"<ManualClock {self.now:g}>"

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move forward.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot go back: {seconds}")
        self.now += seconds
