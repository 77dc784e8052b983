"""A few HTTP/2 connections to one server, shared by many calls.

A call gets a stream of the oldest connection that has room: below the server's own limit of
concurrent streams, not told to go away, not lost, and not so old that its certificates may have
been replaced. When there is none another connection is made, up to a bound; beyond it calls wait
for a stream to end. Connections that carry nothing are closed after a while. What a stream says is
its handler's business; a connection that dies tells every handler at once, and the next call makes
a new one (pooled_connection.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from isthmus.dial.dialers.pooled_connection import PooledConnection
from isthmus.dial.dialers.through_server import ServerDialer
from isthmus.errors import DialFailure
from isthmus.tunnel.http2_stream import Http2Stream

IDLE_S = 60.0
MOST_CONNECTIONS = 16
#: Of them, those that carry nothing.
MOST_IDLE = 2
MOST_WAITING = 16_384
#: New calls go to connections younger than this, so that renewed certificates are soon in use.
_FRESH_S = 600.0
_COARSE_S = 0.010
_CLOSED = "the dialer is closed"

Opened = Callable[[Http2Stream], None]
Unopened = Callable[[DialFailure, str], None]


class Waiting:
    """One call that waits for its stream."""

    __slots__ = ("failed", "opened")

    def __init__(self, opened: Opened, failed: Unopened) -> None:
        self.opened: Opened | None = opened
        self.failed: Unopened | None = failed

    def cancel(self) -> None:
        """It is not wanted any more; nothing will be told."""
        self.opened = self.failed = None


class Http2Pool:
    """The connections to one server, reached as its dialer reaches it."""

    def __init__(
        self,
        dialer: ServerDialer,
        *,
        most_connections: int = MOST_CONNECTIONS,
        most_idle: int = MOST_IDLE,
        idle_s: float = IDLE_S,
    ) -> None:
        self.dialer = dialer
        self.connections: list[PooledConnection] = []
        self._waiting: deque[Waiting] = deque()
        self._most_connections = most_connections
        self._most_idle = most_idle
        self._idle_s = idle_s
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def ask(self, opened: Opened, failed: Unopened) -> Waiting:
        """Have a stream opened, on which nothing is said yet; one of the two is told, once.

        Its owner sets a handler and sends headers at once. The callbacks may come before this
        returns.
        """
        asked = Waiting(opened, failed)
        if self._closed or len(self._waiting) >= MOST_WAITING:
            why = _CLOSED if self._closed else "too many calls wait for it"
            failure = DialFailure.INTERNAL if self._closed else DialFailure.TOO_MANY
            failed(failure, f"connectivity server {self.dialer.place}: {why}")
            return asked
        self._waiting.append(asked)
        self._serve()
        return asked

    def close(self) -> None:
        """End every connection and what it carries; nothing can be asked any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._fail_waiting(
            DialFailure.INTERNAL, f"connectivity server {self.dialer.place}: {_CLOSED}"
        )
        for connection in list(self.connections):
            connection.close(_CLOSED)

    def doubt(self, stream: Http2Stream, since: float) -> None:
        """Tell that a stream, opened then, had no answer in its time."""
        for connection in self.connections:
            if connection.http2 is stream.connection:
                connection.doubt(since)

    # Serving.

    def _serve(self) -> None:
        """Give streams to those who wait, as far as there are any; else make a connection."""
        waiting = self._waiting
        while waiting:
            opened = waiting[0].opened
            if opened is None:
                waiting.popleft()  # cancelled
                continue
            found = self._roomy()
            if found is None:
                return
            waiting.popleft().cancel()
            opened(found.open())

    def _roomy(self) -> PooledConnection | None:
        """Find the connection that takes the next call; if there is none, see to one."""
        now = self.dialer.loop.time()
        roomy = [it for it in self.connections if it.has_room]
        for connection in roomy:
            if now - connection.made_at < _FRESH_S:
                return connection
        usable = [it for it in self.connections if not it.leaving]
        if len(usable) >= self._most_connections:
            return roomy[0] if roomy else None
        # One that is being made may do, and one that is empty and has no room yet has none at all.
        if not any(it.making or (not it.streams and it not in roomy) for it in usable):
            connection = PooledConnection(self)
            self.connections.append(connection)
            connection.begin(self.dialer.resolver)
        return None

    def changed(self, connection: PooledConnection) -> None:
        """A stream ended, or the server said something about its connection."""
        if self._waiting:
            self._serve()
        if connection in self.connections and connection.empty:
            self._is_idle(connection)

    def gone(self, connection: PooledConnection, why: str) -> None:
        """A connection is over; if it never was, those for whom it was made hear why."""
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        if connection.http2 is None:
            self._fail_waiting(connection.failure, why)
        elif self._waiting and not self._closed:
            self._serve()

    def _fail_waiting(self, failure: DialFailure, why: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for asked in waiting:
            if (failed := asked.failed) is not None:
                asked.cancel()
                failed(failure, why)

    # Idling.

    def _is_idle(self, connection: PooledConnection) -> None:
        idle = sum(it.empty for it in self.connections)
        if connection.leaving or idle > self._most_idle:
            connection.close("not used any more")
            return
        if connection.idle_at is None:
            connection.idle_at = self.dialer.loop.time()
        if self._timer is None:
            self._timer = self.dialer.loop.call_later(self._idle_s, self._end_idle)

    def _end_idle(self) -> None:
        self._timer = None
        # The loop's clock is coarse: a timer may come a little before its time.
        due = self.dialer.loop.time() - self._idle_s + _COARSE_S
        for connection in list(self.connections):
            if connection.idle_at is not None and connection.idle_at <= due:
                connection.close("not used any more")
        left = [it.idle_at for it in self.connections if it.idle_at is not None]
        if left:
            next_s = min(left) - due
            self._timer = self.dialer.loop.call_later(max(next_s, _COARSE_S), self._end_idle)
