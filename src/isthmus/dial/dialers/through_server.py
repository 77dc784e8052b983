"""The common part of dialers through a connectivity server: connecting, the deadline, its texts.

The requests are in through_connect.py (HTTP CONNECT) and through_grpc.py (konnectivity's packets
and KEP-1281's payloads).

A server that cannot be reached is UNREACHABLE, and so is every target behind it; a server that was
reached and does not answer properly is INTERNAL. In both cases the detail names the server. REFUSED
and UNRESOLVED are only about the target, and only the program that dials it can report them.

With CONNECT over a UNIX socket, which cannot be reset, a cut tunnel can be distinguished from an
ended one only until we half-close it: after that, a cut reads as a clean end
of file, and with a konnectivity server always. The other protocols always show the difference.
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

#: A UNIX socket with a full queue fails at once, without a later event. Many may be waiting.
_KNOCK_AGAIN_S = 0.005
_KNOCK_AGAIN_MOST_S = 0.1
# A server whose host vanished is detected even without traffic: after 30 s.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
_SENTENCE = re.compile(r"cannot dial \S+: (.*)", re.DOTALL)
_MOST_DETAIL = 500
#: The alert of TLS 1.3 (RFC 8446 §6.2), which comes after the handshake as the client sees it.
_WANTS_CERTIFICATE = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlace:
    """The address of a server's frontend: a UNIX socket, or a TCP port, usually with TLS.

    ``context`` is called for each connection, so that it can be reloaded; for gRPC it has to offer
    ALPN ``h2``. A TCP port without a context is plain text. ``server_hostname`` is the name
    in its certificate, by default that of ``tcp``.

    ``keeps_half_close``: Isthmus's servers preserve half-closes, konnectivity's do not: there the
    end of one direction ends both. None: the server announces it (HALF_CLOSE). Each dialer
    documents the consequences.
    """

    uds: str = ""
    tcp: HostPort | None = None
    context: Callable[[], ssl.SSLContext] | None = None
    server_hostname: str = ""
    keeps_half_close: bool | None = None

    def __post_init__(self) -> None:
        if bool(self.uds) == (self.tcp is not None):
            raise ValueError("a server needs either a UNIX socket or a TCP port")
        if self.tcp is None and self.context is not None:
            raise ValueError("TLS is only for TCP ports")

    def __str__(self) -> str:
        return self.uds or str(self.tcp)

    @property
    def name(self) -> str:
        """The required name in a TCP server's certificate."""
        return self.server_hostname or (self.tcp.host.rstrip(".") if self.tcp else "")


def failure_said(text: str) -> tuple[DialFailure, str]:
    """Parse a refusal: ours are ``cannot dial TARGET: VALUE[: DETAIL]``, Go's are Go's texts."""
    text = " ".join(text.split())[:_MOST_DETAIL]
    found = _SENTENCE.fullmatch(text)
    value, _, detail = found[1].partition(": ") if found else ("", "", "")
    for failure in DialFailure:
        if value == failure.value:
            return failure, detail
    if DialFailure.NO_AGENT.value in text.lower():  # "No agent available", and Go's CONNECT
        return DialFailure.NO_AGENT, text
    return failure_in(text), text


#: A UNIX socket is a file, which a stopped server may have removed.
_FAILURE_OF_ERRNO = {**FAILURE_OF_ERRNO, errno.ENOENT: DialFailure.REFUSED}


class _Knocking:
    """Connects to a UNIX socket, as Connecting does for TCP."""

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
        except (OSError, ValueError) as exc:  # too long for a socket's address, or contains a NUL
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
    """Replace the callbacks of a finished dial."""


#: What a failure to reach the server, or its proxy, means for the target; other failures mean the
#: same for both.
OF_THE_WAY = {
    DialFailure.REFUSED: DialFailure.UNREACHABLE,
    DialFailure.UNRESOLVED: DialFailure.UNREACHABLE,
}


class ServerDial:
    """One pending dial; calls one of two callbacks once, unless cancelled.

    Subclasses send the request once there is a connection (``ask``), call ``won`` or ``fail``, and
    clean up if the dial ends without success (``drop``).
    """

    #: The request metadata besides the target.
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
        """Cancel, without a callback."""
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
                timeout_s=self._timeout_s,  # ours expires before
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

    # For and by subclasses.

    def ask(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """Request the target, with TLS if there is a context; earlier edges are not repeated."""
        raise NotImplementedError

    def drop(self) -> None:
        """Close the objects made from the socket."""
        raise NotImplementedError

    def too_late(self) -> tuple[DialFailure, str]:
        """The failure after a timeout."""
        return DialFailure.TIMED_OUT, f"no answer from the connectivity server {self.place} in time"

    def won(self, end: BaseEnd) -> None:
        """The target was reached."""
        reached = self._reached
        self._finish()
        reached(end)

    def fail(self, failure: DialFailure, detail: str) -> None:
        """The dial failed."""
        if not self.done:
            failed = self._failed
            self._finish()
            self._let_go()
            failed(failure, detail)

    def server_failed(self, why: str) -> None:
        """The server was reached, but cannot be asked or does not answer properly."""
        self.fail(DialFailure.INTERNAL, f"connectivity server {self.place}: {why}")

    def _timed_out(self) -> None:
        self.fail(*self.too_late())

    def _finish(self) -> None:
        self.done = True
        # The callbacks refer to this object: without this, only garbage collection would free both.
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
        """Create a dial of this dialer's kind."""
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
        """Open a connection; the server, or its agent, resolves the target's name.

        ``timeout_s`` is the total limit. The callbacks may be called before this returns.
        ``asking`` is sent along; the server trusts it from authenticated clients.
        """
        dial = self.make_dial(target, timeout_s=timeout_s, reached=reached, failed=failed)
        dial.asking = asking
        if timeout_s <= 0:
            dial.fail(DialFailure.TIMED_OUT, SPENT)
        else:
            dial.begin(self.resolver)
        return dial


def tls_fault(error: ssl.SSLError) -> str:
    """Why a handshake with a server failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate: {error.verify_message}"
    if error.reason in _WANTS_CERTIFICATE:
        return "it requires a client certificate, and none was sent"
    return f"TLS: {error.reason or error}"
