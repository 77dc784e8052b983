"""The C library's getaddrinfo() in threads of its own, for name sources that only it knows.

A lookup in a thread cannot be taken back: its thread is busy until the C library gives up. So there
are few threads, and no client gets as many as are left for others; whoever comes while it has no
thread to spare waits for its turn, and those who wait take turns by client.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable

MOST_THREADS = 32
MOST_THREADS_PER_CLIENT = 8


class SystemLookups:
    """Asks the C library, for several clients at once."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        most: int = MOST_THREADS,
        most_per_client: int = MOST_THREADS_PER_CLIENT,
    ) -> None:
        self._loop = loop
        self._most = most
        self._most_per_client = most_per_client
        self._running: dict[Hashable, int] = {}
        self._busy = 0
        self._queues: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()

    async def find(self, host: str, client: Hashable) -> list[str]:
        """The addresses of a name, in the C library's order.

        Raises:
            OSError: the name does not resolve, or there can be no thread now.
        """
        if client in self._queues or not self._has_room(client):
            await self._turn(client)
        else:
            self._begin(client)
        answer: asyncio.Future[list[str]] = self._loop.create_future()
        thread = threading.Thread(
            target=self._ask, args=(host, client, answer), name=f"resolve:{host}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as exc:  # no more threads
            self._end(client)
            raise OSError(str(exc)) from exc
        return await answer

    def _has_room(self, client: Hashable) -> bool:
        """As many threads are free as the client has, or more, and it has not the most."""
        has, free = self._running.get(client, 0), self._most - self._busy
        return has < min(self._most_per_client, free)

    def _begin(self, client: Hashable) -> None:
        self._busy += 1
        self._running[client] = self._running.get(client, 0) + 1

    def _end(self, client: Hashable) -> None:
        self._busy -= 1
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        self._next_turns()

    async def _turn(self, client: Hashable) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._queues.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end(client)  # its turn had just come
            else:
                self._leave(client, turn)
            raise

    def _leave(self, client: Hashable, turn: asyncio.Future[None]) -> None:
        waiting = self._queues.get(client, deque())
        with contextlib.suppress(ValueError):
            waiting.remove(turn)
        if not waiting:
            self._queues.pop(client, None)

    def _next_turns(self) -> None:
        for client in list(self._queues):
            waiting = self._queues[client]
            while waiting and waiting[0].done():  # cancelled, and it has not heard of it yet
                waiting.popleft()
            if waiting and self._has_room(client):
                self._begin(client)
                waiting.popleft().set_result(None)
                self._queues.move_to_end(client)
            if not waiting:
                del self._queues[client]

    def _ask(self, host: str, client: Hashable, answer: asyncio.Future[list[str]]) -> None:
        found: list[str] | OSError
        try:
            infos = socket.getaddrinfo(host, 1, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
            found = list(dict.fromkeys(str(info[4][0]) for info in infos))
        except OSError as exc:
            found = exc
        except Exception as exc:  # UnicodeError: it cannot be a name
            found = OSError(str(exc))
        try:
            self._loop.call_soon_threadsafe(self._tell, client, answer, found)
        except RuntimeError:  # the loop has ended meanwhile
            return

    def _tell(
        self, client: Hashable, answer: asyncio.Future[list[str]], found: list[str] | OSError
    ) -> None:
        self._end(client)
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)
