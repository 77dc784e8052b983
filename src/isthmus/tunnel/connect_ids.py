"""The numbers of the connections in one call: who gives which, and which were asked to close.

Whoever accepts a connection numbers it. Agents count from 1, as konnectivity's do. A server accepts
only what agents of ours open, and counts from 2**32: no number ever means two connections, and each
tells by itself who opened its connection.
"""

from __future__ import annotations

from collections.abc import Container

#: The first number that a server gives, and the first that is none of its own: up to there DATA is
#: read without protobuf (wire/packet.py).
FIRST_OF_SERVER, PAST_OF_SERVER = 2**32, 2**35
_MOST_CLOSING = 4096


class ConnectIds:
    """One side's view of the numbers."""

    __slots__ = ("_agent", "_closing", "_first", "_next", "_past")

    def __init__(self, *, agent: bool) -> None:
        self._agent = agent
        self._first = 1 if agent else FIRST_OF_SERVER
        self._past = FIRST_OF_SERVER if agent else PAST_OF_SERVER
        self._next = self._first
        self._closing: set[int] = set()

    def give(self, used: Container[int]) -> int:
        """Number a connection that we accept."""
        while True:
            number = self._next
            self._next = number + 1 if number + 1 < self._past else self._first
            if number not in used:
                return number

    def is_ours(self, number: int) -> bool:
        """Tell whether we are the one who gives this number: then the peer opened it."""
        return (number < FIRST_OF_SERVER) is self._agent

    def first_close(self, number: int) -> bool:
        """Tell whether the peer is to be told that this is over: once, however much still comes."""
        if number in self._closing:
            return False
        if len(self._closing) >= _MOST_CLOSING:
            self._closing.clear()
        self._closing.add(number)
        return True

    def closed(self, number: int) -> None:
        """The peer knows, or has given the number to another connection."""
        self._closing.discard(number)

    @property
    def closing(self) -> int:
        """How many the peer was told of."""
        return len(self._closing)
