"""A clock moved by hand, for everything that takes time as a callable."""

from __future__ import annotations


class ManualClock:
    """Call it to read the time; it stands still until ``advance``."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __repr__(self) -> str:
        return f"<ManualClock {self.now:g}>"

    def __call__(self) -> float:
        """Tell the time in seconds."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move forward.

        Raises:
            ValueError: a clock like this never goes back.
        """
        if seconds < 0:
            raise ValueError(f"a clock does not go back: {seconds}")
        self.now += seconds
