"""A few HTTP/2 connections to one server, shared by many calls.

A call gets a stream of the oldest connection that has room: below the server's own limit of
concurrent streams, without GOAWAY, not lost, and not so old that its certificates may have
been replaced. If there is none, another connection is opened, up to a limit; beyond it calls wait
for a stream to end. Idle connections are closed after a while. The handler of a stream interprets
it; a connection that is lost notifies every handler at once, and the next call opens
a new one.

gRPC dialers share ``PooledDialer``: one call per dial. through_grpc.py has the kinds of
calls.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from isthmus import __version__
from isthmus.dial.dialers.through_server import ServerDial, ServerDialer, ServerPlace, tls_fault
from isthmus.errors import DialFailure, ProtocolError
from isthmus.net.carriers import PlainCarrier, TlsCarrier
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import NOBODY, Http2Stream
from isthmus.tunnel.limits import MIB, Http2Limits
from isthmus.values import HostPort
from isthmus.wire.grpc import CONTENT_TYPE
from isthmus.wire.http2 import Headers
from isthmus.wire.request_metadata import HALF_CLOSE

IDLE_S = 60.0
MOST_CONNECTIONS = 16
#: The limit of idle ones.
MOST_IDLE = 2
MOST_WAITING = 16_384
#: New calls use connections younger than this, so that renewed certificates soon take effect.
_FRESH_S = 600.0
_COARSE_S = 0.010
_CLOSED = "the dialer is closed"

Opened = Callable[[Http2Stream], None]
Unopened = Callable[[DialFailure, str], None]


class Waiting:
    """One call that waits for a stream."""

    __slots__ = ("failed", "opened")

    def __init__(self, opened: Opened, failed: Unopened) -> None:
        self.opened: Opened | None = opened
        self.failed: Unopened | None = failed

    def cancel(self) -> None:
        """Cancel, without a callback."""
        self.opened = self.failed = None


class Http2Pool:
    """The connections to one server, reached as its dialer reaches it."""

    def __init__(
        self,
        dialer: ServerDialer,
        *,
        most_connections: int = MOST_CONNECTIONS,
        most_idle: int = MOST_IDLE,
        idle_s: float = IDLE_S,
    ) -> None:
        self.dialer = dialer
        self.connections: list[PooledConnection] = []
        self._waiting: deque[Waiting] = deque()
        self._most_connections = most_connections
        self._most_idle = most_idle
        self._idle_s = idle_s
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def ask(self, opened: Opened, failed: Unopened) -> Waiting:
        """Open a stream, on which nothing is sent yet; calls one of the callbacks once.

        The owner must set a handler and send headers at once. The callbacks may be called before
        this returns.
        """
        asked = Waiting(opened, failed)
        if self._closed or len(self._waiting) >= MOST_WAITING:
            why = _CLOSED if self._closed else "too many calls are waiting for it"
            failure = DialFailure.INTERNAL if self._closed else DialFailure.TOO_MANY
            failed(failure, f"connectivity server {self.dialer.place}: {why}")
            return asked
        self._waiting.append(asked)
        self._serve()
        return asked

    def close(self) -> None:
        """Close every connection and its streams; no more streams can be opened."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._fail_waiting(
            DialFailure.INTERNAL, f"connectivity server {self.dialer.place}: {_CLOSED}"
        )
        for connection in list(self.connections):
            connection.close(_CLOSED)

    def doubt(self, stream: Http2Stream, since: float) -> None:
        """Report that a stream opened at ``since`` was not answered in time."""
        for connection in self.connections:
            if connection.http2 is stream.connection:
                connection.doubt(since)

    # Serving waiting calls.

    def _serve(self) -> None:
        """Give waiting calls streams if there is room; otherwise open a connection."""
        waiting = self._waiting
        while waiting:
            opened = waiting[0].opened
            if opened is None:
                waiting.popleft()  # cancelled
                continue
            found = self._roomy()
            if found is None:
                return
            waiting.popleft().cancel()
            opened(found.open())

    def _roomy(self) -> PooledConnection | None:
        """Find the connection for the next call; without one, start one."""
        now = self.dialer.loop.time()
        roomy = [it for it in self.connections if it.has_room]
        for connection in roomy:
            if now - connection.made_at < _FRESH_S:
                return connection
        usable = [it for it in self.connections if not it.leaving]
        if len(usable) >= self._most_connections:
            return roomy[0] if roomy else None
        # A pending connection may suffice; an empty one without room never has any.
        if not any(it.making or (not it.streams and it not in roomy) for it in usable):
            connection = PooledConnection(self)
            self.connections.append(connection)
            connection.begin(self.dialer.resolver)
        return None

    def changed(self, connection: PooledConnection) -> None:
        """A stream ended, or the state of a connection changed."""
        if self._waiting:
            self._serve()
        if connection in self.connections and connection.empty:
            self._is_idle(connection)

    def gone(self, connection: PooledConnection, why: str) -> None:
        """A connection ended; if it never opened, the waiting calls fail."""
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        if connection.http2 is None:
            self._fail_waiting(connection.failure, why)
        elif self._waiting and not self._closed:
            self._serve()

    def _fail_waiting(self, failure: DialFailure, why: str) -> None:
        waiting, self._waiting = self._waiting, deque()
        for asked in waiting:
            if (failed := asked.failed) is not None:
                asked.cancel()
                failed(failure, why)

    # Idling.

    def _is_idle(self, connection: PooledConnection) -> None:
        idle = sum(it.empty for it in self.connections)
        if connection.leaving or idle > self._most_idle:
            connection.close("idle")
            return
        if connection.idle_at is None:
            connection.idle_at = self.dialer.loop.time()
        if self._timer is None:
            self._timer = self.dialer.loop.call_later(self._idle_s, self._end_idle)

    def _end_idle(self) -> None:
        self._timer = None
        # The loop's clock is coarse: a timer may fire slightly early.
        due = self.dialer.loop.time() - self._idle_s + _COARSE_S
        for connection in list(self.connections):
            if connection.idle_at is not None and connection.idle_at <= due:
                connection.close("idle")
        left = [it.idle_at for it in self.connections if it.idle_at is not None]
        if left:
            next_s = min(left) - due
            self._timer = self.dialer.loop.call_later(max(next_s, _COARSE_S), self._end_idle)


