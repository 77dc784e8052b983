"""What came of an attempt, as values: between the probe in a namespace and whoever asked it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isthmus.lab.topology import Failing


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """What a probe shows and trusts: at a way by TCP, and at https targets."""

    ca_cert: str
    client_cert: str
    client_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One attempt: ``failing`` is None when it worked, ``said`` is what was seen, in one line.

    ``said`` is the page's first line, or the error in the system's words; ``bytes`` are those that
    were moved, ``took_s`` is the time of the attempt.
    """

    failing: Failing | None
    said: str
    took_s: float
    bytes: int = 0

    @property
    def worked(self) -> bool:
        """Whether it got through."""
        return self.failing is None

    @property
    def mbit(self) -> float:
        """The rate, in megabits per second."""
        return self.bytes * 8 / 1e6 / self.took_s if self.took_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficCount:
    """What became of background traffic; ``failed`` is counted by what was seen."""

    worked: int
    failed: Mapping[str, int]
    slowest_s: float

    @property
    def failures(self) -> int:
        """All of them."""
        return sum(self.failed.values())
