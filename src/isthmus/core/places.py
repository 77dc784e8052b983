"""Who may have how many connections: places for those that are open, and for strangers.

Pure counting; a *source* is whoever cannot be told apart any further without proof: an address, a
/64 of IPv6, a user of this machine. net/gate.py asks at the door.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")
#: The source of everybody on this machine, where they cannot be told apart: not bounded by source.
HERE = "this machine"
#: What one source may have of all places where nothing else is said: never all of them.
_SHARE, _OF = 3, 4


class Full(Enum):
    """Why there is no place."""

    TOO_MANY = "--max-connections are open"
    TOO_MANY_OF_SOURCE = "--max-connections-per-source of its address or user are open"
    CROWD = "too many connections wait that have not shown yet who they are"


class Places:
    """Counts open connections, of all and of each source."""

    __slots__ = ("_open", "most", "most_per_source", "taken")

    def __init__(self, most: int, most_per_source: int = 0) -> None:
        """``most_per_source`` 0: three quarters, so that nobody keeps everybody else out."""
        self.resize(most, most_per_source)
        self.taken: Counter[str] = Counter()
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def resize(self, most: int, most_per_source: int = 0) -> None:
        """Have so many from now on; whoever is in stays."""
        self.most = most
        self.most_per_source = most_per_source or max(1, most * _SHARE // _OF)

    def refusal(self, source: str) -> Full | None:
        """Why one more of this source cannot come in; None if it can."""
        if source != HERE and self.taken[source] >= self.most_per_source:
            return Full.TOO_MANY_OF_SOURCE
        return Full.TOO_MANY if self._open >= self.most else None

    def enter(self, source: str) -> None:
        """One more is open."""
        self._open += 1
        self.taken[source] += 1

    def leave(self, source: str) -> None:
        """One less; a source that has none left is forgotten."""
        self._open -= 1
        self.taken[source] -= 1
        if not self.taken[source]:
            del self.taken[source]


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
