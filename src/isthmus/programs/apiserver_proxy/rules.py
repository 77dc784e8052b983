"""The upstreams of a proxy: which of them are well, and which is tried first, second and third.

Health is haproxy's: one that was well is down after ``fall`` failed checks in a row, and one that
was down is well after ``rise`` good ones. It begins well, so that the first connections need not
wait for a check. Nobody is ever left out: those that are down come last, and are tried when there
is nobody else. Who checks is checks.py, who dials
connections.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from isthmus.values import HostPort

#: How long one that could not be reached comes after those that could, whatever its checks say.
FAILED_FOR_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How many checks in a row change a mind."""

    fall: int = 3
    rise: int = 3


class UpstreamHealth:
    """What the checks of one upstream have said."""

    __slots__ = ("checks", "in_a_row", "is_up", "said")

    def __init__(self) -> None:
        self.is_up = True
        #: How many checks in a row spoke against ``is_up``.
        self.in_a_row = 0
        self.checks = 0
        self.said = "not checked yet"

    def __repr__(self) -> str:
        return f"<UpstreamHealth {'up' if self.is_up else 'down'}, {self.in_a_row} against it>"

    def checked(self, ok: bool, said: str, bounds: Bounds) -> bool:
        """Take the result of a check; whether that changed the state."""
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
    """One upstream, as long as some plan names it or a connection is open to it."""

    at: HostPort
    health: UpstreamHealth = field(default_factory=UpstreamHealth)
    connections: int = 0
    failed_until: float = float("-inf")

    def has_failed(self, now: float) -> bool:
        """Whether it could not be reached a moment ago."""
        return self.failed_until > now


class Upstreams:
    """Every upstream in use, its health and how many connections it has.

    ``took``, then one of ``let_go`` and ``failed``, for each dial; an upstream that a new plan
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
        """Use these from now on; those that stay keep their health and their connections."""
        self._wanted = tuple(dict.fromkeys(at))
        for wanted in self._wanted:
            self._known.setdefault(wanted, Upstream(wanted))
        for one in list(self._known.values()):
            if one.at not in self._wanted:
                self._forget_unused(one)

    def find(self, at: HostPort) -> Upstream | None:
        """One that is in use; None for any other."""
        return self._known[at] if at in self._wanted else None

    @property
    def any_up(self) -> bool:
        """Whether one of them is well, as far as is known."""
        return any(one.health.is_up for one in self)

    def in_order(self, *, now: float, most: int) -> list[HostPort]:
        """Those to try, first to last: the well with the fewest connections, at last the down.

        Those that are alike take turns to be first.
        """
        if len(self._wanted) == 1:
            return list(self._wanted)
        self._turn += 1
        first = self._turn % len(self._wanted)
        turned = [self._known[at] for at in (*self._wanted[first:], *self._wanted[:first])]
        turned.sort(key=lambda it: (not it.health.is_up, it.has_failed(now), it.connections))
        return [one.at for one in turned[:most]]

    def took(self, at: HostPort) -> None:
        """A dial begins."""
        self._known[at].connections += 1

    def let_go(self, at: HostPort) -> None:
        """A dial was given up, or a connection has ended."""
        one = self._known[at]
        one.connections -= 1
        if at not in self._wanted:
            self._forget_unused(one)

    def reached(self, at: HostPort) -> None:
        """It can be reached."""
        self._known[at].failed_until = float("-inf")

    def failed(self, at: HostPort, *, now: float) -> None:
        """A dial failed: for a moment all others come first."""
        self.avoid(at, now=now)
        self.let_go(at)

    def avoid(self, at: HostPort, *, now: float) -> None:
        """It was reached to no purpose: for a moment all others come first."""
        self._known[at].failed_until = now + FAILED_FOR_S

    def _forget_unused(self, one: Upstream) -> None:
        if not one.connections:
            del self._known[one.at]
