"""The upstreams of a proxy: their health, and the order in which to try them.

Health works as in haproxy: an upstream is down after ``fall`` failed checks in a row, and up again
after ``rise`` good ones. It starts up, so that the first connections need not wait for a check. No
upstream is ever excluded: those that are down are tried last. checks.py checks, connections.py
dials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from isthmus.values import HostPort

#: How long an upstream that could not be reached is tried last, regardless of its checks.
FAILED_FOR_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The number of checks in a row that change the state."""

    fall: int = 3
    rise: int = 3


class UpstreamHealth:
    """The state of one upstream by its checks."""

    __slots__ = ("checks", "in_a_row", "is_up", "said")

    def __init__(self) -> None:
        self.is_up = True
        #: The number of checks in a row that contradict ``is_up``.
        self.in_a_row = 0
        self.checks = 0
        self.said = "not checked yet"

    def __repr__(self) -> str:
        return f"<UpstreamHealth {'up' if self.is_up else 'down'}, {self.in_a_row} against it>"

    def checked(self, ok: bool, said: str, bounds: Bounds) -> bool:
        """Take the result of a check; True if it changed the state."""
        self.checks += 1
        self.said = said
        if ok == self.is_up:
            self.in_a_row = 0
            return False
        self.in_a_row += 1
        if self.in_a_row < (bounds.rise if ok else bounds.fall):
            return False
        self.is_up, self.in_a_row = ok, 0
        return True


@dataclass(slots=True)
class Upstream:
    """An upstream that the plan names or that has open connections."""

    at: HostPort
    health: UpstreamHealth = field(default_factory=UpstreamHealth)
    connections: int = 0
    failed_until: float = float("-inf")

    def has_failed(self, now: float) -> bool:
        """Whether a dial to it failed recently."""
        return self.failed_until > now


class Upstreams:
    """Every upstream in use, with its health and its number of connections.

    Call ``took`` for each dial, then either ``let_go`` or ``failed``. An upstream that a new plan
    does not name is forgotten with its last connection.
    """

    def __init__(self, at: Sequence[HostPort]) -> None:
        self._known: dict[HostPort, Upstream] = {}
        self._wanted: tuple[HostPort, ...] = ()
        self._turn = 0
        self.replace(at)

    def __iter__(self) -> Iterator[Upstream]:
        return iter([self._known[at] for at in self._wanted])

    def __len__(self) -> int:
        return len(self._wanted)

    def replace(self, at: Sequence[HostPort]) -> None:
        """Use these from now on; upstreams that stay keep their health and their connections."""
        self._wanted = tuple(dict.fromkeys(at))
        for wanted in self._wanted:
            self._known.setdefault(wanted, Upstream(wanted))
        for one in list(self._known.values()):
            if one.at not in self._wanted:
                self._forget_unused(one)

    def find(self, at: HostPort) -> Upstream | None:
        """The upstream of this name, if it is in use."""
        return self._known[at] if at in self._wanted else None

    @property
    def any_up(self) -> bool:
        """Whether at least one of them is up, as far as is known."""
        return any(one.health.is_up for one in self)

    def in_order(self, *, now: float, most: int) -> list[HostPort]:
        """The upstreams in the order to try them: by number of connections, those down last.

        Equally loaded ones take turns to be first.
        """
        if len(self._wanted) == 1:
            return list(self._wanted)
        self._turn += 1
        first = self._turn % len(self._wanted)
        turned = [self._known[at] for at in (*self._wanted[first:], *self._wanted[:first])]
        turned.sort(key=lambda it: (not it.health.is_up, it.has_failed(now), it.connections))
        return [one.at for one in turned[:most]]

    def took(self, at: HostPort) -> None:
        """Count a dial that begins."""
        self._known[at].connections += 1

    def let_go(self, at: HostPort) -> None:
        """Count a dial that was cancelled, or a connection that has ended."""
        one = self._known[at]
        one.connections -= 1
        if at not in self._wanted:
            self._forget_unused(one)

    def reached(self, at: HostPort) -> None:
        """Note that it was reached."""
        self._known[at].failed_until = float("-inf")

    def failed(self, at: HostPort, *, now: float) -> None:
        """Note a failed dial: for a while all others are tried first."""
        self.avoid(at, now=now)
        self.let_go(at)

    def avoid(self, at: HostPort, *, now: float) -> None:
        """Note a useless connection: for a while all others are tried first."""
        self._known[at].failed_until = now + FAILED_FOR_S

    def _forget_unused(self, one: Upstream) -> None:
        if not one.connections:
            del self._known[one.at]