CONNECT_S = 30.0
#: A connection whose data is unacknowledged for this long is dead.
_UNHEARD_MS = 20_000
#: "It is recommended that this value be no smaller than 100" (RFC 9113 section 6.5.2): the limit of
#: streams
#: before the server has sent its own.
_UNTOLD_STREAMS = 100
# Go's servers end connections that ping more often than every five minutes: TCP's own keep-alive
# notices a server that is gone.
_NEVER = float("inf")
# Stopped readers keep their windows: there is room for those of 256 streams over TCP, of all
# streams over a UNIX socket. Beyond that the stream that holds the most is reset.
_UDS_LIMITS = Http2Limits(max_streams=1000, ping_every_s=_NEVER, dead_after_s=_NEVER)
# A round trip over the network is longer than one over a UNIX socket.
_TCP_LIMITS = replace(_UDS_LIMITS, stream_window_bytes=MIB, connection_window_bytes=16 * MIB)
_ANYWHERE = HostPort("localhost", 1)  # connecting to the server needs no target


class _Shared(Http2Connection):
    """An HTTP/2 connection that notifies its owner when there may be room, or when it is idle."""

    __slots__ = ("owner",)

    owner: PooledConnection

    def forget(self, stream: Http2Stream) -> None:
        """A stream is over."""
        super().forget(stream)
        self.owner.look_later()

    def receive(self, view: memoryview) -> None:
        """Also detect the server's first settings and its GOAWAY."""
        told, draining = self.got_settings, self.remote_draining
        super().receive(view)
        if told != self.got_settings or draining != self.remote_draining:
            self.owner.look_later()


