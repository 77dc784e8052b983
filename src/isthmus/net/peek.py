"""Peeks at the ClientHello of an accepted connection without consuming it.

The next owner of the socket reads the bytes as if nothing had happened (MSG_PEEK, recv(2)).
wire/client_hello.py parses them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from isthmus.errors import ProtocolError
from isthmus.net.poller import HUP, IN, OUT, RDHUP, Poller
from isthmus.wire.client_hello import MAX_HELLO_BYTES, ClientHello, hello_in

#: Called with the peek, the hello, and the events whose edge will not be repeated.
Seen = Callable[["HelloPeek", ClientHello, int], None]


class HelloPeek:
    """One peek; ``seen`` or ``lost`` is called once, unless it is closed before.

    ``seen`` gets an empty hello for anything else, for too much, or an early end: TLS reports
    those better. The socket then belongs to the callback; it stays registered with the
    poller, so its next owner only replaces the handler, and receives the
    events. ``lost`` means that no hello will arrive; the socket is then closed.
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
        """``late`` in ``lost(look, late)`` tells a timeout from a broken connection."""
        self.sock = sock
        self.due_at = loop.time() + timeout_s
        self._poller = poller
        self._seen = seen
        self._lost = lost
        self._events = 0
        self._over = False
        self._wanted = 1
        self._timer = loop.call_at(self.due_at, self._end, True)
        # With OUT, which links need, too: the registration stays unchanged.
        poller.register(sock.fileno(), IN | OUT | RDHUP, self._on_events)

    def _on_events(self, mask: int) -> None:
        self._events |= mask
        if self._over:
            return
        try:
            data = self.sock.recv(MAX_HELLO_BYTES, socket.MSG_PEEK)
            # Avoids parsing from the start for each byte: they may arrive one by one.
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
        """Cancel, without a callback; also after a failure on the way to the next owner."""
        self._over = True
        self._timer.cancel()
        self._poller.close(self.sock)

    broken = close
