"""The streams of an HTTP/2 connection: which there are, which there were, and what they keep.

The second layer of tunnel/http2.py. It bounds what a peer can make us keep and do: the bytes that
sinks have not taken, the floods, the memory of streams that are over.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.tunnel.http2_floods import Floods
from isthmus.tunnel.http2_limits import Http2Limits
from isthmus.tunnel.http2_output import Output
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.session import Carrier
from isthmus.wire.http2 import DEFAULT_WINDOW, ErrorCode, Http2Error, StreamError, rst_stream

#: Streams that are over and whose ending we still know.
REMEMBERED = 64


class StreamTable(Output):
    """The streams, by id."""

    __slots__ = (
        "_floods",
        "_lingering",
        "_next_id",
        "_recent",
        "client",
        "clock",
        "held",
        "holders",
        "last_id",
        "peer_window",
        "round_trip_s",
        "streams",
    )

    def __init__(
        self, carrier: Carrier, limits: Http2Limits, *, client: bool, clock: Callable[[], float]
    ) -> None:
        super().__init__(carrier, limits)
        self.client = client
        self.clock = clock
        self.streams: dict[int, Http2Stream] = {}
        self.peer_window = DEFAULT_WINDOW  # of each new stream
        self.last_id = 0
        self.round_trip_s = 0.0
        self._next_id = 1
        #: Whether the peer had ended them.
        self._recent: dict[int, bool] | None = None
        self._floods: Floods | None = None
        self._lingering: dict[Http2Stream, tuple[int, float]] | None = None
        # Memory: what sinks have not taken and messages that are not whole, of all streams.
        self.held = 0
        self.holders: dict[Http2Stream, None] = {}

    # Streams that are over.

    def forget(self, stream: Http2Stream) -> None:
        """Drop a finished stream, but remember for a while who ended it."""
        if self.streams.pop(stream.id, None) is None:
            return
        if stream.held or stream.kept:
            self.held -= stream.held + stream.kept
            stream.held = stream.kept = 0
        self.holders.pop(stream, None)  # also one that was full of nothing
        if self._lingering:
            self._lingering.pop(stream, None)
        self._remember(stream.id, stream.remote_done)

    def _remember(self, stream_id: int, by_peer: bool) -> None:
        recent = self._recent
        if recent is None:
            recent = self._recent = {}
        recent[stream_id] = by_peer
        if len(recent) > REMEMBERED:
            del recent[next(iter(recent))]

    def _is_idle(self, stream_id: int) -> bool:
        last = self._next_id - 1 if self.client else self.last_id
        return stream_id % 2 == 0 or stream_id > last

    def _stray(self, stream_id: int, stream: Http2Stream | None) -> None:
        """Data or headers for a stream that is no more, or whose peer had ended it."""
        if self._is_idle(stream_id):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frame on idle stream {stream_id}")
        # What a peer sends behind our own reset was under way; behind its own end it is wrong.
        if stream is not None:
            self._peer_broke(stream, ErrorCode.STREAM_CLOSED, "data behind the end")
        elif self._recent is not None and self._recent.get(stream_id):
            self._flood("frames on ended streams")
            self.emit(rst_stream(stream_id, ErrorCode.STREAM_CLOSED))

    # Faults.

    def _flood(self, what: str, cost: int = 1) -> None:
        """Count something a peer may do, but not all the time."""
        if self._floods is None:
            self._floods = Floods(self.clock)
        if not self._floods.allow(what, cost):
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")

    def _fail_stream(self, stream: Http2Stream, code: ErrorCode, text: str) -> None:
        """Reset a stream, and tell its handler."""
        if stream.open:
            stream.reset(code)
            stream.handler.was_reset(stream, code, text)

    def _peer_broke(self, stream: Http2Stream, code: ErrorCode, text: str) -> None:
        """Reset a stream for what its peer did."""
        # Making us reset what it asked for costs a peer no more than resetting it itself.
        if not stream.answered and not self.client:
            self._flood("streams reset before their answer")
        self._fail_stream(stream, code, text)

    def _guard(self, stream: Http2Stream, call: Callable[[Http2Stream], None]) -> None:
        try:
            call(stream)
        except StreamError as exc:
            self._fail_stream(stream, exc.code, str(exc))

    # Memory.

    def hold(self, stream: Http2Stream) -> None:
        """Count what a sink has not taken; over the bound the largest holder is reset."""
        if not stream.open:
            return  # closed from inside the very write that filled its sink
        self.holders[stream] = None
        self.held += stream.unconsumed - stream.held
        stream.held = stream.unconsumed
        self._keep_budget()

    def release(self, stream: Http2Stream) -> None:
        """The sink took what was held."""
        self.held -= stream.held
        stream.held = 0
        if not stream.kept:
            self.holders.pop(stream, None)

    def keep(self, stream: Http2Stream, size: int) -> None:
        """Count a message that is gathered until it is whole; 0: it is."""
        if not stream.open:
            return
        self.held += size - stream.kept
        stream.kept = size
        if size:
            self.holders[stream] = None
            self._keep_budget()
        elif not stream.held:
            self.holders.pop(stream, None)

    def _keep_budget(self) -> None:
        while self.held > self.limits.max_held_bytes and self.holders:
            largest = max(self.holders, key=lambda holder: holder.held + holder.kept)
            self._fail_stream(largest, ErrorCode.ENHANCE_YOUR_CALM, "memory budget exceeded")

    def linger(self, stream: Http2Stream) -> None:
        """An ended stream has bytes to send: not for ever, if nobody takes them."""
        if self._lingering is None:
            self._lingering = {}
        self._lingering[stream] = (stream.out_bytes, self.clock())

    def _end_lingering(self, now: float) -> None:
        if not self._lingering:
            return
        for stream, (waiting, since) in list(self._lingering.items()):
            if stream.local_done:
                del self._lingering[stream]  # its end has gone, and the peer's may take its time
            elif stream.out_bytes != waiting:
                self._lingering[stream] = (stream.out_bytes, now)
            elif now - since >= self.limits.linger_s:
                self._fail_stream(stream, ErrorCode.CANCEL, "the peer does not read")
