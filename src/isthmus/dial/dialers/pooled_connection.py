"""One HTTP/2 connection to a server that many calls share; which call gets it is http2_pool.py."""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from isthmus.dial.dialers.through_server import ServerDial, tls_fault
from isthmus.errors import DialFailure, ProtocolError
from isthmus.net.carriers import PlainCarrier, TlsCarrier
from isthmus.net.resolver import Resolver
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import NOBODY, Http2Stream
from isthmus.tunnel.limits import MIB, Http2Limits
from isthmus.values import HostPort

if TYPE_CHECKING:
    from isthmus.dial.dialers.http2_pool import Http2Pool

CONNECT_S = 30.0
#: What was sent and nobody acknowledges for this long was sent to nobody.
_UNHEARD_MS = 20_000
#: "It is recommended that this value be no smaller than 100" (RFC 9113 section 6.5.2): what is
#: opened before the server has said its own.
_UNTOLD_STREAMS = 100
# Go's servers end connections that ping more often than every five minutes: TCP's own keep-alive
# notices a server that is gone.
_NEVER = float("inf")
# Readers that stop keep their windows: there is room for those of 256 streams over TCP, of all
# streams over a UNIX socket. Beyond it the one that keeps most is reset.
_UDS_LIMITS = Http2Limits(max_streams=1000, ping_every_s=_NEVER, dead_after_s=_NEVER)
# A round trip over the network is longer than one over a UNIX socket.
_TCP_LIMITS = replace(_UDS_LIMITS, stream_window_bytes=MIB, connection_window_bytes=16 * MIB)
_ANYWHERE = HostPort("localhost", 1)  # connecting to the server asks for no target


class _Shared(Http2Connection):
    """An HTTP/2 connection that tells its owner when there may be room, or nothing left to do."""

    __slots__ = ("owner",)

    owner: PooledConnection

    def forget(self, stream: Http2Stream) -> None:
        """A stream is over."""
        super().forget(stream)
        self.owner.look_later()

    def receive(self, view: memoryview) -> None:
        """Also hear the server's first settings, and that it goes away."""
        told, draining = self.got_settings, self.remote_draining
        super().receive(view)
        if told != self.got_settings or draining != self.remote_draining:
            self.owner.look_later()


class _Reaching(ServerDial):
    """Connects to the server, and no further."""

    connection: PooledConnection

    def ask(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """There is a socket."""
        self.connection.connected(sock, context)

    def drop(self) -> None:
        """The connection lets go of what it made."""

    def there(self) -> None:
        """It speaks HTTP/2: the time for connecting is over."""
        self.cancel()


class PooledConnection:
    """One connection from the first attempt on; the owner of its carrier."""

    __slots__ = (
        "_doubted_at", "_looking", "_pool", "_reaching", "carrier", "failure", "http2", "idle_at",
        "made_at",
    )  # fmt: skip

    def __init__(self, pool: Http2Pool) -> None:
        self._pool = pool
        self.carrier: PlainCarrier | TlsCarrier | None = None
        self.http2: _Shared | None = None
        #: What it is for those who waited for it when it never was.
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
        """How many are open."""
        return len(self.http2.streams) if self.http2 is not None else 0

    @property
    def making(self) -> bool:
        """Not connected, or the server has not said how many streams it takes."""
        return self.http2 is None or not self.http2.got_settings

    @property
    def empty(self) -> bool:
        """Connected, and carries nothing."""
        return self.http2 is not None and not self.http2.streams

    @property
    def leaving(self) -> bool:
        """It takes nothing new."""
        http2 = self.http2
        if http2 is None:
            return False
        return http2.remote_draining or http2.closed or http2.last_heard < self._doubted_at

    def doubt(self, since: float) -> None:
        """A call had no answer since then: if nothing else was heard, either, nobody is there."""
        if self.http2 is not None and self.http2.last_heard < since:
            self._doubted_at = since
            self.look_later()

    @property
    def has_room(self) -> bool:
        """A stream can be opened now."""
        http2 = self.http2
        if http2 is None or not http2.can_open or self.leaving:
            return False
        return http2.got_settings or len(http2.streams) < _UNTOLD_STREAMS

    def open(self) -> Http2Stream:
        """Open a stream; there is room."""
        assert self.http2 is not None
        stream = self.http2.open(NOBODY)
        assert stream is not None
        self.idle_at = None
        return stream

    def look_later(self) -> None:
        """Something changed: the pool looks at it when this batch of events is over."""
        if not self._looking:
            self._looking = True
            self._pool.dialer.poller.flush_later(self._look)

    def _look(self) -> None:
        self._looking = False
        self._pool.changed(self)

    # Making it.

    def connected(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """There is a socket: shake hands, or speak at once."""
        carrier: PlainCarrier | TlsCarrier
        place, poller = self._pool.dialer.place, self._pool.dialer.poller
        if place.tcp is not None:
            # A keep-alive is not sent while other bytes wait for their acknowledgement.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNHEARD_MS)
        if context is None:
            carrier = self.carrier = PlainCarrier(self, sock, poller)
            self._speak()
        else:
            carrier = self.carrier = TlsCarrier(
                self, sock, poller, context, server_hostname=place.name
            )
            carrier.begin()
        # What came while nobody owned the socket made its edge already. Not at once: another
        # carrier may be in the middle of the buffer that this one would read into.
        poller.again(carrier.read_again)

    def _speak(self) -> None:
        assert self.carrier is not None
        limits = _UDS_LIMITS if self._pool.dialer.place.tcp is None else _TCP_LIMITS
        http2 = _Shared(self.carrier, client=True, clock=time.monotonic, limits=limits)
        http2.owner = self
        self.http2 = self.carrier.session = http2
        self._reaching.there()
        self._pool.changed(self)  # at once: whoever waits for it should not wait for another

    def _unreached(self, failure: DialFailure, detail: str) -> None:
        self.failure = failure
        self.close(detail)

    # The carrier reports: see CarrierOwner.

    def secured(self) -> None:
        """The server has proved who it is."""
        assert isinstance(self.carrier, TlsCarrier)
        if self.carrier.tls.selected_alpn_protocol() not in ("h2", None):
            self._reaching.server_failed("it does not speak HTTP/2")
        else:
            self._speak()

    def insecure(self, error: ssl.SSLError) -> None:
        """It has not; or it did not like us, which TLS 1.3 says after the handshake."""
        if self.http2 is None:
            self._reaching.server_failed(tls_fault(error))
        else:
            self.close(tls_fault(error), flush=False)

    def violated(self, error: ProtocolError) -> None:
        """It broke HTTP/2: GOAWAY is written."""
        if self.http2 is not None:
            self.http2.flush()
        self.lost(f"broke the protocol: {error}")

    def lost(self, why: str) -> None:
        """The connection is gone: so are its calls."""
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
    """Nobody is told: the connection itself says when it is there."""
