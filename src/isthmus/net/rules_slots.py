"""Who may have how many connections: slots for those that are open, for strangers, and turns.

Pure counting; a *source* is whoever cannot be told apart any further without proof: an address, a
/64 of IPv6, a user of this machine. connection_gate.py asks at the door. Whoever holds a turn does
the work, and says when it is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Generic, TypeVar

from isthmus.tunnel.budget import HANDSHAKE_BYTES, Account, Budget

T = TypeVar("T")
Job = TypeVar("Job")
#: What a connection that is passed on costs its source, with the little that is kept of it early.
#: What waits in it besides is charged as it comes and goes (raw.py).
CONNECTION_BYTES = 4096
#: The source of everybody on this machine, where they cannot be told apart: not bounded by source.
HERE = "this machine"
#: What one source may have of all places where nothing else is said: never all of them.
_SHARE, _OF = 3, 4


class AdmissionRefusal(Enum):
    """Why there is no place."""

    TOO_MANY = "--max-connections are open"
    TOO_MANY_OF_SOURCE = "--max-connections-per-source of its address or user are open"
    CROWD = "too many unauthenticated connections are waiting"
    MEMORY = "its address or user holds more than its share of --memory-budget"
    TOO_FAST = "its address caused too much work without authenticating"


class ConnectionSlots:
    """Counts open connections, of all and of each source.

    In a ``budget`` each costs its source something. Whoever cannot be told apart is refused only
    when nothing is left, and it was they who used it up.
    """

    __slots__ = ("_open", "budget", "most", "most_per_source", "taken")

    def __init__(self, most: int, most_per_source: int = 0) -> None:
        """``most_per_source`` 0: three quarters, so that nobody keeps everybody else out."""
        self.resize(most, most_per_source)
        self.taken: dict[str, int] = {}  # a Counter's __missing__ and __delitem__ are Python's
        self.budget: Budget | None = None
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def resize(self, most: int, most_per_source: int = 0) -> None:
        """Have so many from now on; whoever is in stays."""
        self.most = most
        self.most_per_source = most_per_source or max(1, most * _SHARE // _OF)

    def refusal(self, source: str) -> AdmissionRefusal | None:
        """Why one more of this source cannot come in; None if it can."""
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
        """Open the account that pays for what this source's connections keep; ``close`` it."""
        return self.budget.account(source) if self.budget is not None else None

    def enter(self, source: str) -> None:
        """One more is open."""
        self._open += 1
        self.taken[source] = self.taken.get(source, 0) + 1
        if self.budget is not None:
            # The account stays open until this one leaves.
            self.budget.account(source).hold(CONNECTION_BYTES)

    def leave(self, source: str) -> None:
        """One less; a source that has none left is forgotten."""
        self._open -= 1
        left = self.taken[source] - 1
        if left:
            self.taken[source] = left
        else:
            del self.taken[source]
        if self.budget is not None:
            account = self.budget.account(source)
            account.close()  # of now; the other use is of when it entered
            account.leave(CONNECTION_BYTES)


#: What a stranger counts for, in seconds of our time: a connection with its handshake, and each
#: byte of it that is read. About what the dearest of them cost.
STRANGER_S = 0.002
STRANGER_BYTE_S = 0.000_001
#: What a source may cost in one moment, for thousands of agents that come at once, and then in
#: every second. Whoever shows who it is gets back what it cost.
BURST_S = 10.0
PER_SECOND_S = 0.2
_MOST_SOURCES = 4096


