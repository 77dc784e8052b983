"""HTTPS for the admin port: each connection gets the TLS context of the moment it came.

A server of the event loop keeps one context for its life, and a certificate that is replaced has
to show without a restart. Here connections are accepted first and shake hands with whatever is
current then. What they ask for is ports.py's part.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial

from isthmus.net.contexts import HotContext

Refused = Callable[[OSError], None]

HANDSHAKE_S = 10.0
MOST_HANDSHAKES = 64
_ACCEPTS_PER_EVENT = 16
_REST_S = 0.2


class HttpsSite:
    """Accepts from one listening socket until closed.

    ``refused`` hears of every handshake that failed, ssl.SSLError or another OSError.
    """

    def __init__(
        self,
        sock: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        context: HotContext,
        *,
        refused: Refused,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._factory = factory
        self._context = context
        self._refused = refused
        self._handshakes: set[asyncio.Task[None]] = set()
        self._resting: asyncio.TimerHandle | None = None
        self._reading = False
        sock.setblocking(False)
        self._read()

    def _read(self) -> None:
        self._resting = None
        if not self._reading:
            self._reading = True
            self._loop.add_reader(self._sock.fileno(), self._accept)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._sock.fileno())

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_EVENT):
            if len(self._handshakes) >= MOST_HANDSHAKES:
                self._pause()  # the rest wait in the kernel's queue until one is over
                return
            try:
                sock, _address = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors: asking again at once would only burn CPU
                self._pause()
                self._resting = self._loop.call_later(_REST_S, self._read)
                return
            sock.setblocking(False)
            task = self._loop.create_task(self._shake_hands(sock), name="admin-handshake")
            self._handshakes.add(task)
            task.add_done_callback(partial(self._done, sock))

    async def _shake_hands(self, sock: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._factory, sock, ssl=self._context.current, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError as exc:  # SSLError and TimeoutError are OSErrors
            self._refused(exc)

    def _done(self, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        if task.cancelled():
            sock.close()
        elif self._sock.fileno() >= 0 and self._resting is None:
            self._read()

    async def close(self) -> None:
        """Accept nobody more, and give up the handshakes that are under way."""
        if self._sock.fileno() >= 0:
            self._pause()
        if self._resting is not None:
            self._resting.cancel()
        self._sock.close()
        for task in list(self._handshakes):
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
