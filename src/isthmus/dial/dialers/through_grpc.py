"""The dialers through a connectivity server's gRPC frontend: konnectivity's packets, or payloads.

One call of /ProxyService/Proxy per dial, as konnectivity-client's single-use tunnels have it, but
many calls in one HTTP/2 connection (http2_pool.py): to gRPC servers, konnectivity's too, that is
all the same. What each protocol can say of half-closes and resets is told in tunnel/proxy_call.py
and, for KEP-1281's own, in tunnel/payload.py.
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
        """The target is reached."""
        call, self._call = self._call, None
        if call is not None:
            self.won(call)

    def not_called(self, text: str) -> None:
        """Nothing was done: ask again, elsewhere."""
        self._call = None
        super().not_called(text)

    def connection_lost(self, text: str) -> None:
        """There is no answer."""
        self._call = None
        super().connection_lost(text)


class GrpcDial(_CallDial):
    """By konnectivity's packets; its call's ProxyCaller, too (tunnel/proxy_call.py)."""

    def call(self, stream: Http2Stream) -> None:
        """Ask for the target."""
        self._call = call = ProxyClientCall(
            self,
            random=secrets.randbits(62) + 1,
            clock=time.monotonic,
            half_closes=self.place.keeps_half_close,
        )
        said = headers_of(self.asking)
        # Names of users and traces are not for a cache.
        call.call(stream, (*self._dialer.headers, *said), str(self.target), secret=bool(said))

    def refused(self, error: str) -> None:
        """It is not."""
        self._call = None
        self.fail(*failure_said(error))

    def call_failed(self, status: Status, text: str) -> None:
        """There is no answer."""
        self._call = None
        failure = FAILURE_OF_CALL.get(status)
        if failure is not None:
            self.fail(failure, text)
        else:
            self.server_failed(f"the call ended: {status.go_name} {text}".rstrip())

    def hang_up(self, stream: Http2Stream) -> None:
        """End the stream, if its server has not done so by the end of this batch."""
        # Not at once: its trailers are mostly behind what ended the tunnel.
        self.poller.flush_later(partial(stream.reset, ErrorCode.CANCEL))

    def look_later(self, end: ProxyClientCall, delay_s: float) -> None:
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


class PayloadDial(_CallDial):
    """By KEP-1281's payloads (tunnel/payload.py)."""

    _dialer: PayloadDialer
    headers: Headers = ()

    def call(self, stream: Http2Stream) -> None:
        """Ask for the target."""
        self._call = call = PayloadCall(self)
        headers = (
            *self._dialer.headers,
            (CONNECT_OPTIONS, connect_options(self.target)),
            *self.headers,
        )
        # Names of users and traces are not for a cache; targets come again and again.
        call.call(stream, headers, secret=bool(self.headers))
        if not self._dialer.answers_dials:
            call.open_unheard()

    def call_failed(self, status: Status, text: str) -> None:
        """It is not."""
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

    ``answers_dials``: the server sends its response's headers when the target is reached, as
    Isthmus' do. The KEP does not ask for it: with a server that says nothing until the target does,
    a target that waits for its client would never be reached. Without it every dial that finds the
    server succeeds, and a target that cannot be reached resets its end.
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
        """Make one."""
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
            ValueError: ``asking`` has something that metadata cannot say.
        """
        said = (*headers_of(asking), *headers)
        dial = self.make_dial(target, timeout_s=timeout_s, reached=reached, failed=failed)
        dial.asking, dial.headers = asking, said
        dial.begin(self.resolver)
        return dial