class _Reaching(ServerDial):
    """Connects to the server only, not to a target."""

    connection: PooledConnection

    def ask(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """There is a socket."""
        self.connection.connected(sock, context)

    def drop(self) -> None:
        """The connection lets go of what it made."""

    def there(self) -> None:
        """HTTP/2 is established: stop the connect timeout."""
        self.cancel()


class PooledConnection:
    """One connection from its first attempt on; the owner of its carrier."""

    __slots__ = (
        "_doubted_at", "_looking", "_pool", "_reaching", "carrier", "failure", "http2", "idle_at",
        "made_at",
    )  # fmt: skip

    def __init__(self, pool: Http2Pool) -> None:
        self._pool = pool
        self.carrier: PlainCarrier | TlsCarrier | None = None
        self.http2: _Shared | None = None
        #: The failure of the waiting calls if it never opens.
        self.failure = DialFailure.INTERNAL
        self.made_at = pool.dialer.loop.time()
        self.idle_at: float | None = None
        self._looking = False
        self._doubted_at = float("-inf")
        self._reaching = _Reaching(
            pool.dialer, _ANYWHERE, timeout_s=CONNECT_S, reached=_nobody, failed=self._unreached
        )
        self._reaching.connection = self

    def __repr__(self) -> str:
        return f"<PooledConnection {self._pool.dialer.place}, {self.streams} streams>"

    def begin(self, resolver: Resolver) -> None:
        """Connect."""
        self._reaching.begin(resolver)

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return len(self.http2.streams) if self.http2 is not None else 0

    @property
    def making(self) -> bool:
        """Whether it is not connected, or the server's stream limit is still unknown."""
        return self.http2 is None or not self.http2.got_settings

    @property
    def empty(self) -> bool:
        """Whether it is connected and idle."""
        return self.http2 is not None and not self.http2.streams

    @property
    def leaving(self) -> bool:
        """Whether it accepts no new streams."""
        http2 = self.http2
        if http2 is None:
            return False
        return http2.remote_draining or http2.closed or http2.last_heard < self._doubted_at

    def doubt(self, since: float) -> None:
        """A call was not answered since then: without other traffic the server is gone."""
        if self.http2 is not None and self.http2.last_heard < since:
            self._doubted_at = since
            self.look_later()

    @property
    def has_room(self) -> bool:
        """Whether a stream can be opened now."""
        http2 = self.http2
        if http2 is None or not http2.can_open or self.leaving:
            return False
        return http2.got_settings or len(http2.streams) < _UNTOLD_STREAMS

    def open(self) -> Http2Stream:
        """Open a stream; requires room."""
        assert self.http2 is not None
        stream = self.http2.open(NOBODY)
        assert stream is not None
        self.idle_at = None
        return stream

    def look_later(self) -> None:
        """The state changed: notify the pool after this batch of events."""
        if not self._looking:
            self._looking = True
            self._pool.dialer.poller.flush_later(self._look)

    def _look(self) -> None:
        self._looking = False
        self._pool.changed(self)

    # Opening the connection.

    def connected(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """There is a socket: shake hands, or speak at once."""
        carrier: PlainCarrier | TlsCarrier
        place, poller = self._pool.dialer.place, self._pool.dialer.poller
        if place.tcp is not None:
            # A keep-alive is not sent while other bytes are unacknowledged.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNHEARD_MS)
        if context is None:
            carrier = self.carrier = PlainCarrier(self, sock, poller)
            self._speak()
        else:
            carrier = self.carrier = TlsCarrier(
                self, sock, poller, context, server_hostname=place.name
            )
            carrier.begin()
        # Data that arrived before registration will not trigger another edge. Not at once: another
        # carrier may be using the buffer that this one would read into.
        poller.again(carrier.read_again)

    def _speak(self) -> None:
        assert self.carrier is not None
        limits = _UDS_LIMITS if self._pool.dialer.place.tcp is None else _TCP_LIMITS
        http2 = _Shared(self.carrier, client=True, clock=time.monotonic, limits=limits)
        http2.owner = self
        self.http2 = self.carrier.session = http2
        self._reaching.there()
        self._pool.changed(self)  # at once, so that waiting calls do not open another connection

    def _unreached(self, failure: DialFailure, detail: str) -> None:
        self.failure = failure
        self.close(detail)

    # The carrier reports: see CarrierOwner.

    def secured(self) -> None:
        """The TLS handshake succeeded."""
        assert isinstance(self.carrier, TlsCarrier)
        if self.carrier.tls.selected_alpn_protocol() not in ("h2", None):
            self._reaching.server_failed("it does not support HTTP/2")
        else:
            self._speak()

    def insecure(self, error: ssl.SSLError) -> None:
        """The handshake failed, or the server refused us, which TLS 1.3 reports later."""
        if self.http2 is None:
            self._reaching.server_failed(tls_fault(error))
        else:
            self.close(tls_fault(error), flush=False)

    def violated(self, error: ProtocolError) -> None:
        """The server violated HTTP/2: GOAWAY is written."""
        if self.http2 is not None:
            self.http2.flush()
        self.lost(f"protocol error: {error}")

    def lost(self, why: str) -> None:
        """The connection is lost: fail its calls."""
        if self.http2 is None:
            self._reaching.server_failed(why)
        self.close(why)

    def close(self, why: str, *, flush: bool = True) -> None:
        """End it, and every stream in it."""
        self._reaching.cancel()
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            if flush and self.http2 is not None and not carrier.closed:
                self.http2.flush()
            carrier.session = None
            carrier.close()
        if self.http2 is not None:
            self.http2.lost(why)
        self._pool.gone(self, why)


def _nobody(*_: object) -> None:
    """Do nothing: the connection itself reports when it is established."""


PATH = b"/ProxyService/Proxy"
#: How often a call is repeated that the server refused unprocessed: shutting down, or full.
_MOST_REPEATS = 3


class PooledDial(ServerDial):
    """One dial with its own call; see ServerDial. Subclasses make and cancel the call."""

    _dialer: PooledDialer
    _waiting: Waiting | None = None
    _stream: Http2Stream | None = None
    _called_at = 0.0
    _repeats = 0

    def begin(self, resolver: Resolver) -> None:
        """Open a stream in a shared connection."""
        waiting = self._dialer.pool.ask(self._opened, self._not_opened)
        if self._stream is None and not self.done:
            self._waiting = waiting

    def _opened(self, stream: Http2Stream) -> None:
        self._waiting = None
        self._stream = stream
        self._called_at = time.monotonic()
        self.call(stream)

    def _not_opened(self, failure: DialFailure, why: str) -> None:
        self._waiting = None
        self.fail(failure, why)

    def drop(self) -> None:
        """Cancel the dial."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()
        self._stream = None
        self.take_back()

    def too_late(self) -> tuple[DialFailure, str]:
        """The failure after a timeout."""
        if self._waiting is not None:
            return DialFailure.TIMED_OUT, f"no room at the connectivity server {self.place} in time"
        if self._stream is not None:
            self._dialer.pool.doubt(self._stream, self._called_at)
        return super().too_late()

    # Implemented by each kind of call.

    def call(self, stream: Http2Stream) -> None:
        """Request the target."""
        raise NotImplementedError

    def take_back(self) -> None:
        """Cancel the call, if there is one."""
        raise NotImplementedError

    # Events of every call.

    def not_called(self, text: str) -> None:
        """The server refused the call unprocessed: repeat it."""
        self._stream = None
        self._repeats += 1
        if self._repeats > _MOST_REPEATS:
            self.server_failed(text)
        elif not self.done:
            self.begin(self._dialer.resolver)

    def connection_lost(self, text: str) -> None:
        """The connection was lost before the answer."""
        self._stream = None
        self.server_failed(text)


class PooledDialer(ServerDialer):
    """Dials with calls in shared connections, which ``close`` closes; see ServerDialer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        resolver: Resolver,
        place: ServerPlace,
    ) -> None:
        super().__init__(loop, poller, resolver, place)
        self.pool = Http2Pool(self)
        self.headers: Headers = (
            (b":method", b"POST"),
            (b":scheme", b"https" if place.context is not None else b"http"),
            (b":path", PATH),
            (b":authority", str(place.tcp).encode() if place.tcp is not None else b"localhost"),
            (b"content-type", CONTENT_TYPE),
            (b"user-agent", f"isthmus/{__version__}".encode()),
            (b"te", b"trailers"),
            (HALF_CLOSE, b"1"),
        )

    def close(self) -> None:
        """End every connection to the server, and the tunnels in them."""
        self.pool.close()
