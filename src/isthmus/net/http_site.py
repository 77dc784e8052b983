"""Accepts connections for the HTTP ports: at most a fixed number, and never locking out new ones.

The event loop's server has no such limit: a client that opens silent connections to a health port
could take every descriptor of the program. It also keeps one TLS context for its life, but
a replaced certificate must take effect without a restart: here each connection uses the current
context, as long as its source has not cost too much. The protocol object handles requests.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable
from functools import partial

from isthmus.net.connection_gate import reset, source_at
from isthmus.net.contexts import HotContext
from isthmus.net.rules_slots import STRANGER_S, Allowance, Strangers

Refused = Callable[[OSError], None]
#: Called with the source of a connection that was closed to make room.
MadeRoom = Callable[[str], None]

MOST_OPEN = 256
#: Listen backlog: connections beyond it wait a second for their next SYN.
BACKLOG = 4096
#: One port uses at most this part of the descriptors, so that two leave enough for others.
_PART = 16
_LEAST = 16
HANDSHAKE_S = 10.0
#: How long an answer may wait for a client that reads none of it.
UNREAD_S = 60.0
_ACCEPTS_PER_EVENT = 16
_REST_S = 0.2


class Visitor:
    """One connection: a pending handshake, then a transport."""

    __slots__ = ("handshake", "transport")

    def __init__(self) -> None:
        self.handshake: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def is_gone(self) -> bool:
        """Whether its connection is closed or closing."""
        return self.transport is not None and self.transport.is_closing()

    def cut(self) -> None:
        """Close the connection now."""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()


class Visitors:
    """The connections of one or several sites together, limited in number.

    When full, the oldest connection of the source with the most is closed for a new one. Clients
    here are unauthenticated, requests are short, and a client with many silent connections would
    otherwise lock out everyone, itself included.
    """

    def __init__(self, most: int = 0, made_room: MadeRoom = lambda _: None) -> None:
        """``most`` 0: MOST_OPEN, or a part of the descriptors if that is less."""
        self._open: Strangers[Visitor] = Strangers(most or _most())
        self._made_room = made_room

    def __len__(self) -> int:
        self._forget_gone()
        return len(self._open)

    def add(self, visitor: Visitor, source: str) -> None:
        """Add a connection; close another one if full."""
        self._forget_gone()
        while (greedy := self._open.must_leave(oldest=True)) is not None:
            self._made_room(self._open.remove(greedy))
            greedy.cut()
        self._open.add(visitor, source)

    def remove(self, visitor: Visitor) -> None:
        """Remove a connection that ended or failed."""
        self._open.remove(visitor)

    def _forget_gone(self) -> None:
        # A transport reports its close only to its protocol.
        for visitor in [it for it in self._open if it.is_gone()]:
            self._open.remove(visitor)


def _most() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_OPEN
    return min(MOST_OPEN, max(_LEAST, soft // _PART))


class HttpSite:
    """Accepts from one listening socket until closed.

    ``refused`` is called for every failed handshake, with ssl.SSLError or another OSError.
    Handshakes are charged to the ``allowance``, and refunded to clients that present a certificate.
    """

    def __init__(
        self,
        sock: socket.socket,
        factory: Callable[[], asyncio.BaseProtocol],
        *,
        visitors: Visitors,
        context: HotContext | None = None,
        refused: Refused = lambda _: None,
        allowance: Allowance | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._factory = factory
        self._visitors = visitors
        self._context = context
        self._refused = refused
        self._allowance = allowance
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
            try:
                sock, _address = self._sock.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors: retrying at once would only burn CPU
                self._pause()
                self._resting = self._loop.call_later(_REST_S, self._read)
                return
            self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        try:
            sock.setblocking(False)
            # Also applies while the peer's window is closed: no answer waits for ever.
            unread_ms = int(UNREAD_S * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
            source = source_at(sock)
            if not self._may_shake_hands(source):
                reset(sock)
                sock.close()
                return
        except OSError:  # the peer has already left
            sock.close()
            return
        visitor = Visitor()
        self._visitors.add(visitor, source)
        task = self._loop.create_task(
            self._shake_hands(visitor, sock, source), name="http-handshake"
        )
        visitor.handshake = task
        self._handshakes.add(task)
        task.add_done_callback(partial(self._done, visitor, sock))

    def _may_shake_hands(self, source: str) -> bool:
        """Charge a handshake to the source; False if its allowance is used up."""
        if self._context is None or self._allowance is None:
            return True
        return self._allowance.spend(source, STRANGER_S)

    async def _shake_hands(self, visitor: Visitor, sock: socket.socket, source: str) -> None:
        context = self._context.current if self._context is not None else None
        time_s = HANDSHAKE_S if context is not None else None
        try:
            visitor.transport, _ = await self._loop.connect_accepted_socket(
                self._factory, sock, ssl=context, ssl_handshake_timeout=time_s
            )
        except OSError as exc:  # SSLError and TimeoutError are OSErrors
            self._refused(exc)
            return
        proven = context is not None and context.verify_mode is ssl.CERT_REQUIRED
        if proven and self._allowance is not None:
            self._allowance.give_back(source, STRANGER_S)

    def _done(self, visitor: Visitor, sock: socket.socket, task: asyncio.Task[None]) -> None:
        self._handshakes.discard(task)
        if visitor.transport is None:
            self._visitors.remove(visitor)
        if task.cancelled():
            sock.close()

    async def close(self) -> None:
        """Stop accepting, and cancel pending handshakes."""
        if self._sock.fileno() >= 0:
            self._pause()
        if self._resting is not None:
            self._resting.cancel()
        self._sock.close()
        for task in list(self._handshakes):
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
