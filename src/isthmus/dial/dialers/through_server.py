"""What the dialers through a connectivity server share: reaching it, one deadline, its words.

How it is asked is through_connect.py (HTTP CONNECT) and through_grpc.py (konnectivity's packets
and KEP-1281's payloads).

A server that cannot be reached is UNREACHABLE, and so is every target behind it; one that was
reached and does not answer as a server is INTERNAL. Either way its place is in the detail. REFUSED
and UNRESOLVED are about the target alone, and only who tried to reach it can say them.

By CONNECT over a UNIX socket, which cannot be reset, a tunnel that is cut is told from one that
ended only as long as we have not half-closed it ourselves: after that, a cut reads as a clean end
of file, and with a konnectivity server always. The other ways tell it always.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from isthmus.errors import ConfigError, DialFailure
from isthmus.links.go_errors import failure_in
from isthmus.net.connect import (
    FAILURE_OF_ERRNO,
    SPENT,
    Address,
    Connecting,
    Failed,
    literal,
)
from isthmus.net.descriptors import for_a_peer
from isthmus.net.poller import Poller
from isthmus.net.resolver import Cancel, Resolver
from isthmus.tunnel.end import BaseEnd
from isthmus.values import NOTHING, HostPort, RequestMetadata, is_address

Reached = Callable[[BaseEnd], None]

#: A UNIX socket whose queue is full says so at once, and never again. Many may be waiting.
_KNOCK_AGAIN_S = 0.005
_KNOCK_AGAIN_MOST_S = 0.1
# A server that vanished with its host is noticed even when nobody sends: after 30 s.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_SENTENCE = re.compile(r"cannot dial \S+: (.*)", re.DOTALL)
_MOST_DETAIL = 500
#: The alert of TLS 1.3 (RFC 8446 §6.2), which comes after the handshake as the client sees it.
_WANTS_CERTIFICATE = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlace:
    """Where a server's frontend is: a UNIX socket, or a TCP port, which speaks TLS as a rule.

    ``context`` is asked for each connection, so that it can be reloaded; for gRPC it has to offer
    ALPN ``h2``. A TCP port without one is spoken to in the clear. ``server_hostname`` is the name
    in its certificate, that of ``tcp`` when empty.

    ``keeps_half_close`` is what Isthmus' servers do and konnectivity's do not: there the end of
    one direction ends both. None: the server says it itself (HALF_CLOSE). What
    hangs on it is told by each dialer.
    """

    uds: str = ""
    tcp: HostPort | None = None
    context: Callable[[], ssl.SSLContext] | None = None
    server_hostname: str = ""
    keeps_half_close: bool | None = None

    def __post_init__(self) -> None:
        if bool(self.uds) == (self.tcp is not None):
            raise ValueError("a server is at a UNIX socket or at a TCP port, one of them")
        if self.tcp is None and self.context is not None:
            raise ValueError("TLS belongs to a TCP port, and only there")

    def __str__(self) -> str:
        return self.uds or str(self.tcp)

    @property
    def name(self) -> str:
        """What the certificate of a TCP server has to say."""
        return self.server_hostname or (self.tcp.host.rstrip(".") if self.tcp else "")


def failure_said(text: str) -> tuple[DialFailure, str]:
    """Read a refusal: ours say ``cannot dial TARGET: VALUE[: DETAIL]``, Go's say what Go says."""
    text = " ".join(text.split())[:_MOST_DETAIL]
    found = _SENTENCE.fullmatch(text)
    value, _, detail = found[1].partition(": ") if found else ("", "", "")
    for failure in DialFailure:
        if value == failure.value:
            return failure, detail
    if DialFailure.NO_AGENT.value in text.lower():  # "No agent available", and Go's CONNECT
        return DialFailure.NO_AGENT, text
    return failure_in(text), text


#: A UNIX socket is a file, which a server that does not run may have taken with it.
_FAILURE_OF_ERRNO = {**FAILURE_OF_ERRNO, errno.ENOENT: DialFailure.REFUSED}


