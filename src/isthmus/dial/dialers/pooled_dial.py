"""What the dialers by gRPC share: a call per dial, many calls in one HTTP/2 connection.

The connections are http2_pool.py's. What a call says is told by its own kind: through_payload.py
(KEP-1281's payloads) and through_grpc.py (konnectivity's packets).
"""

from __future__ import annotations

import asyncio
import time

from isthmus import __version__
from isthmus.dial.dialers.http2_pool import Http2Pool, Waiting
from isthmus.dial.dialers.through_server import ServerDial, ServerDialer, ServerPlace
from isthmus.errors import DialFailure
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.wire.grpc import CONTENT_TYPE
from isthmus.wire.http2 import Headers
from isthmus.wire.request_metadata import HALF_CLOSE

PATH = b"/ProxyService/Proxy"
#: How often a call is made again that the server refused unseen: it goes away, or is full.
_MOST_REPEATS = 3


class PooledDial(ServerDial):
    """One dial by a call of its own; see ServerDial. Subclasses call, and take the call back."""

    _dialer: PooledDialer
    _waiting: Waiting | None = None
    _stream: Http2Stream | None = None
    _called_at = 0.0
    _repeats = 0

    def begin(self, resolver: Resolver) -> None:
        """Have a stream opened, in a connection that others use, too."""
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
        """Take it back."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()
        self._stream = None
        self.take_back()

    def too_late(self) -> tuple[DialFailure, str]:
        """What is known when the time is over."""
        if self._waiting is not None:
            return DialFailure.TIMED_OUT, f"no room at the connectivity server {self.place} in time"
        if self._stream is not None:
            self._dialer.pool.doubt(self._stream, self._called_at)
        return super().too_late()

    # What a kind of call gives.

    def call(self, stream: Http2Stream) -> None:
        """Ask for the target."""
        raise NotImplementedError

    def take_back(self) -> None:
        """Nobody waits for the answer any more: end the call, if there is one."""
        raise NotImplementedError

    # What every call reports.

    def not_called(self, text: str) -> None:
        """The server refused the call unseen: nothing was done, and it is asked again."""
        self._stream = None
        self._repeats += 1
        if self._repeats > _MOST_REPEATS:
            self.server_failed(text)
        elif not self.done:
            self.begin(self._dialer.resolver)

    def connection_lost(self, text: str) -> None:
        """The connection went, and the answer with it."""
        self._stream = None
        self.server_failed(text)


class PooledDialer(ServerDialer):
    """Dials by calls in shared connections; see ServerDialer. ``close`` ends what it keeps open."""

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
