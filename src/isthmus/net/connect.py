"""Opening TCP connections without a task: one non-blocking socket, or several racing.

asyncio's create_connection() needs a task and a transport, and hides the errno; measured on uvloop
over loopback, with the accepting side in the same loop, it takes 131 µs and this 114. Addresses
need no resolver and therefore no await. Coroutines await a dialer, which reports by callbacks, with
``reach``.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from isthmus.errors import DialError, DialFailure
from isthmus.net.descriptors import as_it_is, for_a_peer
from isthmus.net.poller import IN, OUT, RDHUP, Poller
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.values import HostPort

#: RFC 8305 §5: start the next address when the previous one has not answered for this long.
NEXT_ADDRESS_S = 0.25

#: A dial that started with less time than this reports that as the cause when it times out.
SHORT_S = 0.02
#: The error of a dial that had no time left.
SPENT = "the deadline of the dial had passed before it began"

Address = tuple[int, tuple[str, int] | tuple[str, int, int, int]]
Connected = Callable[[socket.socket, int], None]
Failed = Callable[[DialFailure, str], None]

FAILURE_OF_ERRNO = {
    errno.ECONNREFUSED: DialFailure.REFUSED,
    errno.ECONNRESET: DialFailure.REFUSED,
    errno.ETIMEDOUT: DialFailure.TIMED_OUT,
    errno.ENETUNREACH: DialFailure.UNREACHABLE,
    errno.EHOSTUNREACH: DialFailure.UNREACHABLE,
    errno.ENETDOWN: DialFailure.UNREACHABLE,
    errno.EHOSTDOWN: DialFailure.UNREACHABLE,
    errno.EADDRNOTAVAIL: DialFailure.UNREACHABLE,
    errno.EAFNOSUPPORT: DialFailure.UNREACHABLE,
    errno.EINVAL: DialFailure.UNREACHABLE,  # a scoped address without its scope
    errno.EPERM: DialFailure.UNREACHABLE,  # a local firewall
    errno.EACCES: DialFailure.UNREACHABLE,
    errno.EMFILE: DialFailure.TOO_MANY,
    errno.ENFILE: DialFailure.TOO_MANY,
    errno.ENOBUFS: DialFailure.TOO_MANY,
}


def literal(host: str, port: int) -> Address:
    """The socket address of a literal IPv4 or IPv6 host."""
    return (socket.AF_INET6, (host, port)) if ":" in host else (socket.AF_INET, (host, port))


def late(timeout_s: float, waited_for: str) -> str:
    """The error of a dial that timed out: what it waited for, or that it started late."""
    if timeout_s <= 0:
        return SPENT
    if timeout_s < SHORT_S:
        left_ms = max(1, round(timeout_s * 1000))
        return f"only {left_ms} ms were left of the deadline of the dial when it began"
    return waited_for


def _nobody(first: object, second: object) -> None:
    """Replace callbacks that were called."""


class Connecting:
    """One attempt to reach one of several addresses; calls one of two callbacks once."""

    __slots__ = (
        "_addresses",
        "_connected",
        "_deadline",
        "_detail",
        "_done",
        "_failed",
        "_failure",
        "_loop",
        "_next",
        "_open",
        "_poller",
        "_socks",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        addresses: Sequence[Address],
        *,
        timeout_s: float,
        connected: Connected,
        failed: Failed,
        for_peer: bool = True,
    ) -> None:
        """Call ``connected(sock, events)`` or ``failed(why, detail)``, possibly at once.

        ``events`` are those whose edge arrived with the connection and will not be repeated.
        ``for_peer`` False is for the program's own links, which may use the reserved
        descriptors.
        """
        self._open = for_a_peer if for_peer else as_it_is
        self._loop = loop
        self._poller = poller
        self._addresses = list(addresses)
        self._connected = connected
        self._failed = failed
        self._failure = DialFailure.UNRESOLVED
        self._detail = "no address"
        self._done = False
        self._socks: list[socket.socket] = []
        self._next: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._start_next()
        if not self._done:
            self._deadline = loop.call_later(timeout_s, self._timed_out)

    def cancel(self) -> None:
        """Cancel, without a callback."""
        if not self._done:
            self._finish()

    def _start_next(self) -> None:
        self._next = None
        while self._addresses and not self._done:
            family, address = self._addresses.pop(0)
            if self._try(family, address):
                break
        if self._done:
            return
        if self._addresses:
            self._next = self._loop.call_later(NEXT_ADDRESS_S, self._start_next)
        elif not self._socks:
            self._fail(self._failure, self._detail)

    def _try(self, family: int, address: tuple[str, int] | tuple[str, int, int, int]) -> bool:
        """Start one address; False if it failed at once."""
        try:
            sock = self._open(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
        except OSError as exc:
            self._remember(exc.errno or 0, address)
            return False
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            error = sock.connect_ex(address)
            if error == errno.EINPROGRESS:
                # A handshake with a target on this host completes before the first call returns,
                # although that call cannot know it: a second call saves an iteration of the
                # loop. EALREADY is the answer for every other target.
                error = sock.connect_ex(address)
        except OSError as exc:
            error = exc.errno or errno.EINVAL
        if error == 0:
            self._won(sock, 0)
            return True
        if error == errno.EALREADY:
            self._socks.append(sock)
            self._poller.register(
                sock.fileno(), IN | OUT | RDHUP, lambda mask: self._event(sock, address, mask)
            )
            return True
        sock.close()
        self._remember(error, address)
        return False

    def _event(self, sock: socket.socket, address: tuple[object, ...], mask: int) -> None:
        if self._done:
            return
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._socks.remove(sock)
            self._poller.close(sock)
            self._remember(error, address)
            if self._next is not None:
                self._next.cancel()
            self._start_next()
        elif mask & OUT:
            self._won(sock, mask)

    def _won(self, sock: socket.socket, events: int) -> None:
        if sock in self._socks:
            self._socks.remove(sock)
        connected = self._connected
        self._finish()
        connected(sock, events)

    def _remember(self, error: int, address: tuple[object, ...]) -> None:
        self._failure = FAILURE_OF_ERRNO.get(error, DialFailure.INTERNAL)
        text = errno.errorcode.get(error, str(error))
        self._detail = f"{address[0]} port {address[1]}: {text}"

    def _timed_out(self) -> None:
        if not self._done:
            self._fail(DialFailure.TIMED_OUT, "no answer in time")

    def _fail(self, failure: DialFailure, detail: str) -> None:
        failed = self._failed
        self._finish()
        failed(failure, detail)

    def _finish(self) -> None:
        self._done = True
        # The callbacks refer to this object: without this, only garbage collection would free both.
        self._connected, self._failed = _nobody, _nobody
        if self._next is not None:
            self._next.cancel()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for sock in self._socks:
            self._poller.close(sock)
        self._socks.clear()


Reached = Callable[[Any], None]  # each dialer gives its own kind of end


class TunnelResetError(ConnectionResetError):
    """A tunnel was reset, or lost, on its path; the message says how it ended."""


class Dialing(Protocol):
    """A pending dial."""

    def cancel(self) -> None:
        """Cancel, without a callback."""


class AnyDialer(Protocol):
    """The interface of all dialers."""

    def dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> Dialing:
        """Open a connection; see DirectDialer."""


#: A dial as a function of its deadline and its two callbacks.
Start = Callable[[float, Reached, Failed], Dialing]


async def reach(
    start: Start, target: HostPort, timeout_s: float, under_way: set[Failed] | None = None
) -> BaseEnd:
    """Dial and wait; cancellation cancels the dial.

    While waiting, ``under_way`` contains a function that ends the dial for a given reason.

    Raises:
        DialError: the target was not reached.
    """
    answer: asyncio.Future[BaseEnd] = asyncio.get_running_loop().create_future()

    def reached(end: BaseEnd) -> None:
        if answer.done():
            end.abort(Ending.CANCELLED)
        else:
            answer.set_result(end)

    def failed(failure: DialFailure, detail: str) -> None:
        if not answer.done():
            answer.set_exception(DialError(failure, target, detail))

    def give_up(failure: DialFailure, detail: str) -> None:
        dial.cancel()
        failed(failure, detail)

    dial = start(timeout_s, reached, failed)
    if under_way is not None:
        under_way.add(give_up)
    try:
        return await answer
    except asyncio.CancelledError:
        dial.cancel()
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            answer.result().abort(Ending.CANCELLED)  # connected before the cancellation
        raise
    finally:
        if under_way is not None:
            under_way.discard(give_up)


async def reach_by(dialer: AnyDialer, target: HostPort, timeout_s: float) -> BaseEnd:
    """Dial a target without metadata and wait; see ``reach``."""

    def start(timeout_s: float, reached: Reached, failed: Failed) -> Dialing:
        return dialer.dial(target, timeout_s=timeout_s, reached=reached, failed=failed)

    return await reach(start, target, timeout_s)
