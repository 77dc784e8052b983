"""The direct dialer: opens a TCP connection from here, by address or by name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import lru_cache

from isthmus.core.endpoint_lists import Refusal
from isthmus.errors import DialFailure
from isthmus.net.connect import Address, Connecting, Failed, literal
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.socket_end import SocketEnd
from isthmus.values import HostPort, is_address

Reached = Callable[[SocketEnd], None]


def _nobody(*_: object) -> None:
    """Stand in for callbacks of a dial that is over."""


class DirectDial:
    """One dial under way; tells once, by one of two callbacks, unless cancelled."""

    __slots__ = ("_attempt", "_deadline", "_dialer", "_done", "_due", "_failed", "_reached")

    def __init__(
        self, dialer: DirectDialer, timeout_s: float, reached: Reached, failed: Failed
    ) -> None:
        self._dialer = dialer
        self._due = dialer.loop.time() + timeout_s
        self._reached = reached
        self._failed = failed
        self._attempt: Connecting | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._done = False

    def cancel(self) -> None:
        """Give up silently."""
        self._finish()
        if self._attempt is not None:
            self._attempt.cancel()

    def give_up(self, failure: DialFailure, detail: str) -> None:
        """Fail without a try."""
        self._fail(failure, detail)

    def look_up(self, target: HostPort) -> None:
        """Ask the resolver; its time counts, too."""
        self._dialer.resolver.lookup(target, self.try_each, self._fail)
        if self._attempt is None and not self._done:
            self._deadline = self._dialer.loop.call_at(
                self._due, self._fail, DialFailure.TIMED_OUT, "no answer from the resolver in time"
            )

    def try_each(self, addresses: Sequence[Address]) -> None:
        """Connect to one of the addresses, in the time that is left."""
        if self._done:
            return  # a late answer of the resolver
        if self._deadline is not None:
            self._stop_deadline()
        self._attempt = Connecting(
            self._dialer.loop,
            self._dialer.poller,
            addresses,
            timeout_s=max(0.0, self._due - self._dialer.loop.time()),
            connected=self._connected,
            failed=self._fail,
        )

    def _connected(self, sock: socket.socket, events: int) -> None:
        reached = self._reached
        self._finish()
        end = SocketEnd(sock, self._dialer.poller)
        reached(end)
        if events:
            # Bytes and even the end may be here already, and their edge went to the connecting
            # socket.
            end.on_events(events)

    def _fail(self, failure: DialFailure, detail: str) -> None:
        failed = self._failed
        self._finish()
        failed(failure, detail)

    def _finish(self) -> None:
        self._done = True
        # Whoever is called back keeps us: without this, neither is freed until a collection.
        self._reached, self._failed = _nobody, _nobody
        if self._deadline is not None:
            self._stop_deadline()
            self._dialer.resolver.forget(self.try_each)

    def _stop_deadline(self) -> None:
        assert self._deadline is not None
        self._deadline.cancel()
        self._deadline = None


class DirectDialer:
    """Dials targets from this process.

    ``refuse`` is asked about addresses, which no resolver looks at: why one is not dialed, or None.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        resolver: Resolver,
        refuse: Callable[[HostPort], Refusal | None] | None = None,
    ) -> None:
        self.loop = loop
        self.poller = poller
        self.resolver = resolver
        self._refuse = refuse

    def dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> DirectDial:
        """Open a connection; a name costs a lookup, an address nothing.

        ``timeout_s`` is for all of it. The callbacks may come before this returns.
        """
        dial = DirectDial(self, timeout_s, reached, failed)
        addresses = _literal(target.host, target.port)
        if addresses is None:
            dial.look_up(target)
        elif self._refuse is not None and (refusal := self._refuse(target)) is not None:
            dial.give_up(DialFailure.DENIED, refusal.why)
        else:
            dial.try_each(addresses)
        return dial


@lru_cache(maxsize=1024)
def _literal(host: str, port: int) -> tuple[Address] | None:
    """The address of a literal host, or None for a name."""
    return (literal(host, port),) if is_address(host) else None