class Allowance:
    """What each source may cost while it has proved nothing."""

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
        self._left: dict[str, tuple[float, float]] = {}  # seconds, as of when; the latest last

    def __len__(self) -> int:
        return len(self._left)

    def spend(self, source: str, cost_s: float) -> bool:
        """Take it from what the source has left; False, and nothing is taken, when it is too much.

        A source without a name came by no gate, and is not counted.
        """
        return not source or self._take(source, cost_s)

    def give_back(self, source: str, cost_s: float) -> None:
        """The source has shown who it is."""
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
    """Connections that have proved nothing yet, at most so many.

    When it is full, the source that has most of them gives a place to one that has fewer: whoever
    floods a port without a certificate keeps out only itself.
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
        """A stranger has come; ``must_leave`` was asked before."""
        self._source_of[item] = source
        self._by_source.setdefault(source, {})[item] = None

    def remove(self, item: T) -> str:
        """It has shown who it is, or is gone; one that is no stranger is let be.

        Tells its source, empty for no stranger.
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
        """No place, and no source that has so many more that it has to give one."""
        if len(self) < self.most:
            return False
        mine = len(self._by_source.get(source, ()))
        return max(map(len, self._by_source.values())) <= mine + 1

    def must_leave(self, *, oldest: bool = False) -> T | None:
        """Who has to go before another may come; None while there are places.

        The newest of the source that has most: it has lost the least. The ``oldest`` where whoever
        is honest is done soon.
        """
        if len(self) < self.most:
            return None
        greediest = max(self._by_source.values(), key=len)
        return next(iter(greediest) if oldest else reversed(greediest))


def stranger_refusal(
    source: str, strangers: Strangers[T], allowance: Allowance, budget: Budget
) -> AdmissionRefusal | None:
    """Why a connection that has proved nothing is not served; None if it is, and was counted."""
    # As many as would be too many cannot all be about to show who they are.
    if strangers.is_full_for(source):
        return AdmissionRefusal.CROWD
    if not allowance.spend(source, STRANGER_S):
        return AdmissionRefusal.TOO_FAST
    return None if budget.allows(source, HANDSHAKE_BYTES) else AdmissionRefusal.MEMORY


class FairTurns(Generic[Job]):
    """Jobs that wait, by source, oldest first; sources take turns.

    At most ``most`` jobs hold a turn at once, and at most ``most_of_one`` of one source, so that a
    source that keeps its turns for long leaves some to the others. At most ``waiting_of_one`` of a
    source wait, and ``waiting`` of all.
    """

    __slots__ = ("_held", "_holding", "_lengths", "_waiting", "most", "most_of_one", "waiting",
                 "waiting_of_one")  # fmt: skip

    def __init__(self, *, most: int, most_of_one: int, waiting: int, waiting_of_one: int) -> None:
        self.most = most
        self.most_of_one = most_of_one
        self.waiting = waiting
        self.waiting_of_one = waiting_of_one
        self._waiting: dict[str, dict[Job, None]] = {}  # whose turn is next comes first
        self._lengths = 0
        self._held: Counter[str] = Counter()
        self._holding = 0

    def __len__(self) -> int:
        """How many wait."""
        return self._lengths

    @property
    def holding(self) -> int:
        """How many hold a turn."""
        return self._holding

    def come(self, source: str, job: Job) -> Job | None:
        """A job waits for a turn; gives the one that has to go for it, perhaps itself.

        When all places are taken, the source that has most of them gives one up: its newest.
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
        """Remove a waiting job; do nothing if it does not wait."""
        jobs = self._waiting.get(source, {})
        if job not in jobs:
            return
        del jobs[job]
        self._lengths -= 1
        if not jobs:
            del self._waiting[source]

    def begin(self) -> Job | None:
        """Give a turn to the next job; None: there is none, or no turn."""
        if self._holding >= self.most:
            return None
        # Those that are passed over hold turns, so they are few, however many sources wait.
        source = next((it for it in self._waiting if self._held[it] < self.most_of_one), None)
        if source is None:
            return None
        jobs = self._waiting.pop(source)
        job = next(iter(jobs))
        del jobs[job]
        self._lengths -= 1
        if jobs:
            self._waiting[source] = jobs  # behind all others
        self._held[source] += 1
        self._holding += 1
        return job

    def over(self, source: str) -> None:
        """A turn of this source is over."""
        self._holding -= 1
        self._held[source] -= 1
        if not self._held[source]:
            del self._held[source]
