"""The dialer through a connectivity server's gRPC frontend: konnectivity's /ProxyService/Proxy.

One call per dial, as konnectivity-client's single-use tunnels have it, but many calls in one HTTP/2
connection (pooled_dial.py): to gRPC servers, konnectivity's too, that is all the same. What the
protocol can say of half-closes and resets is told in tunnel/proxy_call.py.
"""

from __future__ import annotations

import secrets
import time
from functools import partial

from isthmus.dial.dialers.pooled_dial import PooledDial, PooledDialer
from isthmus.dial.dialers.through_server import Reached, failure_said
from isthmus.errors import DialFailure
from isthmus.net.connect import Failed
from isthmus.tunnel.end import Ending
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.proxy_call import ProxyCall
from isthmus.values import HostPort
from isthmus.wire.grpc import Status
from isthmus.wire.http2 import ErrorCode
from isthmus.wire.request_metadata import headers_of

FAILURE_OF_STATUS = {
    Status.PERMISSION_DENIED: DialFailure.DENIED,
    Status.UNAUTHENTICATED: DialFailure.DENIED,
    Status.DEADLINE_EXCEEDED: DialFailure.TIMED_OUT,
}


class GrpcDial(PooledDial):
    """One dial; see PooledDial. It is its call's Caller, too (tunnel/proxy_call.py)."""

    _dialer: GrpcDialer
    _call: ProxyCall | None = None

    def call(self, stream: Http2Stream) -> None:
        """Ask for the target."""
        self._call = ProxyCall(
            self,
            random=secrets.randbits(62) + 1,
            clock=time.monotonic,
            half_closes=self.place.keeps_half_close,
        )
        said = headers_of(self.asking)
        # Names of users and traces are not for a cache.
        self._call.call(stream, (*self._dialer.headers, *said), str(self.target), secret=bool(said))

    def take_back(self) -> None:
        """End the call."""
        call, self._call = self._call, None
        if call is not None:
            call.abort(Ending.CANCELLED)

    # The call reports: see proxy_call.ProxyCaller.

    def dialed(self) -> None:
        """The target is reached."""
        call, self._call = self._call, None
        if call is not None:
            self.won(call)

    def refused(self, error: str) -> None:
        """It is not."""
        self._call = None
        self.fail(*failure_said(error))

    def call_failed(self, status: Status, text: str) -> None:
        """There is no answer."""
        self._call = None
        failure = FAILURE_OF_STATUS.get(status)
        if failure is not None:
            self.fail(failure, text)
        else:
            self.server_failed(f"the call ended: {status.go_name} {text}".rstrip())

    def not_called(self, text: str) -> None:
        """Nothing was done: ask again, elsewhere."""
        self._call = None
        super().not_called(text)

    def connection_lost(self, text: str) -> None:
        """There is no answer."""
        self._call = None
        super().connection_lost(text)

    def hang_up(self, stream: Http2Stream) -> None:
        """End the stream, if its server has not done so by the end of this batch."""
        # Not at once: its trailers are mostly behind what ended the tunnel.
        self.poller.flush_later(partial(stream.reset, ErrorCode.CANCEL))

    def look_later(self, end: ProxyCall, delay_s: float) -> None:
        """A reply may have paused."""
        self.loop.call_later(delay_s, end.look)


class GrpcDialer(PooledDialer):
    """Dials by konnectivity's gRPC; see PooledDialer."""

    def make_dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> GrpcDial:
        """Make one."""
        dial = GrpcDial(self, target, timeout_s=timeout_s, reached=reached, failed=failed)
        dial._dialer = self
        return dial
