"""Limits on connections: slots for open ones, for unauthenticated ones, and turns.

Pure counting; a *source* is the finest distinction without authentication: an address, a
/64 of IPv6, a user of this machine. connection_gate.py applies the limits. The holder of a turn
does the work and reports its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Generic, TypeVar

from isthmus.tunnel.budget import HANDSHAKE_BYTES, Account, Budget

T = TypeVar("T")
Job = TypeVar("Job")
#: The cost of a forwarded connection for its source, including a small amount of early data.
#: raw.py charges further waiting data as it comes and goes.
CONNECTION_BYTES = 4096
#: The source of all clients on this machine, if they are indistinguishable: no limit per source.
HERE = "this machine"
#: The default part of all slots for one source: never all of them.
_SHARE, _OF = 3, 4


class AdmissionRefusal(Enum):
    """Why a connection was refused."""

    TOO_MANY = "--max-connections are open"
    TOO_MANY_OF_SOURCE = "--max-connections-per-source of its address or user are open"
    CROWD = "too many unauthenticated connections are waiting"
    MEMORY = "its address or user holds more than its share of --memory-budget"
    TOO_FAST = "its address caused too much work without authenticating"


class ConnectionSlots:
    """Counts open connections, in total and per source.

    With a ``budget``, each is charged to its source. Indistinguishable clients are refused only
    when the budget is used up, and they used it up.
    """

    __slots__ = ("_open", "budget", "most", "most_per_source", "taken")

    def __init__(self, most: int, most_per_source: int = 0) -> None:
        """``most_per_source`` 0: three quarters, so that no source locks out all others."""
        self.resize(most, most_per_source)
        self.taken: dict[str, int] = {}  # a Counter's __missing__ and __delitem__ are Python's
        self.budget: Budget | None = None
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def resize(self, most: int, most_per_source: int = 0) -> None:
        """Change the limits; open connections stay."""
        self.most = most
        self.most_per_source = most_per_source or max(1, most * _SHARE // _OF)

    def refusal(self, source: str) -> AdmissionRefusal | None:
        """Why another connection of this source is refused; None if it is not."""
        if source != HERE and self.taken.get(source, 0) >= self.most_per_source:
            return AdmissionRefusal.TOO_MANY_OF_SOURCE
        if self.budget is not None and not self._affords(self.budget, source):
            return AdmissionRefusal.MEMORY
        return AdmissionRefusal.TOO_MANY if self._open >= self.most else None

    @staticmethod
    def _affords(budget: Budget, source: str) -> bool:
        if source == HERE:
            return not budget.may_not_open(source)
        return budget.allows(source, CONNECTION_BYTES)

    def account(self, source: str) -> Account | None:
        """Open the account that pays for this source's connections; ``close`` it."""
        return self.budget.account(source) if self.budget is not None else None

    def enter(self, source: str) -> None:
        """Count an opened connection."""
        self._open += 1
        self.taken[source] = self.taken.get(source, 0) + 1
        if self.budget is not None:
            # The account stays open until this connection leaves.
            self.budget.account(source).hold(CONNECTION_BYTES)

    def leave(self, source: str) -> None:
        """Count a closed connection; a source without connections is removed."""
        self._open -= 1
        left = self.taken[source] - 1
        if left:
            self.taken[source] = left
        else:
            del self.taken[source]
        if self.budget is not None:
            account = self.budget.account(source)
            account.close()  # the use opened here; the other is from ``enter``
            account.leave(CONNECTION_BYTES)


#: The cost of an unauthenticated connection, in seconds of our time: for its handshake, and for
#: each byte read. About the cost of the most expensive ones.
STRANGER_S = 0.002
STRANGER_BYTE_S = 0.000_001
#: The allowance of a source, as a burst for thousands of agents that reconnect at once, and per
#: second. Authentication refunds the cost.
BURST_S = 10.0
PER_SECOND_S = 0.2
_MOST_SOURCES = 4096


class Allowance:
    """The allowance of each source for unauthenticated connections."""

    __slots__ = ("_burst_s", "_clock", "_left", "_per_second_s")

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        burst_s: float = BURST_S,
        per_second_s: float = PER_SECOND_S,
    ) -> None:
        self._clock = clock
        self._burst_s = burst_s
        self._per_second_s = per_second_s
        self._left: dict[
            str, tuple[float, float]
        ] = {}  # seconds left, and as of when; most recent last

    def __len__(self) -> int:
        return len(self._left)

    def spend(self, source: str, cost_s: float) -> bool:
        """Take the cost from the source's allowance; False, without taking, if it is too much.

        A source without a name did not pass a gate, and is not counted.
        """
        return not source or self._take(source, cost_s)

    def give_back(self, source: str, cost_s: float) -> None:
        """Refund the cost: the source has authenticated."""
        if source in self._left:
            self._take(source, -cost_s)

    def _take(self, source: str, cost_s: float) -> bool:
        now = self._clock()
        left, since = self._left.pop(source, (self._burst_s, now))
        left = min(self._burst_s, left + (now - since) * self._per_second_s)
        enough = left >= cost_s
        if enough:
            left = min(self._burst_s, left - cost_s)
        self._left[source] = left, now
        if len(self._left) > _MOST_SOURCES:
            del self._left[next(iter(self._left))]
        return enough


