"""What an HTTP/2 connection sends, and its streams: the two lowest layers of http2.py.

Frames are gathered until the plumbing calls ``flush()``, once per batch of events. Control frames
always go into the batch; data only as far as the windows and the batch's own limit allow, and
streams with waiting data take turns.

The table limits what a peer can make us store and do: bytes that sinks have not taken, which
are charged to an account (budget.py), floods, and the memory of finished streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from isthmus.tunnel.budget import FULL_SINK_BYTES, STREAM_BYTES, UNBOUNDED, Account
from isthmus.tunnel.end import unsent
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.limits import Floods, Http2Limits
from isthmus.tunnel.session import Carrier
from isthmus.wire.http2 import (
    DEFAULT_WINDOW,
    MAX_WINDOW,
    MIN_MAX_FRAME,
    ErrorCode,
    Http2Error,
    StreamError,
    rst_stream,
)

#: The number of finished streams whose ending is remembered.
REMEMBERED = 64


class Output:
    """The sending half of a connection."""

    __slots__ = (
        "_batch_credit",
        "_blocked",
        "_out",
        "_turns",
        "_waiting_control_bytes",
        "_waking",
        "carrier",
        "closed",
        "credit",
        "limits",
        "peer_max_frame",
        "room",
    )

    def __init__(self, carrier: Carrier, limits: Http2Limits) -> None:
        self.carrier = carrier
        self.limits = limits
        self.closed = False
        self.peer_max_frame = MIN_MAX_FRAME
        #: What remains of the peer's connection window.
        self.credit = DEFAULT_WINDOW
        #: How much of that this batch may still carry.
        self.room = 0
        self._batch_credit = 0
        self._new_batch()
        self._out: list[bytes | memoryview] = []
        self._waiting_control_bytes = 0
        self._waking = False
        self._blocked = False
        self._turns: deque[Http2Stream] | None = None  # 600 bytes that few connections need

    @property
    def unsent(self) -> bool:
        """Whether frames or data wait for the carrier."""
        return bool(self._out or self._turns)

    # Adding to the batch.

    def emit(self, whole: bytes) -> None:
        """Add whole frames other than data to this batch."""
        if self.closed:
            return
        self._out.append(whole)
        if self._blocked:
            self._waiting_control_bytes += len(whole)
        elif not self._waking:
            self._waking = True
            self.carrier.wake()

    def emit_in_time(self, whole: bytes) -> None:
        """Add a frame that is not urgent: it goes with the next batch, within milliseconds."""
        if self.closed:
            return
        self._out.append(whole)
        if self._blocked:
            self._waiting_control_bytes += len(whole)
        elif not self._waking and len(self._out) == 1:
            self.carrier.wake_in_time()

    def emit_data(self, head: bytes, more_head: bytes, data: bytes, size: int) -> None:
        """Add one data frame to this batch; the caller has checked the windows."""
        self._out += (head, more_head, data)
        self.credit -= size
        self.room -= size
        if not self._waking:
            self._waking = True
            self.carrier.wake()

    def emit_parts(self, head: bytes, parts: list[bytes | memoryview], size: int) -> None:
        """Add one data frame whose payload is in pieces to this batch."""
        self._out.append(head)
        self._out += parts
        self.credit -= size
        self.room -= size
        if not self._waking:
            self._waking = True
            self.carrier.wake()

    def want_turn(self, stream: Http2Stream) -> None:
        """Queue a stream that has data and window to send it."""
        if not stream.in_turn and stream.credit > 0:
            stream.in_turn = True
            if self._turns is None:
                self._turns = deque()
            self._turns.append(stream)
            if not self._waking and not self._blocked:
                self._waking = True
                self.carrier.wake()

    # Sending the batch.

    def flush(self) -> None:
        """Write this batch, and give waiting streams their turns while the carrier has room."""
        self._waking = True  # no wake-ups for what this call will send
        out = self._out
        while not self._blocked and not self.closed:
            if self.room > 0 and self._turns:
                self._take_turns()
            if not out:
                break
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            self._batch_credit = credit = self.credit  # same as _new_batch, without a call
            most = self.limits.batch_bytes
            self.room = credit if credit < most else most
            if not self.carrier.send(bytes(data)):
                self._blocked = True
                self.room = 0
        self._waking = False

    def resume(self) -> None:
        """The carrier has room again."""
        self._blocked = False
        self._waiting_control_bytes = 0
        self._new_batch()
        self.flush()

    def _new_batch(self) -> None:
        self._batch_credit = self.credit
        self.room = min(self.limits.batch_bytes, self.credit)

    def _take_turns(self) -> None:
        turns = self._turns
        assert turns is not None
        while turns and self.room > 0:
            stream = turns.popleft()
            stream.in_turn = False
            if not stream.can_send:
                continue
            stream.take_turn()
            if stream.can_send and not stream.in_turn:
                stream.in_turn = True
                turns.append(stream)
            elif not stream.out_bytes and stream.open:
                stream.handler.can_write(stream)
        if not turns:
            self._turns = None

    def _more_credit(self, delta: int) -> None:
        """Handle a WINDOW_UPDATE of the connection."""
        self.credit += delta
        if self.credit > MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "connection window overflow")
        if self._blocked:
            return
        # The batch keeps its own limit, however often the window opens while it is gathered.
        self._batch_credit += delta
        batched = self._batch_credit - self.credit
        self.room = min(self.limits.batch_bytes - batched, self.credit)
        if self._turns and not self._waking:
            self._waking = True
            self.carrier.wake()


class StreamTable(Output):
    """The streams, by id."""

    __slots__ = (
        "_floods",
        "_lingering",
        "_next_id",
        "_recent",
        "_stuck",
        "account",
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
        self,
        carrier: Carrier,
        limits: Http2Limits,
        *,
        client: bool,
        clock: Callable[[], float],
        account: Account | None,
    ) -> None:
        super().__init__(carrier, limits)
        self.account = account if account is not None else UNBOUNDED.account("http2")
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
        # Memory: bytes not taken by sinks and incomplete messages, of all streams.
        self.held = 0
        self.holders: dict[Http2Stream, None] = {}
        self._stuck: dict[Http2Stream, tuple[int, float]] | None = None

    # Finished streams.

    def forget(self, stream: Http2Stream) -> None:
        """Drop a finished stream, but remember for a while which side ended it."""
        if self.streams.pop(stream.id, None) is None:
            return
        account = stream.account
        if stream in self.holders:
            self._holds(stream, 0, 0)
        account.give_back(STREAM_BYTES)
        account.close()
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
        """Data or headers for a stream that is closed, or that the peer had ended."""
        if self._is_idle(stream_id):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"frame on idle stream {stream_id}")
        # Frames after our own reset were in flight; frames after the peer's own end are an error.
        if stream is not None:
            self._peer_broke(stream, ErrorCode.STREAM_CLOSED, "data after the end")
        elif self._recent is not None and self._recent.get(stream_id):
            self._flood("frames on ended streams")
            self.emit(rst_stream(stream_id, ErrorCode.STREAM_CLOSED))

    # Faults.

    def _flood(self, what: str, cost: int = 1) -> None:
        """Count an event that is allowed, but not too often."""
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
        """Reset a stream because its peer violated the protocol."""
        # Causing us to reset a stream is as cheap for a peer as resetting it itself.
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
        """Count what a sink has not taken, and charge the stream's account.

        No credit is returned for it; an account over its share gets less even for what sinks take.
        """
        if stream.open:  # otherwise closed from inside the write that filled its sink
            self._holds(stream, stream.unconsumed, stream.kept)

    def release(self, stream: Http2Stream) -> None:
        """The sink took the held bytes."""
        self._holds(stream, 0, stream.kept)

    def keep(self, stream: Http2Stream, size: int) -> None:
        """Count the bytes of an incomplete message; 0: it is complete."""
        if stream.open and size != stream.kept:
            self._holds(stream, stream.held, size)

    def _holds(self, stream: Http2Stream, held: int, kept: int) -> None:
        size = held + kept - stream.held - stream.kept
        stream.held, stream.kept = held, kept
        self.held += size
        if not held and not kept:
            if stream in self.holders:
                del self.holders[stream]
                stream.account.give_back(FULL_SINK_BYTES - size)
            return
        if stream not in self.holders:
            self.holders[stream] = None
            size += FULL_SINK_BYTES
        if size >= 0:
            stream.account.hold(size)
        else:
            stream.account.give_back(-size)

    def charge(self, stream: Http2Stream, account: Account) -> None:
        """Transfer a stream to another account, of which the stream becomes a user."""
        before, stream.account = stream.account, account.join()
        size = STREAM_BYTES
        if stream in self.holders:
            size += stream.held + stream.kept + FULL_SINK_BYTES
        account.hold(size)
        before.give_back(size)
        before.close()

    def _reset_stuck(self, now: float) -> None:
        """Reset readers that take nothing while the budget is used up."""
        # Slowing comes first: readers inside their share, or that still take bytes, are not reset.
        seen, self._stuck = self._stuck or {}, {}
        for stream in list(self.holders):
            account = stream.account
            if not account.budget.exhausted or not account.over_share:
                continue
            peer = getattr(stream.handler, "peer", None)
            waits = stream.kept + (unsent(peer) if peer is not None else stream.held)
            since = now
            if stream in seen and seen[stream][0] == waits:
                since = seen[stream][1]
            if now - since < self.limits.stuck_s:
                self._stuck[stream] = (waits, since)
            else:
                self._fail_stream(stream, ErrorCode.ENHANCE_YOUR_CALM, "memory budget exhausted")

    def linger(self, stream: Http2Stream) -> None:
        """Limit how long an ended stream waits to send its bytes."""
        if self._lingering is None:
            self._lingering = {}
        self._lingering[stream] = (stream.out_bytes, self.clock())

    def _end_lingering(self, now: float) -> None:
        if not self._lingering:
            return
        for stream, (waiting, since) in list(self._lingering.items()):
            if stream.local_done:
                del self._lingering[stream]  # our end was sent; the peer's may take its time
            elif stream.out_bytes != waiting:
                self._lingering[stream] = (stream.out_bytes, now)
            elif now - since >= self.limits.linger_s:
                self._fail_stream(stream, ErrorCode.CANCEL, "the peer does not read")
