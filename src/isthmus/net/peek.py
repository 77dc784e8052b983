"""A look at the ClientHello of an accepted connection, which leaves every byte where it is.

Whoever owns the socket afterwards reads them as if nobody had looked (MSG_PEEK, recv(2)). What the
bytes say is wire/client_hello.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from isthmus.errors import ProtocolError
from isthmus.net.poller import HUP, IN, OUT, RDHUP, Poller
from isthmus.wire.client_hello import MAX_HELLO_BYTES, ClientHello, hello_in

#: Takes the look, what the client said, and the events whose edge will not come again.
Seen = Callable[["HelloPeek", ClientHello, int], None]


class HelloPeek:
    """One look; ``seen`` or ``lost`` is called once, unless it is closed before.

    ``seen`` gets an empty hello for what is none, is too much for one, or ended too early: TLS has
    the right words for those. The socket is its own from then on; it is registered with the
    poller, so that its next owner only takes the place of the handler, and has to be told the
    events. ``lost`` hears that there will be nothing to look at; then the socket is closed.
    """

    __slots__ = (
        "_events",
        "_lost",
        "_over",
        "_poller",
        "_seen",
        "_timer",
        "_wanted",
        "due_at",
        "sock",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        sock: socket.socket,
        *,
        timeout_s: float,
        seen: Seen,
        lost: Callable[[HelloPeek, bool], None],
    ) -> None:
        """``lost(look, late)`` tells a client that was too slow from one that broke off."""
        self.sock = sock
        self.due_at = loop.time() + timeout_s
        self._poller = poller
        self._seen = seen
        self._lost = lost
        self._events = 0
        self._over = False
        self._wanted = 1
        self._timer = loop.call_at(self.due_at, self._end, True)
        # With OUT, which a link wants, too: the registration stays as it is.
        poller.register(sock.fileno(), IN | OUT | RDHUP, self._on_events)

    def _on_events(self, mask: int) -> None:
        self._events |= mask
        if self._over:
            return
        try:
            data = self.sock.recv(MAX_HELLO_BYTES, socket.MSG_PEEK)
            # Not read again from its start for each of its bytes: they may come one by one.
            hello = hello_in(data) if len(data) >= self._wanted else self._wanted
        except BlockingIOError:
            return
        except OSError:
            self._end(False)
            return
        except ProtocolError:
            hello = ClientHello()
        if isinstance(hello, int):
            self._wanted = hello
            if not self._events & (RDHUP | HUP):
                return
            hello = ClientHello()
        self._over = True
        self._timer.cancel()
        self._seen(self, hello, self._events | IN)

    def _end(self, late: bool) -> None:
        if not self._over:
            try:
                self._lost(self, late)
            finally:
                self.close()

    def close(self) -> None:
        """Give up silently; also when something failed on the way to the next owner."""
        self._over = True
        self._timer.cancel()
        self._poller.close(self.sock)

    broken = close
