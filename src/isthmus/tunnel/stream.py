"""One stream of a mux session: an end whose other side is in another process.

Sending obeys the credit of the peer. Receiving returns credit only while the sink is not
full, so a reader that stops blocks only its own writer. session.py packs frames and schedules
turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from isthmus.tunnel.budget import LEAST_WINDOW, SLOW_WINDOW, Account
from isthmus.tunnel.end import END_SLOTS, BaseEnd, Early, Ending
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.traffic_classes import TURN_BYTES
from isthmus.values import NORMAL, TrafficClass
from isthmus.wire.yamux import DATA, FIN, INITIAL_WINDOW, RST, WINDOW_UPDATE, pack

MAX_FRAME = TURN_BYTES
MAX_WINDOW = 4 * 1024 * 1024
#: A window of which half is consumed within this many round trips grows. On a clean line 1 is
#: enough; where
#: one frame in a hundred is lost, nearly every window waits for one that is sent again. Downloads
#: over 100 ms, 1 % loss and 50 Mbit/s with bbr ran at 7 to 20 Mbit/s with 1, 20 to 35 with 2 and
#: 34 to 39 with 4 (four runs each; `isthmus lab run far-away` has this line).
GROW_WITHIN_ROUND_TRIPS = 4
#: Within this time a window always grows: a round trip over loopback is shorter than a scheduler's
#: time slice and does not show whether a window is too small.
GROW_WITHIN_S = 0.002
#: Beyond this time it never grows. The round trip is that of the last ping, whose answer can wait
#: behind other data or come from a slow peer: one late answer must not let the
#: window of every stream grow.
GROW_WITHIN_MOST_S = 2.0


def wants_growth(half_took_s: float, round_trip_s: float) -> bool:
    """Whether half a window was consumed so fast that the window may be what the sender waits for.

    That is within GROW_WITHIN_ROUND_TRIPS of ``round_trip_s``, the last one that was measured (0:
    none yet), but at least GROW_WITHIN_S and at most GROW_WITHIN_MOST_S.
    """
    most_s = max(GROW_WITHIN_ROUND_TRIPS * round_trip_s, GROW_WITHIN_S)
    return half_took_s <= min(most_s, GROW_WITHIN_MOST_S)


class StreamSession(Protocol):
    """The interface of the session for its streams."""

    clock: Callable[[], float]
    limits: Limits
    #: Initial values of new streams.
    first_window: int
    first_update_bytes: int
    #: The bytes of data that may still join this batch.
    room: int
    round_trip_s: float
    explain_reset: Callable[[Stream, Ending], None]

    def emit(self, header: bytes, data: bytes, size: int) -> None: ...
    def emit_parts(self, header: bytes, parts: list[bytes | memoryview], size: int) -> None: ...
    def want_turn(self, stream: Stream) -> None: ...
    def half_closed(self, stream: Stream) -> None: ...
    def hold(self, stream: Stream, size: int) -> None: ...
    def release(self, stream: Stream, size: int) -> None: ...
    def charge(self, stream: Stream, account: Account) -> None: ...
    def grow(self, wanted: int) -> int: ...
    def ungrow(self, size: int) -> None: ...
    def forget(self, stream: Stream) -> None: ...


class Stream(BaseEnd):
    """One stream: created by Session.open() or by a SYN of the peer, never directly."""

    __slots__ = (
        *END_SLOTS,
        "_backlog",
        "_fin_sent",
        "_fin_wanted",
        "_reserved",
        "_update_at",
        "_window_since",
        "account",
        "backlog_bytes",
        "credit",
        "got_fin",
        "held",
        "id",
        "in_turn",
        "owed",
        "receive_credit",
        "reserve",
        "session",
        "sink_full_since",
        "traffic",
        "window",
    )

    def __init__(
        self, session: StreamSession, stream_id: int, account: Account, early: Early | None = None
    ) -> None:
        self.init_end(early)
        self.session = session
        self.account = account  # pays for what the stream holds
        self.id = stream_id
        # Sending. An Isthmus peer asks us to start with less than yamux's 256 KiB; the rest of the
        # window is kept in reserve until its first update of half of that or more. A smaller update
        # means that the peer is short of memory.
        self.credit = session.first_window
        self.reserve = INITIAL_WINDOW - session.first_window
        self._backlog: deque[bytes | memoryview] | None = None
        self.backlog_bytes = 0
        self.in_turn = False
        self.traffic: TrafficClass = NORMAL
        self._fin_wanted = False
        self._fin_sent = False
        # Receiving.
        self.window = INITIAL_WINDOW
        self.receive_credit = INITIAL_WINDOW
        self.owed = 0
        self._reserved = INITIAL_WINDOW - 2 * session.first_update_bytes  # likewise
        self._update_at = session.first_update_bytes
        self.held = 0
        self.sink_full_since = 0.0
        self._window_since = 0.0
        self.got_fin = False

    def __repr__(self) -> str:
        state = self.ending.value if self.ending else "half-closed" if self.half_closed else "open"
        return f"<Stream {self.id} {state}, {self.backlog_bytes} waiting, {self.held} held>"

    @property
    def half_closed(self) -> bool:
        """Exactly one direction has ended."""
        return self.ending is None and self.got_fin != self._fin_sent

    # Sending: from the peer end towards the other process.

    def write(self, data: bytes) -> bool:
        """Send at once if credit and the session allow, else keep the bytes and return False."""
        size = len(data)
        session = self.session
        if size <= self.credit and size <= session.room and not self._backlog and size <= MAX_FRAME:
            if self.ending is not None or self._fin_wanted:
                return True
            self.credit -= size
            self.bytes_written += size
            session.emit(pack(0, DATA, 0, self.id, size), data, size)
            return True
        if self.ending is not None or self._fin_wanted:
            return True
        self.bytes_written += size
        if self._backlog is None:
            self._backlog = deque()
        self._backlog.append(data)
        self.backlog_bytes += size
        session.want_turn(self)
        return False

    def write_now(self, data: bytes) -> None:
        """Send what cannot wait for others' data, whatever the room; within the credit."""
        size = len(data)
        if self._backlog or size > self.credit or self.ending is not None or self._fin_wanted:
            self.write(data)
            return
        self.credit -= size
        self.bytes_written += size
        self.session.emit(pack(0, DATA, 0, self.id, size), data, size)

    def write_eof(self) -> None:
        """Send FIN after all waiting data; exactly once, a second one kills a Go session."""
        if self.ending is not None or self._fin_wanted:
            return
        self._fin_wanted = True
        if not self._backlog:
            self._send_fin()

    def take_turn(self, room: int) -> int:
        """Send up to one frame of waiting data, within credit and room; return its size."""
        backlog = self._backlog
        if self.ending is not None or not backlog:
            return 0
        budget = min(MAX_FRAME, self.credit, room)
        if budget <= 0:
            return 0
        parts: list[bytes | memoryview] = []
        size = 0
        while backlog and size < budget:
            part = backlog.popleft()
            if len(part) > budget - size:
                view = memoryview(part)
                backlog.appendleft(view[budget - size :])
                part = view[: budget - size]
            parts.append(part)
            size += len(part)
        self.credit -= size
        self.backlog_bytes -= size
        self.session.emit_parts(pack(0, DATA, 0, self.id, size), parts, size)
        if backlog:
            return size
        self._backlog = None
        if self._fin_wanted:
            self._send_fin()
        # Also after its end of file: a stream counts what it holds until this call.
        self.peer.resume_reading()
        return size

    @property
    def can_send(self) -> bool:
        """Whether data is waiting and there is credit."""
        return bool(self._backlog) and self.credit > 0 and self.ending is None

    def credited(self, delta: int) -> None:
        """Add the peer's window update, and the reserve with the first update that is not small."""
        self.credit += delta
        if self.reserve and delta >= self.session.first_window // 2:
            self.credit += self.reserve
            self.reserve = 0
        if self._backlog:
            self.session.want_turn(self)

    def _send_fin(self) -> None:
        self._fin_sent = True
        self.session.emit(pack(0, DATA, FIN, self.id, 0), b"", 0)
        if self.got_fin:
            self._finish(Ending.CLEAN)
        else:
            self.session.half_closed(self)

    # Receiving: from the other process towards the peer end.

    def received(self, data: bytes) -> None:
        """Pass payload on as it arrives; return credit if the sink can take more."""
        if self.ending is not None:
            return
        size = len(data)
        if self.peer.write(data):
            self.owed += size
            if self.owed >= self._update_at and self.ending is None:
                self._return_credit()
        elif size and self.ending is None:
            if not self.held:
                self.sink_full_since = self.session.clock()
            self.held += size
            self.session.hold(self, size)

    def pause_reading(self) -> None:
        """Do nothing: False returned by the sink's write() already withholds credit."""

    def resume_reading(self) -> None:
        """Return the withheld credit: the sink has room again."""
        if self.ending is not None:
            return
        if self.held:
            held, self.held = self.held, 0
            self.session.release(self, held)
            self.owed += held
            if self.window > INITIAL_WINDOW:
                self._maybe_shrink()
        if self.owed >= self._update_at and not self.got_fin:
            self._return_credit()

    def _return_credit(self) -> None:
        session = self.session
        if self.account.over_share:
            self._slow_down()
            return
        now = session.clock()
        grown = 0
        if self.window < INITIAL_WINDOW:  # it was slowed
            grown = INITIAL_WINDOW - self.window
            self.window = INITIAL_WINDOW
        elif wants_growth(now - self._window_since, session.round_trip_s) and self.account.has_room:
            grown = session.grow(min(self.window, MAX_WINDOW - self.window))
            self.window += grown
        self._window_since = now
        self._update_at = self.window // 2
        self._reserved = 0
        delta = self.owed + grown
        self.owed = 0
        self.receive_credit += delta
        session.emit(pack(0, WINDOW_UPDATE, 0, self.id, delta), b"", 0)

    def _slow_down(self) -> None:
        """Return less credit than was used, which slows the sender, and give growth back.

        Never zero while the sink takes bytes, because the sender would then have to be woken.
        """
        budget = self.account.budget
        budget.over_share += 1
        most = LEAST_WINDOW if budget.exhausted else SLOW_WINDOW
        most += self._reserved
        given = min(self.owed, max(0, most - self.receive_credit - self.held))
        if self._reserved:
            given = min(given, self.session.first_update_bytes - 1)
        before, self.window = self.window, self.window - (self.owed - given)
        if before > INITIAL_WINDOW:
            self.session.ungrow(before - max(self.window, INITIAL_WINDOW))
        self._update_at = (self.window - self._reserved) // 2
        self.owed = 0
        if given:
            self.receive_credit += given
            self.session.emit(pack(0, WINDOW_UPDATE, 0, self.id, given), b"", 0)

    def _maybe_shrink(self) -> None:
        """After a long stall, give the window's growth back by not returning that credit."""
        stalled_s = self.session.clock() - self.sink_full_since
        if stalled_s > self.session.limits.stall_s:
            back = min(self.window - INITIAL_WINDOW, self.owed)
            self.window -= back
            self.owed -= back
            self._update_at = self.window // 2
            self.session.ungrow(back)

    def received_fin(self) -> None:
        """The peer half-closed: pass it on, and finish if both directions are done."""
        self.got_fin = True
        self.peer.write_eof()
        if self.ending is not None:
            return
        if self._fin_sent:
            self._finish(Ending.CLEAN)
        else:
            self.session.half_closed(self)

    # Ending.

    def abort(self, reason: Ending) -> None:
        """Reset the stream at the other process; the session sends the reason first."""
        if self.ending is not None:
            return
        self.session.explain_reset(self, reason)
        if self._over():
            return  # sending the reason ended the session
        self.session.emit(pack(0, WINDOW_UPDATE, RST, self.id, 0), b"", 0)
        self._finish(reason)

    def lost(self, reason: Ending) -> None:
        """The other process reset the stream, or the session is gone: reset the peer end."""
        if self.ending is None:
            peer = self.peer
            self._finish(reason)
            peer.abort(reason)

    def _over(self) -> bool:
        return self.ending is not None

    def _finish(self, ending: Ending) -> None:
        self._backlog = None
        self.backlog_bytes = 0
        session = self.session
        session.forget(self)
        if self.window > INITIAL_WINDOW:
            session.ungrow(self.window - INITIAL_WINDOW)
        self.finish(ending)
