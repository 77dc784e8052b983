"""Connections that a worker is handed by its parent, where other programs have listeners.

The parent (isthmus.frame.workers) has bound every port; here is only which door a connection came
in by. It serves the health and admin ports as well, so what they show is left here for it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Mapping, Sequence

from isthmus.frame.admin.watched import Watched
from isthmus.net.listen import Accepted
from isthmus.values import ServerId

#: The addresses and ports of TCP listeners by flag.
BoundAt = Mapping[str, Sequence[tuple[str, int]]]


class Handed:
    """Where connections come from in a worker; doors have the names of the flags that bind them."""

    def __init__(self, siblings: Collection[ServerId] = ()) -> None:
        """``siblings`` are the ids of the other workers."""
        self.siblings = siblings
        #: What the program's health and admin ports would show.
        self.watched: Watched | None = None
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
