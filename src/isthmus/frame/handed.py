"""Connections that a worker is handed by its parent, where other programs have listeners.

The parent (isthmus.frame.workers) has bound every port; here is only which door a connection came
in by. It serves the health and admin ports as well, so what they show is left here for it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from isthmus.frame.admin.watched import Watched
from isthmus.net.listen import Accepted
from isthmus.settings.program import worker_id
from isthmus.values import ServerId

S = TypeVar("S")
#: The addresses and ports of TCP listeners by flag.
BoundAt = Mapping[str, Sequence[tuple[str, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSlot:
    """Which worker one is, of how many, and the id of their program.

    ``audit`` is the path that it writes audit records to, for its parent.
    """

    index: int
    count: int
    program_id: str
    audit: str = ""

    def share(self, total: int) -> int:
        """Its part of what all of them may have, rounded up."""
        return -(-total // self.count)

    @property
    def siblings(self) -> frozenset[ServerId]:
        """The ids of the other workers."""
        others = (index for index in range(self.count) if index != self.index)
        return frozenset(ServerId(worker_id(self.program_id, index)) for index in others)

    def shared(self, settings: S, *names: str) -> S:
        """Settings in which these numbers are its part of what all workers may have."""
        parts = {name: self.share(getattr(settings, name)) for name in names}
        return replace(settings, **parts)  # type: ignore[type-var]  # a dataclass of options


class Handed:
    """Where connections come from in a worker; doors have the names of the flags that bind them."""

    def __init__(self, slot: WorkerSlot) -> None:
        #: Which worker this is.
        self.slot = slot
        #: What the program's health and admin ports would show.
        self.watched: Watched | None = None
        #: Hears from the parent whether audit records cannot be written.
        self.on_audit: Callable[[bool], None] | None = None
        self._doors: dict[str, Accepted] = {}
        self._told: list[tuple[str, Callable[[str, int], None]]] = []

    def open(
        self, flag: str, accept: Accepted, *, bound: Callable[[str, int], None] | None = None
    ) -> None:
        """Take what comes in by a door; ``bound`` hears where it is, once that is known."""
        self._doors[flag] = accept
        if bound is not None:
            self._told.append((flag, bound))

    def take(self, flag: str, sock: socket.socket) -> None:
        """A connection came in by a door."""
        accept = self._doors.get(flag)
        if accept is None:
            sock.close()
        else:
            accept(sock)

    def bound(self, where: BoundAt) -> None:
        """The parent has bound its ports."""
        for flag, hear in self._told:
            for host, port in where.get(flag, ()):
                hear(host, port)
