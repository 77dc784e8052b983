"""The dialer through a connectivity server that speaks KEP-1281's own protocol.

One call per dial, many calls in one HTTP/2 connection (http2_pool.py). What a call can say of
half-closes and resets is told in tunnel/payload_call.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from isthmus import __version__
from isthmus.dialers.http2_pool import Http2Pool, Waiting
from isthmus.dialers.through_server import (
    Reached,
    ServerDial,
    ServerDialer,
    ServerPlace,
    failure_said,
)
from isthmus.errors import DialFailure
from isthmus.net.connect import Failed
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.tunnel.end import Ending
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.payload_call import PayloadCall
from isthmus.values import HostPort
from isthmus.wire.asking import NOTHING, Asking, headers_of
from isthmus.wire.grpc import CONTENT_TYPE, Status
from isthmus.wire.http2 import Header, Headers
from isthmus.wire.payload import (
    CONNECT_OPTIONS,
    FAILURE_OF_STATUS,
    HALF_CLOSE,
    PATH,
    connect_options,
)

#: How often a call is made again that the server refused unseen: it goes away, or is full.
_MOST_REPEATS = 3


class PayloadDial(ServerDial):
    """One dial; see ServerDial. It is its call's Caller, too (tunnel/payload_call.py)."""

    _dialer: PayloadDialer
    headers: Headers = ()
    _waiting: Waiting | None = None
    _call: PayloadCall | None = None
    _called_at = 0.0
    _repeats = 0

    def begin(self, resolver: Resolver) -> None:
        """Have a stream opened, in a connection that others use, too."""
        waiting = self._dialer.pool.ask(self._opened, self._not_opened)
        if self._call is None and not self.done:
            self._waiting = waiting

    def _opened(self, stream: Http2Stream) -> None:
        self._waiting = None
        self._call = call = PayloadCall(self)
        self._called_at = time.monotonic()
        headers = (
            *self._dialer.headers,
            (CONNECT_OPTIONS, connect_options(self.target)),
            *self.headers,
        )
        # Names of users and traces are not for a cache; targets come again and again.
        call.call(stream, headers, secret=bool(self.headers))
        if not self._dialer.answers_dials:
            call.open_unheard()

    def _not_opened(self, why: str) -> None:
        self._waiting = None
        self.fail(DialFailure.INTERNAL, why)

    def drop(self) -> None:
        """Take it back."""
        waiting, self._waiting = self._waiting, None
        call, self._call = self._call, None
        if waiting is not None:
            waiting.cancel()
        if call is not None:
            call.abort(Ending.CANCELLED)

    def too_late(self) -> tuple[DialFailure, str]:
        """What is known when the time is over."""
        if self._waiting is not None:
            return DialFailure.TIMED_OUT, f"no room at the connectivity server {self.place} in time"
        if self._call is not None and self._call.stream is not None:
            self._dialer.pool.doubt(self._call.stream, self._called_at)
        return super().too_late()

    # The call reports: see payload_call.Caller.

    def dialed(self) -> None:
        """The target is reached."""
        call, self._call = self._call, None
        if call is not None:
            self.won(call)

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

    def not_called(self, text: str) -> None:
        """Nothing was done: ask again, elsewhere."""
        self._call = None
        self._repeats += 1
        if self._repeats > _MOST_REPEATS:
            self.server_failed(text)
        elif not self.done:
            self.begin(self._dialer.resolver)

    def connection_lost(self, text: str) -> None:
        """There is no answer."""
        self._call = None
        self.server_failed(text)


class PayloadDialer(ServerDialer):
    """Dials by KEP-1281's protocol; see ServerDialer. ``close`` ends what it keeps open.

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
        asking: Asking = NOTHING,
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

    def close(self) -> None:
        """End every connection to the server, and the tunnels in them."""
        self.pool.close()
