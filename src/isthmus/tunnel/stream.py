"""One stream of a mux session: an end whose other side is in another process.

Sending obeys the credit the peer gave. Receiving gives credit back only while the sink is not
full, so that a reader that stops stops its own writer and nobody else. Frames are packed and
turns are taken in session.py.
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
#: Half a window consumed within so many round trips lets it grow. On a clean line 1 would do; where
#: one frame in a hundred is lost, nearly every window waits for one that is sent again. Downloads
#: over 100 ms, 1 % loss and 50 Mbit/s with bbr ran at 7 to 20 Mbit/s with 1, 20 to 35 with 2 and
#: 34 to 39 with 4 (four runs each; `isthmus lab run far-away` has this line).
GROW_WITHIN_ROUND_TRIPS = 4
#: Within this a window grows in any case: a round trip over loopback is shorter than a scheduler's
#: turn and says nothing about whether a window is too small.
GROW_WITHIN_S = 0.002
#: Beyond this it grows in no case. The round trip is that of the last ping, whose answer can wait
#: behind others' data or come from a peer that takes its time: one late answer must not let the
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
    """The session, as its streams see it."""

    clock: Callable[[], float]
    limits: Limits
    #: What new streams start with.
    first_window: int
    first_update_bytes: int
    #: How many bytes of data may still join this batch.
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
        self.account = account  # who pays for what it holds
        self.id = stream_id
        # Sending. An Isthmus peer asks us to begin with less than yamux's 256 KiB; the rest of the
        # window is kept in reserve until its first update of half of that or more. With less it
        # says that it is short of memory.
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
        self._reserved = INITIAL_WINDOW - 2 * session.first_update_bytes  # by the sender, likewise
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
        """Send at once if credit and the session allow, else keep the bytes and say full."""
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

    def write_eof(self) -> None:
        """Send FIN after everything that waits; exactly once, a second one kills a Go session."""
        if self.ending is not None or self._fin_wanted:
            return
        self._fin_wanted = True
        if not self._backlog:
            self._send_fin()

    def take_turn(self, room: int) -> int:
        """Send one frame's worth of what waits, within credit and room; say how much it was."""
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
        # Also after its end of file: a stream counts what it holds until it hears this.
        self.peer.resume_reading()
        return size

    @property
    def can_send(self) -> bool:
        """Something waits and credit is there."""
        return bool(self._backlog) and self.credit > 0 and self.ending is None

    def credited(self, delta: int) -> None:
        """Take the peer's window update, and the reserve with the first that is not small."""
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
        """Pass payload on as it comes; give credit back if the sink can take more."""
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
        """Nothing to do: credit is withheld by the sink's False answers to write()."""

    def resume_reading(self) -> None:
        """Give back the credit of what was held: the sink has room again."""
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
        if self.window < INITIAL_WINDOW:  # it was slowed down
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
        """Give back less credit than was used: the sender gets slower, and growth goes back.

        Never nothing, where the sink takes what comes: it would have to be woken.
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
        """A stream that stalled for long gives its growth back by not returning that credit."""
        stalled_s = self.session.clock() - self.sink_full_since
        if stalled_s > self.session.limits.stall_s:
            back = min(self.window - INITIAL_WINDOW, self.owed)
            self.window -= back
            self.owed -= back
            self._update_at = self.window // 2
            self.session.ungrow(back)

    def received_fin(self) -> None:
        """The peer half-closed: pass it on; with both directions done, finish."""
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
        """Reset the stream at the other process; the session says why first."""
        if self.ending is not None:
            return
        self.session.explain_reset(self, reason)
        if self._over():
            return  # the explanation was one too many for the peer
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
