"""The direct dialer: opens a TCP connection from here, by address or by name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from isthmus.errors import DialFailure
from isthmus.net.connect import Address, Connecting, Failed, literal
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.socket_end import SocketEnd
from isthmus.values import HostPort, is_address

Reached = Callable[[SocketEnd], None]


class DirectDial:
    """One dial under way; tells once, by one of two callbacks, unless cancelled."""

    __slots__ = ("_attempt", "_cancelled", "_dialer", "_failed", "_reached", "_timeout_s")

    def __init__(
        self, dialer: DirectDialer, timeout_s: float, reached: Reached, failed: Failed
    ) -> None:
        self._dialer = dialer
        self._timeout_s = timeout_s
        self._reached = reached
        self._failed = failed
        self._attempt: Connecting | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Give up silently."""
        self._cancelled = True
        if self._attempt is not None:
            self._attempt.cancel()

    def resolved(self, addresses: Sequence[Address], why: str) -> None:
        """Names are looked up: try the addresses."""
        if self._cancelled:
            return
        if not addresses:
            self._failed(DialFailure.UNRESOLVED, why)
            return
        self._attempt = Connecting(
            self._dialer.loop,
            self._dialer.poller,
            addresses,
            timeout_s=self._timeout_s,
            connected=self._connected,
            failed=self._failed,
        )

    def _connected(self, sock: socket.socket, events: int) -> None:
        end = SocketEnd(sock, self._dialer.poller)
        self._reached(end)
        # Bytes and even the end may be here already, and their edge went to the connecting socket.
        end.on_events(events)


class DirectDialer:
    """Dials targets from this process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, poller: Poller, resolver: Resolver) -> None:
        self.loop = loop
        self.poller = poller
        self.resolver = resolver

    def dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> DirectDial:
        """Open a connection; a name costs a lookup, an address nothing."""
        dial = DirectDial(self, timeout_s, reached, failed)
        if is_address(target.host):
            dial.resolved((literal(target.host, target.port),), "")
        else:
            self.resolver.lookup(target, dial.resolved)
        return dial