class _Knocking:
    """Connects to a UNIX socket; as Connecting does for TCP."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        path: str,
        connected: Callable[[socket.socket, int], None],
        failed: Failed,
    ) -> None:
        self._loop = loop
        self._path = path
        self._connected = connected
        self._failed = failed
        self._again: asyncio.TimerHandle | None = None
        self._pause_s = _KNOCK_AGAIN_S
        self._knock()

    def _knock(self) -> None:
        self._again = None
        try:
            kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
            sock = for_a_peer(socket.socket(socket.AF_UNIX, kind))
        except OSError as exc:
            self._failed(DialFailure.TOO_MANY, str(exc.strerror))
            return
        try:
            error = sock.connect_ex(self._path)
        except (OSError, ValueError) as exc:  # too long for a socket's address, or a NUL in it
            sock.close()
            self._failed(DialFailure.INTERNAL, str(exc))
            return
        if error == 0:
            self._connected(sock, 0)
            return
        sock.close()
        if error == errno.EAGAIN:
            self._again = self._loop.call_later(self._pause_s, self._knock)
            self._pause_s = min(2 * self._pause_s, _KNOCK_AGAIN_MOST_S)
        else:
            failure = _FAILURE_OF_ERRNO.get(error, DialFailure.INTERNAL)
            self._failed(failure, errno.errorcode.get(error, str(error)))

    def cancel(self) -> None:
        if self._again is not None:
            self._again.cancel()


def _nobody(*_: object) -> None:
    """Stand in for callbacks of a dial that is over."""


#: What is known of a target when the server, or the proxy, on the way to it cannot be reached; the
#: rest says the same of both.
OF_THE_WAY = {
    DialFailure.REFUSED: DialFailure.UNREACHABLE,
    DialFailure.UNRESOLVED: DialFailure.UNREACHABLE,
}


class ServerDial:
    """One dial under way; tells once, by one of two callbacks, unless cancelled.

    Subclasses ask the server once there is a connection (``ask``), say ``won`` or ``fail``, and
    let go of what they made when the dial is over without success (``drop``).
    """

    #: What to say about the request besides its target.
    asking: RequestMetadata = NOTHING

    def __init__(
        self,
        dialer: ServerDialer,
        target: HostPort,
        *,
        timeout_s: float,
        reached: Reached,
        failed: Failed,
    ) -> None:
        self.loop = dialer.loop
        self.poller = dialer.poller
        self.place = dialer.place
        self.target = target
        self._reached = reached
        self._failed = failed
        self._attempt: Connecting | _Knocking | None = None
        self._cancel_lookup: Cancel | None = None
        self.done = False
        self._timeout_s = timeout_s
        self._deadline = self.loop.call_later(timeout_s, self._timed_out)

    def cancel(self) -> None:
        """Give up silently."""
        if not self.done:
            self._finish()
            self._let_go()

    def begin(self, resolver: Resolver) -> None:
        """Connect to the server."""
        place = self.place
        if place.tcp is None:
            attempt = _Knocking(self.loop, place.uds, self._connected, self._not_there)
            self._attempt = None if self.done else attempt
        elif is_address(place.tcp.host):
            self._try_each([literal(place.tcp.host, place.tcp.port)])
        else:
            cancel = resolver.lookup(place.tcp, self._try_each, self._not_there)
            self._cancel_lookup = None if self.done or self._attempt is not None else cancel

    def _try_each(self, addresses: Sequence[Address]) -> None:
        self._cancel_lookup = None
        if not self.done:
            self._attempt = Connecting(
                self.loop,
                self.poller,
                addresses,
                timeout_s=self._timeout_s,  # ours is over before
                connected=self._connected,
                failed=self._not_there,
            )

    def _connected(self, sock: socket.socket, events: int) -> None:
        self._attempt = None
        context = None
        if self.place.tcp is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
        if self.place.context is not None:
            try:
                context = self.place.context()
            except (OSError, ConfigError) as exc:
                self.poller.close(sock)
                self.server_failed(str(exc))
                return
        self.ask(sock, context)

    def _not_there(self, failure: DialFailure, detail: str) -> None:
        why = f"{failure.value}: {detail}" if detail else failure.value
        text = f"connectivity server {self.place} cannot be reached: {why}"
        self.fail(OF_THE_WAY.get(failure, failure), text)

    # What subclasses say, and what they give.

    def ask(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """Ask for the target, by TLS if there is a context; what came already made its edge."""
        raise NotImplementedError

    def drop(self) -> None:
        """End what was made of the socket."""
        raise NotImplementedError

    def too_late(self) -> tuple[DialFailure, str]:
        """What is known when the time is over."""
        return DialFailure.TIMED_OUT, f"no answer from the connectivity server {self.place} in time"

    def won(self, end: BaseEnd) -> None:
        """The target is reached."""
        reached = self._reached
        self._finish()
        reached(end)

    def fail(self, failure: DialFailure, detail: str) -> None:
        """It is not."""
        if not self.done:
            failed = self._failed
            self._finish()
            self._let_go()
            failed(failure, detail)

    def server_failed(self, why: str) -> None:
        """The server is there, and cannot be asked or does not answer as one."""
        self.fail(DialFailure.INTERNAL, f"connectivity server {self.place}: {why}")

    def _timed_out(self) -> None:
        self.fail(*self.too_late())

    def _finish(self) -> None:
        self.done = True
        # Whoever is called back keeps us: without this, neither is freed until a collection.
        self._reached, self._failed = _nobody, _nobody
        self._deadline.cancel()

    def _let_go(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
        cancel, self._cancel_lookup = self._cancel_lookup, None
        if cancel is not None:
            cancel()
        self.drop()


class ServerDialer:
    """Dials targets through one server."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        resolver: Resolver,
        place: ServerPlace,
    ) -> None:
        self.loop = loop
        self.poller = poller
        self.resolver = resolver
        self.place = place

    def make_dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> ServerDial:
        """Make a dial of this dialer's kind."""
        raise NotImplementedError

    def dial(
        self,
        target: HostPort,
        *,
        timeout_s: float,
        reached: Reached,
        failed: Failed,
        asking: RequestMetadata = NOTHING,
    ) -> ServerDial:
        """Open a connection; the server, or its agent, looks the target's name up.

        ``timeout_s`` is for all of it. The callbacks may come before this returns. ``asking`` is
        sent along; the server believes it of clients that it knows.
        """
        dial = self.make_dial(target, timeout_s=timeout_s, reached=reached, failed=failed)
        dial.asking = asking
        if timeout_s <= 0:
            dial.fail(DialFailure.TIMED_OUT, SPENT)
        else:
            dial.begin(self.resolver)
        return dial


def tls_fault(error: ssl.SSLError) -> str:
    """Say why a handshake with a server failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate: {error.verify_message}"
    if error.reason in _WANTS_CERTIFICATE:
        return "it wants a client certificate, and none was shown"
    return f"TLS: {error.reason or error}"
