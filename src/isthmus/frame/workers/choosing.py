"""Which worker gets a connection: the least loaded, or the next in turn for where it comes from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

#: Of so many addresses it is known whose turn it is; the oldest make room.
MOST_SOURCES = 4096


class Candidate(Protocol):
    """A worker, as far as it matters here."""

    @property
    def index(self) -> int:
        """Its number."""

    @property
    def ready(self) -> bool:
        """It could serve a client now."""

    @property
    def load(self) -> int:
        """How much it has to do, as far as is known."""


C = TypeVar("C", bound=Candidate)


def least_loaded(running: Sequence[C]) -> C | None:
    """Choose for a client, among those that are ready if there are such; None without any."""
    ready = [worker for worker in running if worker.ready]
    return min(ready or running, key=lambda worker: worker.load, default=None)


class InTurn:
    """Chooses for an agent that asks for nobody: one worker after the other for each address.

    konnectivity's agents connect again until they have met as many servers as they were told of, so
    every worker comes once before any comes twice. The order is another one each time: with one
    order for ever, two agents behind one address could meet the same workers again and again.
    """

    def __init__(self, shuffle: Callable[[list[int]], None]) -> None:
        self._shuffle = shuffle
        self._left: OrderedDict[str, list[int]] = OrderedDict()

    def choose(self, source: str, running: Sequence[C]) -> C | None:
        """Choose one; None without any."""
        by_index = {worker.index: worker for worker in running}
        if not by_index:
            return None
        left = [index for index in self._left.pop(source, ()) if index in by_index]
        if not left:
            left = list(by_index)
            self._shuffle(left)
        chosen = left.pop()
        self._left[source] = left
        if len(self._left) > MOST_SOURCES:
            self._left.popitem(last=False)
        return by_index[chosen]