class Strangers(Generic[T]):
    """Unauthenticated connections, limited in number.

    When full, the source with the most of them gives a slot to one with fewer: a client that
    floods a port without a certificate locks out only itself.
    """

    __slots__ = ("_by_source", "_source_of", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._by_source: dict[str, dict[T, None]] = {}
        self._source_of: dict[T, str] = {}

    def __len__(self) -> int:
        return len(self._source_of)

    def __contains__(self, item: object) -> bool:
        return item in self._source_of

    def __iter__(self) -> Iterator[T]:
        return iter(self._source_of)

    def add(self, item: T, source: str) -> None:
        """Add a connection; call ``must_leave`` before."""
        self._source_of[item] = source
        self._by_source.setdefault(source, {})[item] = None

    def remove(self, item: T) -> str:
        """Remove a connection that has authenticated or is gone; others are ignored.

        Returns its source, empty if it was not here.
        """
        source = self._source_of.pop(item, None)
        if source is None:
            return ""
        items = self._by_source[source]
        del items[item]
        if not items:
            del self._by_source[source]
        return source

    def is_full_for(self, source: str) -> bool:
        """Whether there is no slot, and no source has enough more to give one up."""
        if len(self) < self.most:
            return False
        mine = len(self._by_source.get(source, ()))
        return max(map(len, self._by_source.values())) <= mine + 1

    def must_leave(self, *, oldest: bool = False) -> T | None:
        """The connection to drop before another may be added; None while there are slots.

        The newest of the source with the most: it has lost the least. The ``oldest`` where
        legitimate clients finish quickly.
        """
        if len(self) < self.most:
            return None
        greediest = max(self._by_source.values(), key=len)
        return next(iter(greediest) if oldest else reversed(greediest))


def stranger_refusal(
    source: str, strangers: Strangers[T], allowance: Allowance, budget: Budget
) -> AdmissionRefusal | None:
    """Why an unauthenticated connection is refused; None if it was accepted and counted."""
    # So many connections cannot all be about to authenticate.
    if strangers.is_full_for(source):
        return AdmissionRefusal.CROWD
    if not allowance.spend(source, STRANGER_S):
        return AdmissionRefusal.TOO_FAST
    return None if budget.allows(source, HANDSHAKE_BYTES) else AdmissionRefusal.MEMORY


class FairTurns(Generic[Job]):
    """Waiting jobs by source, oldest first; sources take turns.

    At most ``most`` jobs hold a turn at once, and at most ``most_of_one`` of one source, so that a
    source with long turns leaves some to the others. At most ``waiting_of_one`` of a
    source wait, and ``waiting`` in total.
    """

    __slots__ = ("_held", "_holding", "_lengths", "_waiting", "most", "most_of_one", "waiting",
                 "waiting_of_one")  # fmt: skip

    def __init__(self, *, most: int, most_of_one: int, waiting: int, waiting_of_one: int) -> None:
        self.most = most
        self.most_of_one = most_of_one
        self.waiting = waiting
        self.waiting_of_one = waiting_of_one
        self._waiting: dict[str, dict[Job, None]] = {}  # the next source in turn comes first
        self._lengths = 0
        self._held: Counter[str] = Counter()
        self._holding = 0

    def __len__(self) -> int:
        """The number of waiting jobs."""
        return self._lengths

    @property
    def holding(self) -> int:
        """The number of jobs that hold a turn."""
        return self._holding

    def come(self, source: str, job: Job) -> Job | None:
        """Add a job; returns the job that is dropped for it, possibly itself.

        When full, the source with the most waiting jobs drops its newest.
        """
        mine = self._waiting.get(source, {})
        if len(mine) >= self.waiting_of_one:
            return job
        gone = None
        if self._lengths >= self.waiting:
            greediest = max(self._waiting, key=lambda it: len(self._waiting[it]))
            if len(self._waiting[greediest]) <= len(mine) + 1:
                return job
            gone = next(reversed(self._waiting[greediest]))
            self.leave(greediest, gone)
        self._waiting.setdefault(source, {})[job] = None
        self._lengths += 1
        return gone

    def leave(self, source: str, job: Job) -> None:
        """Remove a job if it is waiting."""
        jobs = self._waiting.get(source, {})
        if job not in jobs:
            return
        del jobs[job]
        self._lengths -= 1
        if not jobs:
            del self._waiting[source]

    def begin(self) -> Job | None:
        """Give a turn to the next job; None without a job or a turn."""
        if self._holding >= self.most:
            return None
        # Skipped sources hold turns, so they are few, however many sources wait.
        source = next((it for it in self._waiting if self._held[it] < self.most_of_one), None)
        if source is None:
            return None
        jobs = self._waiting.pop(source)
        job = next(iter(jobs))
        del jobs[job]
        self._lengths -= 1
        if jobs:
            self._waiting[source] = jobs  # after all others
        self._held[source] += 1
        self._holding += 1
        return job

    def over(self, source: str) -> None:
        """A turn of this source is over."""
        self._holding -= 1
        self._held[source] -= 1
        if not self._held[source]:
            del self._held[source]
