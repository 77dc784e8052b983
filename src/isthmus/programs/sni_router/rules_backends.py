"""Which backends of a route to try, in which order: the fewest connections first.

One that could not be reached a moment ago comes after all that could; it is tried all the same
when they fail, too. Who dials and counts is connections.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.values import HostPort

#: How long a backend that failed comes last.
FAILED_FOR_S = 5.0


class Backends:
    """How many connections each backend has, dials under way included, and which failed lately."""

    def __init__(self) -> None:
        self._open: dict[HostPort, int] = {}
        self._failed_until: dict[HostPort, float] = {}
        self._turn = 0

    def in_order(self, backends: Sequence[HostPort], *, now: float) -> list[HostPort]:
        """The backends to try, first to last; those that are alike take turns to be first."""
        if len(backends) == 1:
            return list(backends)
        self._turn += 1
        first = self._turn % len(backends)
        turned = [*backends[first:], *backends[:first]]
        return sorted(turned, key=lambda it: (self.has_failed(it, now=now), self.count(it)))

    def count(self, backend: HostPort) -> int:
        """How many connections a backend has."""
        return self._open.get(backend, 0)

    def has_failed(self, backend: HostPort, *, now: float) -> bool:
        """Whether a backend could not be reached a moment ago."""
        return self._failed_until.get(backend, 0.0) > now

    def took(self, backend: HostPort) -> None:
        """A dial begins."""
        self._open[backend] = self.count(backend) + 1

    def reached(self, backend: HostPort) -> None:
        """A backend can be reached."""
        self._failed_until.pop(backend, None)

    def failed(self, backend: HostPort, *, now: float) -> None:
        """A backend could not be reached."""
        self.let_go(backend)
        # Those that a reload took away are forgotten as well.
        old = [it for it, until in self._failed_until.items() if until <= now]
        for it in old:
            del self._failed_until[it]
        self._failed_until[backend] = now + FAILED_FOR_S

    def let_go(self, backend: HostPort) -> None:
        """A dial was given up, or a connection has ended."""
        left = self.count(backend) - 1
        if left > 0:
            self._open[backend] = left
        else:
            self._open.pop(backend, None)
