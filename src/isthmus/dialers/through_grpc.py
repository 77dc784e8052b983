"""The dialer through a connectivity server's gRPC frontend: konnectivity's /ProxyService/Proxy.

As konnectivity-client's single-use tunnels: one HTTP/2 connection and one call per dial. What the
protocol can say of half-closes and resets is told in tunnel/proxy_call.py.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import time
from dataclasses import replace

from isthmus import __version__
from isthmus.dialers.through_server import (
    Reached,
    ServerDial,
    ServerDialer,
    failure_said,
    tls_fault,
)
from isthmus.errors import DialFailure, ProtocolError
from isthmus.net.carriers import PlainCarrier, TlsCarrier
from isthmus.net.connect import Failed
from isthmus.net.poller import Poller
from isthmus.tunnel.end import Ending
from isthmus.tunnel.http2 import MIB, Http2Connection, Http2Limits
from isthmus.tunnel.http2_calls import NOBODY
from isthmus.tunnel.proxy_call import PATH, CallEnd
from isthmus.values import HostPort
from isthmus.wire.asking import headers_of
from isthmus.wire.grpc import CONTENT_TYPE, Status

# Go's frontend ends connections that ping more often than every five minutes: TCP's own
# keep-alive notices a server that is gone.
_NEVER = float("inf")
_UDS_LIMITS = Http2Limits(max_streams=1, ping_every_s=_NEVER, dead_after_s=_NEVER)
# A round trip over the network is longer than one over a UNIX socket.
_TCP_LIMITS = replace(_UDS_LIMITS, stream_window_bytes=MIB, connection_window_bytes=16 * MIB)

FAILURE_OF_STATUS = {
    Status.PERMISSION_DENIED: DialFailure.DENIED,
    Status.UNAUTHENTICATED: DialFailure.DENIED,
    Status.DEADLINE_EXCEEDED: DialFailure.TIMED_OUT,
}


class _Connection:
    """The connection of one call: the owner of its carrier, and proxy_call.Caller."""

    __slots__ = ("_dial", "_loop", "_poller", "carrier", "end", "http2", "place")

    def __init__(self, dial: GrpcDial, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        self._dial: GrpcDial | None = dial
        self._loop = dial.loop
        self._poller: Poller = dial.poller
        self.place = dial.place
        self.http2: Http2Connection | None = None
        self.end: CallEnd | None = CallEnd(
            self,
            random=secrets.randbits(62) + 1,
            clock=time.monotonic,
            half_closes=dial.place.keeps_half_close,
        )
        self.carrier: PlainCarrier | TlsCarrier | None
        if context is None:
            self.carrier = PlainCarrier(self, sock, dial.poller)
        else:
            self.carrier = TlsCarrier(
                self, sock, dial.poller, context, server_hostname=self.place.name
            )

    def begin(self) -> None:
        """Shake hands, or call at once."""
        carrier = self.carrier
        if isinstance(carrier, TlsCarrier):
            carrier.begin()
        else:
            self._call()
        if carrier is not None:
            # What came while nobody owned the socket made its edge already. Not at once: another
            # carrier may be in the middle of the buffer that this one would read into.
            self._poller.again(carrier.read_again)

    def _call(self) -> None:
        carrier, end, dial = self.carrier, self.end, self._dial
        assert carrier is not None and end is not None and dial is not None
        tcp, tls = self.place.tcp is not None, isinstance(carrier, TlsCarrier)
        self.http2 = Http2Connection(
            carrier, client=True, clock=time.monotonic, limits=_TCP_LIMITS if tcp else _UDS_LIMITS
        )
        carrier.session = self.http2
        stream = self.http2.open(NOBODY)
        assert stream is not None  # the first of a new connection
        stream.handler = end
        headers = (
            (b":method", b"POST"),
            (b":scheme", b"https" if tls else b"http"),
            (b":path", PATH),
            (b":authority", str(self.place.tcp).encode() if tcp else b"localhost"),
            (b"content-type", CONTENT_TYPE),
            (b"user-agent", f"isthmus/{__version__}".encode()),
            (b"te", b"trailers"),
            *headers_of(dial.asking),
        )
        end.call(stream, headers, str(dial.target))

    # The call reports: see proxy_call.Caller.

    def dialed(self) -> None:
        """The target is reached."""
        dial, self._dial = self._dial, None
        if dial is not None and self.end is not None:
            dial.dialed(self.end)

    def refused(self, error: str) -> None:
        """It is not."""
        dial, self._dial = self._dial, None
        if dial is not None:
            dial.fail(*failure_said(error))

    def call_failed(self, status: Status, text: str) -> None:
        """There is no answer."""
        dial, self._dial = self._dial, None
        if dial is not None:
            failure = FAILURE_OF_STATUS.get(status)
            if failure is not None:
                dial.fail(failure, text)
            else:
                dial.server_failed(f"the call ended: {status.go_name} {text}".rstrip())

    def hang_up(self) -> None:
        """Close, after what is still to be said."""
        # Not here: this may be the middle of a read, or of a batch of writes.
        self._poller.flush_later(self._close)

    def look_later(self, delay_s: float) -> None:
        """A reply may have paused."""
        if self.end is not None:
            self._loop.call_later(delay_s, self.end.look)

    # The carrier reports: see CarrierOwner.

    def secured(self) -> None:
        """The server has proved who it is."""
        assert isinstance(self.carrier, TlsCarrier)
        if self.carrier.tls.selected_alpn_protocol() not in ("h2", None):
            self._failed("it does not speak HTTP/2")
        else:
            self._call()

    def insecure(self, error: ssl.SSLError) -> None:
        """It has not; lost() follows."""
        self._failed(tls_fault(error))

    def violated(self, error: ProtocolError) -> None:
        """It broke HTTP/2: GOAWAY is written."""
        self._failed(f"broke the protocol: {error}")
        if self.http2 is not None:
            self.http2.flush()
        self.lost(str(error))

    def lost(self, why: str) -> None:
        """The connection is gone: so is the call."""
        http2 = self.http2
        self._close()
        if http2 is not None:
            http2.lost(why)  # which resets the end
        self._failed(why)

    def _failed(self, why: str) -> None:
        dial, self._dial = self._dial, None
        if dial is not None:
            dial.server_failed(why)

    def leave(self) -> None:
        """Nobody waits for the answer any more: take the dial back."""
        self._dial = None
        if self.end is not None:
            self.end.abort(Ending.CANCELLED)

    def _close(self) -> None:
        self.end = None
        carrier, self.carrier = self.carrier, None
        http2, self.http2 = self.http2, None
        if carrier is not None:
            if http2 is not None and not carrier.closed:
                http2.flush()
            carrier.session = None
            carrier.close()


class GrpcDial(ServerDial):
    """One call; see ServerDial."""

    _connection: _Connection | None = None

    def ask(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """Call."""
        self._connection = _Connection(self, sock, context)
        self._connection.begin()

    def dialed(self, end: CallEnd) -> None:
        """The target is reached."""
        self._connection = None
        self.won(end)

    def drop(self) -> None:
        """Take it back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.leave()


class GrpcDialer(ServerDialer):
    """Dials by konnectivity's gRPC; see ServerDialer."""

    def make_dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> GrpcDial:
        """Make one."""
        return GrpcDial(self, target, timeout_s=timeout_s, reached=reached, failed=failed)
