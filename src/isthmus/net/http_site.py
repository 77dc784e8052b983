"""Accepts connections for the HTTP ports: never more than so many, and a newcomer always gets in.

A server of the event loop has no such bound: whoever opens connections to a health port and says
nothing would take every descriptor of the program. It also keeps one TLS context for its life, and
a certificate that is replaced has to show without a restart: here each connection shakes hands with
whatever is current when it comes, while its source has not cost too much. What is asked for and
answered is the protocol's part.
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
#: Hears from where a connection came that had to make room.
MadeRoom = Callable[[str], None]

MOST_OPEN = 256
#: For whoever listens: a burst that does not fit waits a second for its next SYN, others with it.
BACKLOG = 4096
#: One port has this part of the descriptors at most, so that two leave the others their share.
_PART = 16
_LEAST = 16
HANDSHAKE_S = 10.0
#: How long an answer may lie with a client that takes nothing of it.
UNREAD_S = 60.0
_ACCEPTS_PER_EVENT = 16
_REST_S = 0.2


class Visitor:
    """One connection: a handshake under way, then a transport."""

    __slots__ = ("handshake", "transport")

    def __init__(self) -> None:
        self.handshake: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def is_gone(self) -> bool:
        """Its connection is closed, or about to be."""
        return self.transport is not None and self.transport.is_closing()

    def cut(self) -> None:
        """Close it now."""
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:
            self.handshake.cancel()


class Visitors:
    """The connections of one or several sites together, at most so many.

    When it is full, the oldest of the source that has most goes for the one that comes. Nobody here
    has proved anything, requests are short, and whoever opens many and says nothing would keep
    everybody out, itself included.
    """

    def __init__(self, most: int = 0, made_room: MadeRoom = lambda _: None) -> None:
        """``most`` 0: MOST_OPEN, or a part of the descriptors where that is less."""
        self._open: Strangers[Visitor] = Strangers(most or _most())
        self._made_room = made_room

    def __len__(self) -> int:
        self._forget_gone()
        return len(self._open)

    def add(self, visitor: Visitor, source: str) -> None:
        """One has come; another goes if there is no place."""
        self._forget_gone()
        while (greedy := self._open.must_leave(oldest=True)) is not None:
            self._made_room(self._open.remove(greedy))
            greedy.cut()
        self._open.add(visitor, source)

    def remove(self, visitor: Visitor) -> None:
        """It is gone, or never came to be a connection."""
        self._open.remove(visitor)

    def _forget_gone(self) -> None:
        # Transports tell their protocol when they close, and nobody else.
        for visitor in [it for it in self._open if it.is_gone()]:
            self._open.remove(visitor)


def _most() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_OPEN
    return min(MOST_OPEN, max(_LEAST, soft // _PART))


class HttpSite:
    """Accepts from one listening socket until closed.

    ``refused`` hears of every handshake that failed, ssl.SSLError or another OSError. Handshakes
    are paid from the ``allowance``, and given back to who showed a certificate.
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
            except OSError:  # out of descriptors: asking again at once would only burn CPU
                self._pause()
                self._resting = self._loop.call_later(_REST_S, self._read)
                return
            self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        try:
            sock.setblocking(False)
            # It counts while the peer's window is shut, too: no answer waits for ever.
            unread_ms = int(UNREAD_S * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
            source = source_at(sock)
            if not self._may_shake_hands(source):
                reset(sock)
                sock.close()
                return
        except OSError:  # it has left already
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
        """Whether the source has left what a handshake costs us, and takes it."""
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
        """Accept nobody more, and give up the handshakes that are under way."""
        if self._sock.fileno() >= 0:
            self._pause()
        if self._resting is not None:
            self._resting.cancel()
        self._sock.close()
        for task in list(self._handshakes):
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
