"""The dialers through a connectivity server's gRPC frontend: konnectivity's packets, or payloads.

One call of /ProxyService/Proxy per dial, as in konnectivity-client's single-use tunnels, but
many calls in one HTTP/2 connection (http2_pool.py), which gRPC servers, including konnectivity's,
treat the same. tunnel/proxy_call.py documents half-closes and resets of the protocol, and
tunnel/payload.py those of KEP-1281's own.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from functools import partial

from isthmus.dial.dialers.http2_pool import PooledDial, PooledDialer
from isthmus.dial.dialers.through_server import Reached, ServerPlace, failure_said
from isthmus.errors import DialFailure
from isthmus.net.connect import Failed
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.tunnel.end import Ending
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.payload import PayloadCall
from isthmus.tunnel.proxy_call import ProxyClientCall
from isthmus.values import NOTHING, HostPort, RequestMetadata
from isthmus.wire.grpc import Status
from isthmus.wire.http2 import ErrorCode, Header, Headers
from isthmus.wire.payload import CONNECT_OPTIONS, FAILURE_OF_STATUS, connect_options
from isthmus.wire.request_metadata import headers_of

FAILURE_OF_CALL = {
    Status.PERMISSION_DENIED: DialFailure.DENIED,
    Status.UNAUTHENTICATED: DialFailure.DENIED,
    Status.DEADLINE_EXCEEDED: DialFailure.TIMED_OUT,
}


class _CallDial(PooledDial):
    """One dial; see PooledDial. Its call reports to it: see call_stream.Caller."""

    _dialer: PooledDialer
    _call: ProxyClientCall | PayloadCall | None = None

    def take_back(self) -> None:
        """End the call."""
        call, self._call = self._call, None
        if call is not None:
            call.abort(Ending.CANCELLED)

    def dialed(self) -> None:
        """The target was reached."""
        call, self._call = self._call, None
        if call is not None:
            self.won(call)

    def not_called(self, text: str) -> None:
        """Nothing was done: retry."""
        self._call = None
        super().not_called(text)

    def connection_lost(self, text: str) -> None:
        """The connection was lost before the answer."""
        self._call = None
        super().connection_lost(text)


class GrpcDial(_CallDial):
    """By konnectivity's packets; its call's ProxyCaller, too (tunnel/proxy_call.py)."""

    def call(self, stream: Http2Stream) -> None:
        """Request the target."""
        self._call = call = ProxyClientCall(
            self,
            random=secrets.randbits(62) + 1,
            clock=time.monotonic,
            half_closes=self.place.keeps_half_close,
        )
        said = headers_of(self.asking)
        # User names and traces must not be cached.
        call.call(stream, (*self._dialer.headers, *said), str(self.target), secret=bool(said))

    def refused(self, error: str) -> None:
        """The server refused the dial."""
        self._call = None
        self.fail(*failure_said(error))

    def call_failed(self, status: Status, text: str) -> None:
        """The call failed before the answer."""
        self._call = None
        failure = FAILURE_OF_CALL.get(status)
        if failure is not None:
            self.fail(failure, text)
        else:
            self.server_failed(f"the call ended: {status.go_name} {text}".rstrip())

    def hang_up(self, stream: Http2Stream) -> None:
        """End the stream, if its server has not done so by the end of this batch."""
        # Not at once: its trailers usually follow what ended the tunnel.
        self.poller.flush_later(partial(stream.reset, ErrorCode.CANCEL))

    def look_later(self, end: ProxyClientCall, delay_s: float) -> None:
        """Schedule a check for a paused reply."""
        self.loop.call_later(delay_s, end.look)


class GrpcDialer(PooledDialer):
    """Dials by konnectivity's gRPC; see PooledDialer."""

    def make_dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> GrpcDial:
        dial = GrpcDial(self, target, timeout_s=timeout_s, reached=reached, failed=failed)
        dial._dialer = self
        return dial


class PayloadDial(_CallDial):
    """By KEP-1281's payloads (tunnel/payload.py)."""

    _dialer: PayloadDialer
    headers: Headers = ()

    def call(self, stream: Http2Stream) -> None:
        """Request the target."""
        self._call = call = PayloadCall(self)
        headers = (
            *self._dialer.headers,
            (CONNECT_OPTIONS, connect_options(self.target)),
            *self.headers,
        )
        # User names and traces must not be cached; targets repeat.
        call.call(stream, headers, secret=bool(self.headers))
        if not self._dialer.answers_dials:
            call.open_unheard()

    def call_failed(self, status: Status, text: str) -> None:
        """The server refused the dial."""
        self._call = None
        failure, detail = failure_said(text)
        if failure is DialFailure.INTERNAL and status is not Status.INTERNAL:
            known = FAILURE_OF_STATUS.get(status)
            if known is None:
                self.server_failed(f"the call ended: {status.go_name} {detail}".rstrip())
                return
            failure = known
        self.fail(failure, detail)


class PayloadDialer(PooledDialer):
    """Dials by KEP-1281's protocol; see PooledDialer.

    ``answers_dials``: the server sends its response headers when the target is reached, as
    Isthmus's servers do. The KEP does not require this: with a server that sends nothing before the
    target does, a dial to a target that waits for its client would never succeed. Without it every
    dial that reaches the server succeeds, and an unreachable target resets its end.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        resolver: Resolver,
        place: ServerPlace,
        *,
        answers_dials: bool = True,
    ) -> None:
        super().__init__(loop, poller, resolver, place)
        self.answers_dials = answers_dials

    def make_dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> PayloadDial:
        dial = PayloadDial(self, target, timeout_s=timeout_s, reached=reached, failed=failed)
        dial._dialer = self
        return dial

    def dial(
        self,
        target: HostPort,
        *,
        timeout_s: float,
        reached: Reached,
        failed: Failed,
        asking: RequestMetadata = NOTHING,
        headers: Sequence[Header] = (),
    ) -> PayloadDial:
        """Open a connection; see ServerDialer. ``headers`` are further metadata, in lower case.

        Raises:
            ValueError: ``asking`` has a value that metadata cannot carry.
        """
        said = (*headers_of(asking), *headers)
        dial = self.make_dial(target, timeout_s=timeout_s, reached=reached, failed=failed)
        dial.asking, dial.headers = asking, said
        dial.begin(self.resolver)
        return dial
