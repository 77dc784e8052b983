"""What an HTTP/2 connection sends: the batch, the windows of its peer, and turns between streams.

Frames are gathered until the plumbing says ``flush()``, once per batch of events. Control frames
always go into the batch; data only as far as the windows and the batch's own bound allow, and what
waits for them takes turns. This is the lowest layer of http2.py, and has its fields.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from isthmus.tunnel.http2_limits import Http2Limits
from isthmus.tunnel.session import Carrier
from isthmus.wire.http2 import DEFAULT_WINDOW, MAX_WINDOW, MIN_MAX_FRAME, ErrorCode, Http2Error

if TYPE_CHECKING:
    from isthmus.tunnel.http2_stream import Http2Stream


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
        #: What the peer's window for the whole connection still allows.
        self.credit = DEFAULT_WINDOW
        #: How much of that this batch may still carry.
        self.room = 0
        self._batch_credit = 0
        self._new_batch()
        self._out: list[bytes | memoryview] = []
        self._waiting_control_bytes = 0
        self._waking = False
        self._blocked = False
        self._turns: deque[Http2Stream] | None = None  # 600 bytes that few need

    @property
    def unsent(self) -> bool:
        """Frames or data wait for the carrier."""
        return bool(self._out or self._turns)

    # Into the batch.

    def emit(self, whole: bytes) -> None:
        """Add whole frames that are not data to this batch."""
        if self.closed:
            return
        self._out.append(whole)
        if self._blocked:
            self._waiting_control_bytes += len(whole)
        elif not self._waking:
            self._waking = True
            self.carrier.wake()

    def emit_in_time(self, whole: bytes) -> None:
        """Add a frame that nobody waits for: it goes with the next batch, in milliseconds."""
        if self.closed:
            return
        self._out.append(whole)
        if self._blocked:
            self._waiting_control_bytes += len(whole)
        elif not self._waking and len(self._out) == 1:
            self.carrier.wake_in_time()

    def emit_data(self, head: bytes, more_head: bytes, data: bytes, size: int) -> None:
        """Add one data frame to this batch; the caller has asked the windows."""
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
        """Queue a stream that has something to send and the window for it."""
        if not stream.in_turn and stream.credit > 0:
            stream.in_turn = True
            if self._turns is None:
                self._turns = deque()
            self._turns.append(stream)
            if not self._waking and not self._blocked:
                self._waking = True
                self.carrier.wake()

    # Out of it.

    def flush(self) -> None:
        """Write out this batch, and give waiting streams their turns while the carrier takes it."""
        self._waking = True  # no wake-ups for what this very call will send
        out = self._out
        while not self._blocked and not self.closed:
            if self.room > 0 and self._turns:
                self._take_turns()
            if not out:
                break
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            self._batch_credit = credit = self.credit  # as _new_batch, without a call
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
        """WINDOW_UPDATE of the connection."""
        self.credit += delta
        if self.credit > MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "connection window overflow")
        if self._blocked:
            return
        # The batch keeps its own bound, however often the window opens while it is gathered.
        self._batch_credit += delta
        batched = self._batch_credit - self.credit
        self.room = min(self.limits.batch_bytes - batched, self.credit)
        if self._turns and not self._waking:
            self._waking = True
            self.carrier.wake()
