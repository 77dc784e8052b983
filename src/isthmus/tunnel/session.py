"""A yamux session without I/O: frames in, frames out, streams between.

The plumbing passes what the carrier read to ``receive(view)`` and calls ``flush()`` once per
batch of events; the session calls ``carrier.send`` and ``carrier.wake``. Order: window updates,
pings and resets are written at once; data waits in its stream while the carrier is full, and
streams take turns of at most one frame, by their class (traffic_classes.py). Nothing here scans all
streams.

links/ defines what the first stream carries (hello, welcome, dials). The owner calls ``tick``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from isthmus.errors import ProtocolError
from isthmus.tunnel.budget import FULL_SINK_BYTES, STREAM_BYTES, UNBOUNDED, Account
from isthmus.tunnel.end import Early, Ending, unsent
from isthmus.tunnel.limits import Floods, Limits
from isthmus.tunnel.stream import MAX_FRAME, Stream
from isthmus.tunnel.traffic_classes import ClassTurns
from isthmus.values import BULK, NORMAL, TrafficClass
from isthmus.wire.yamux import (
    ACK,
    DATA,
    FIN,
    GO_AWAY,
    HEADER_BYTES,
    INITIAL_WINDOW,
    PING,
    RST,
    SYN,
    WINDOW_UPDATE,
    GoAwayCode,
    check,
    pack,
    unpack_from,
)

LAST_ID = 2**31 - 1


class Carried(Protocol):
    """A session, as its carrier sees it."""

    def heard(self) -> None:
        """Bytes arrived."""

    def receive(self, view: memoryview) -> None:
        """Take them; raises ProtocolError."""

    def flush(self) -> None:
        """Write out what this batch of events made."""

    def resume(self) -> None:
        """There is room for more."""


class Carrier(Protocol):
    """The interface that a session needs from the connection below it."""

    def send(self, data: bytes) -> bool:
        """Take all bytes; False when full: session.resume() follows when there is room."""

    def wake(self) -> None:
        """Call session.flush() when the current batch of events is done, or soon."""

    def wake_in_time(self) -> None:
        """Call session.flush() within milliseconds, so that frames can share a write."""


def _nobody() -> None:
    """The default: received bytes are not counted."""


def no_reason(stream: Stream, reason: Ending) -> None:
    """Send nothing before a reset: plain yamux cannot carry a reason."""


class Session:
    """One side of a yamux connection."""

    def __init__(
        self,
        carrier: Carrier,
        *,
        client: bool,
        clock: Callable[[], float],
        on_stream: Callable[[Stream], None],
        limits: Limits = Limits(),
        explain_reset: Callable[[Stream, Ending], None] = no_reason,
        account: Account | None = None,
    ) -> None:
        """``account`` pays for the streams that the peer opens; the owner closes it."""
        self.carrier = carrier
        self.client = client
        self.clock = clock
        self.limits = limits
        self.on_stream = on_stream
        self.explain_reset = explain_reset
        self.streams: dict[int, Stream] = {}
        self.closed: Ending | None = None
        self.draining = False
        self.remote_draining = False
        # Initial values of streams; links/ lowers the first when the peer requests it.
        self.first_window = INITIAL_WINDOW
        self.first_update_bytes = INITIAL_WINDOW // 2
        self.round_trip_s = 0.0
        # Out: frames of this batch, and how many bytes of data may still join them.
        self._out: list[bytes | memoryview] = []
        self._waiting_control_bytes = 0
        self.room = limits.batch_bytes
        self._waking = False
        self._blocked = False
        self.holds_back = False
        self.sent_data = False  # since the last check, which clears it
        self.control: Stream | None = None  # it goes on while data is held back
        self._turns: ClassTurns[Stream] = ClassTurns()
        # In: bytes received, and the callback to call at how many; a header cut in two, or the rest
        # of a payload.
        self.received_bytes = 0
        self.tell_received_at = sys.maxsize
        self.tell_received: Callable[[], None] = _nobody
        #: Takes what a ping of the peer acknowledges; None: its pings are plain numbers.
        self.acknowledged_low: Callable[[int], None] | None = None
        self.quiet_bytes = 0
        self._head = bytearray()
        self._body = 0
        self._into: Stream | None = None
        self._fin_after = False
        # Memory.
        self._growth_left = self._least_growth_left = limits.growth_pool_bytes
        self.account = account if account is not None else UNBOUNDED.account("session")
        self.held = 0
        self._holders: dict[Stream, None] = {}
        self._stuck: dict[Stream, tuple[int, float]] = {}
        self._half: dict[Stream, tuple[int, float]] = {}
        # Liveness.
        self._next_id = 1 if client else 2
        self._ping_value = 0
        self._ping_at: float | None = None
        self._last_ping = self.last_heard = clock()
        self.reasons: dict[int, Ending] = {}
        self._floods: Floods | None = None

    def __repr__(self) -> str:
        role = "client" if self.client else "server"
        return f"<Session {role}, {len(self.streams)} streams, {self.held} held>"

    # Opening and closing.

    def open(
        self,
        early: Early | None = None,
        first: bytes = b"",
        traffic: TrafficClass = NORMAL,
        account: Account | None = None,
    ) -> Stream | None:
        """Open a stream, with ``first`` as its first bytes; None if no more can be opened.

        ``account`` pays for it until it is over; the stream becomes a user of the account.
        """
        if not self.can_open:
            return None
        stream_id, self._next_id = self._next_id, self._next_id + 2
        account = (account if account is not None else self.account).enter(STREAM_BYTES)
        stream = self.streams[stream_id] = Stream(self, stream_id, account, early)
        stream.traffic = traffic
        size = len(first)
        if 0 < size <= min(self.room, stream.credit):
            stream.credit -= size
            stream.bytes_written += size
            self.emit(pack(0, DATA, SYN, stream_id, size), first, size)
            return stream
        # SYN is control: it is sent at once, and the bytes take their turn.
        self.emit(pack(0, WINDOW_UPDATE, SYN, stream_id, 0), b"", 0)
        if first:
            stream.write(first)
        return stream

    @property
    def can_open(self) -> bool:
        """Whether it is neither closed, drained by the peer, full, nor out of ids."""
        return not (
            self.closed
            or self.remote_draining
            or len(self.streams) >= self.limits.max_streams
            or self._next_id > LAST_ID
        )

    @property
    def ids_left(self) -> int:
        """The number of streams that can still be opened."""
        return (LAST_ID - self._next_id) // 2 + 1

    @property
    def unsent(self) -> bool:
        """Whether frames or data wait for the carrier."""
        return bool(self._out or self._turns.waiting)

    def go_away(self, code: GoAwayCode = GoAwayCode.NORMAL) -> None:
        """Tell the peer to open no more streams; NORMAL drains."""
        if not self.closed and (not self.draining or code):
            self.draining = True
            self.emit(pack(0, GO_AWAY, 0, 0, code), b"", 0)

    def lost(self, reason: Ending) -> None:
        """The carrier is gone: reset every stream's peer."""
        if self.closed:
            return
        self.closed = reason
        self._out.clear()
        self._turns.clear()
        for stream in list(self.streams.values()):
            stream.lost(reason)

    def forget(self, stream: Stream) -> None:
        """Drop a finished stream; frames that still arrive for it are ignored."""
        self.streams.pop(stream.id, None)
        self._half.pop(stream, None)
        self.reasons.pop(stream.id, None)
        if stream.held:
            self.release(stream, stream.held)
            stream.held = 0
        stream.account.leave(STREAM_BYTES)

    # Sending.

    def emit(self, header: bytes, data: bytes, size: int) -> None:
        """Add one frame to this batch."""
        out = self._out
        out.append(header)
        if size:
            out.append(data)
            self.room -= size
            self.sent_data = True
        if self._blocked:
            self._count_control()
        elif not self._waking:
            self._waking = True
            self.carrier.wake()

    def emit_parts(self, header: bytes, parts: list[bytes | memoryview], size: int) -> None:
        """Add one frame whose payload is in pieces to this batch."""
        self._out.append(header)
        self._out += parts
        self.room -= size
        self.sent_data = True
        if not self._waking:
            self._waking = True
            self.carrier.wake()

    def _count_control(self) -> None:
        # Data stops while the carrier is full, control frames do not: a peer that makes us answer
        # (pings, streams to reset) but never reads would fill our memory with the answers.
        # Counted here, refused in receive(): nothing on the sending side may raise.
        self._waiting_control_bytes += HEADER_BYTES

    def want_turn(self, stream: Stream) -> None:
        """Queue a stream that has something to send."""
        if self.holds_back and stream is self.control:
            while stream.can_send:
                stream.take_turn(MAX_FRAME)
        elif not stream.in_turn and stream.credit > 0:
            stream.in_turn = True
            self._turns.add(stream)
            if not self._waking and not self._blocked:
                self._waking = True
                self.carrier.wake()

    def flush(self) -> None:
        """Write this batch, and give waiting streams their turns while the carrier has room."""
        self._waking = True  # no wake-ups for what this call will send
        out = self._out
        while not self._blocked and not self.closed:
            if self.room > 0 and self._turns.waiting:
                self._take_turns()
            if not out:
                break
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            self.room = 0 if self.holds_back else self.limits.batch_bytes
            if not self.carrier.send(bytes(data)):
                self._blocked = True
                self.room = 0
        self._waking = False

    def _take_turns(self) -> None:
        turns = self._turns
        number = turns.waiting
        while number and turns.waiting:
            number -= 1
            stream = turns.take()
            stream.in_turn = False
            # Without room for others: a reader that continues at once would overtake waiting ones.
            room, self.room = self.room, 0
            traffic, size = stream.traffic, stream.take_turn(room)
            self.room += room
            turns.sent(traffic, size)
            if stream.can_send and not stream.in_turn:
                stream.in_turn = True
                turns.add(stream)
            # Data in a batch precedes later data, however urgent that is.
            if self.room <= 0 or (traffic is BULK and size):
                break

    def resume(self) -> None:
        """The carrier has room again."""
        self._blocked = False
        self._waiting_control_bytes = 0
        self.room = 0 if self.holds_back else self.limits.batch_bytes
        self.flush()

    def suspend(self) -> None:
        """The carrier has no connection: nothing goes out until ``resume``."""
        self._blocked = True
        self.room = 0

    def hold_back(self, hold: bool) -> None:
        """Send no data, only control frames; or data again."""
        self.holds_back = hold
        if hold:
            self.room = 0
        elif not self._blocked:
            self.room = self.limits.batch_bytes
            self.carrier.wake()

    # Receiving.

    def receive(self, view: memoryview) -> None:
        """Take what the carrier read, however it is split.

        Raises:
            ProtocolError: the peer violated the protocol; the session must end.
        """
        if self._waiting_control_bytes > self.limits.max_waiting_control_bytes:
            raise ProtocolError("yamux: peer sends requests but does not read")
        pos, end = 0, len(view)
        self.received_bytes += end
        streams = self.streams
        while pos < end:
            if self._body:
                size = min(self._body, end - pos)
                self._body -= size
                if self._into is not None:
                    self._into.received(bytes(view[pos : pos + size]))
                pos += size
                if not self._body and self._fin_after:
                    self._finish_frame()
            elif self._head or end - pos < HEADER_BYTES:
                size = min(HEADER_BYTES - len(self._head), end - pos)
                self._head += view[pos : pos + size]
                pos += size
                if len(self._head) == HEADER_BYTES:
                    fields = unpack_from(self._head)
                    self._head.clear()
                    self._frame(*fields)
            else:
                version, kind, flags, stream_id, length = unpack_from(view, pos)
                pos += HEADER_BYTES
                # The fast path: a whole DATA frame without flags for a known stream.
                if kind == DATA and not flags and not version and 0 < length <= end - pos:
                    stream = streams.get(stream_id)
                    if stream is not None:
                        stream.receive_credit -= length
                        if stream.receive_credit < 0:
                            raise ProtocolError(f"yamux: stream {stream_id} exceeds its window")
                        stream.received(bytes(view[pos : pos + length]))
                    pos += length
                else:
                    self._frame(version, kind, flags, stream_id, length)
        if self.received_bytes >= self.tell_received_at:
            self.tell_received()

    def _frame(self, version: int, kind: int, flags: int, stream_id: int, length: int) -> None:
        check(version, kind, flags)
        if kind == PING:
            self._pinged(flags, length)
        elif kind == GO_AWAY:
            self._told_to_go(length)
        else:
            if flags & SYN:
                self._accept(stream_id)
            stream = self.streams.get(stream_id)
            if kind == DATA and length:
                self._data(stream, flags, length)
            elif stream is not None:
                if length:
                    stream.credited(length)
                if flags & FIN:
                    self._fin(stream)
            if flags & RST and stream is not None:
                if not stream.bytes_written and bool(stream_id & 1) != self.client:
                    self._flood("streams reset before their answer")
                stream.lost(self.reasons.pop(stream_id, Ending.RESET))
            if kind == DATA and not length and not flags:
                self._flood("empty frames")

    def _flood(self, what: str) -> None:
        """Count events that are cheap for a peer and costly for us; none of the data path."""
        if self._floods is None:
            self._floods = Floods(self.clock)
        if not self._floods.allow(what):
            raise ProtocolError(f"yamux: too many {what}")

    def _data(self, stream: Stream | None, flags: int, length: int) -> None:
        if stream is not None:
            stream.receive_credit -= length
            if stream.receive_credit < 0:
                raise ProtocolError(f"yamux: stream {stream.id} exceeds its window")
        self._body = length
        self._into = stream
        self._fin_after = bool(flags & FIN)

    def _finish_frame(self) -> None:
        stream, self._into, self._fin_after = self._into, None, False
        if stream is not None and stream.ending is None:
            self._fin(stream)

    def _fin(self, stream: Stream) -> None:
        if stream.got_fin:
            raise ProtocolError(f"yamux: second FIN on stream {stream.id}")
        stream.received_fin()

    def _accept(self, stream_id: int) -> None:
        if self.closed:  # by a sink, within this receive: nothing would end the stream
            return
        if stream_id in self.streams:
            raise ProtocolError(f"yamux: duplicate SYN on stream {stream_id}")
        if stream_id == 0 or bool(stream_id & 1) == self.client:
            raise ProtocolError(f"yamux: stream id {stream_id} is not in the peer's range")
        full = self.draining or len(self.streams) >= self.limits.max_streams
        account = self.account
        if full or not (account.admit(STREAM_BYTES) or self._admit_for_a_client(account)):
            self._refuse(stream_id)
            return
        stream = self.streams[stream_id] = Stream(self, stream_id, account)
        # ACK at SYN, not with the dial's answer: a Go peer gives up on a session whose stream is
        # not acknowledged for 75 s, and stops opening streams at 256 unacknowledged ones.
        self.emit(pack(0, WINDOW_UPDATE, ACK, stream_id, 0), b"", 0)
        self.on_stream(stream)

    def _admit_for_a_client(self, account: Account) -> bool:
        """Charge a stream to a peer that is over its share, but acts for many clients.

        One of those may be far over its share. The dial shows which client the stream is for, and
        that client's share decides (links/mux.py).
        """
        if not account.divided or len(self.streams) * STREAM_BYTES > account.budget.large_bytes:
            return False
        account.enter(STREAM_BYTES)
        return True

    def _refuse(self, stream_id: int) -> None:
        self._flood("refused streams")
        self.emit(pack(0, WINDOW_UPDATE, RST, stream_id, 0), b"", 0)

    def _told_to_go(self, code: int) -> None:
        if code == GoAwayCode.NORMAL:
            self.remote_draining = True
        elif code in (GoAwayCode.PROTOCOL_ERROR, GoAwayCode.INTERNAL_ERROR):
            raise ProtocolError(f"yamux: peer ended the session: {GoAwayCode(code).name}")
        else:
            raise ProtocolError(f"yamux: unknown go-away code {code}")

    # Memory: growth comes from a pool, and bytes not taken by sinks are counted.

    def grow(self, wanted: int) -> int:
        """Take growth from the pool; less if the pool is low or sinks are far behind."""
        if self.held > self.limits.no_growth_above_held_bytes:
            return 0
        got = min(wanted, self._growth_left)
        self._growth_left -= got
        if self._growth_left < self._least_growth_left:
            self._least_growth_left = self._growth_left
        return got

    def ungrow(self, size: int) -> None:
        """Give growth back to the pool."""
        self._growth_left += size

    @property
    def grown_bytes(self) -> int:
        """The bytes currently lent from the pool to streams' windows."""
        return self.limits.growth_pool_bytes - self._growth_left

    @property
    def most_grown_bytes(self) -> int:
        """The most that the pool ever lent."""
        return self.limits.growth_pool_bytes - self._least_growth_left

    def hold(self, stream: Stream, size: int) -> None:
        """Count bytes that a sink could not take, and charge the stream's account.

        No credit is returned for them; an account over its share gets less even for what sinks
        take.
        """
        self.held += size
        if stream not in self._holders:
            self._holders[stream] = None
            size += FULL_SINK_BYTES
        stream.account.hold(size)

    def release(self, stream: Stream, size: int) -> None:
        """The sink took the held bytes."""
        del self._holders[stream]
        self.held -= size
        stream.account.give_back(size + FULL_SINK_BYTES)

    def charge(self, stream: Stream, account: Account) -> None:
        """Transfer a stream to another account, taking over the caller's use of it."""
        before, stream.account = stream.account, account
        size = STREAM_BYTES
        if stream in self._holders:
            size += stream.held + FULL_SINK_BYTES
        account.take_over(size, before)

    def _reset_stuck(self, now: float) -> None:
        """Reset readers that take nothing while the budget is used up."""
        # Slowing comes first: readers inside their share, or that still take bytes, are not reset.
        seen, self._stuck = self._stuck, {}
        for stream in list(self._holders):
            account = stream.account
            if not account.budget.exhausted or not account.over_share:
                continue
            waits, since = unsent(stream.peer), now
            if stream in seen and seen[stream][0] == waits:
                since = seen[stream][1]
            if now - since < self.limits.stuck_s:
                self._stuck[stream] = (waits, since)
            else:
                peer = stream.peer
                stream.abort(Ending.STALLED)
                peer.abort(Ending.STALLED)

    # Liveness. The owner calls tick about once a second.

    def half_closed(self, stream: Stream) -> None:
        """Watch a half-closed stream: it is reset when idle for too long."""
        self._half[stream] = (-1, self.clock())

    def heard(self) -> None:
        """Bytes arrived; called once per read."""
        self.last_heard = self.clock()

    @property
    def unanswered_s(self) -> float:
        """How long a ping has been unanswered; 0 without one."""
        return 0.0 if self._ping_at is None else self.clock() - self._ping_at

    def ping(self) -> None:
        """Send a ping; the answer also measures the round trip."""
        now = self._last_ping = self.clock()
        if self._ping_at is None:
            self._ping_at = now
            # A peer that keeps what we have not acknowledged reads that out of the ping. Every ping
            # has another value: the answer to the last one came in between.
            count = self._ping_value + 1 if self.acknowledged_low is None else self.received_bytes
            self._ping_value = count & 0xFFFFFFFF
            self.emit(pack(0, PING, SYN, 0, self._ping_value), b"", 0)

    def _pinged(self, flags: int, value: int) -> None:
        self.quiet_bytes += HEADER_BYTES
        if flags & SYN:
            self._flood("pings")
            if self.acknowledged_low is not None:
                self.acknowledged_low(value)
            self.emit(pack(0, PING, ACK, 0, value), b"", 0)
        elif flags & ACK and self._ping_at is not None and value == self._ping_value:
            self.round_trip_s = self.clock() - self._ping_at
            self._ping_at = None

    def tick(self) -> bool:
        """Ping, and reset idle half-closed or stuck streams; False when the peer is dead."""
        now = self.clock()
        if now - self.last_heard > self.limits.dead_after_s:
            return False
        if now - self._last_ping >= self.limits.ping_every_s:
            self.ping()
        for stream, (seen, since) in list(self._half.items()):
            moved = stream.bytes_written + stream.peer.bytes_written
            if moved != seen:
                self._half[stream] = (moved, now)
            elif now - since > self.limits.half_closed_idle_s:
                peer = stream.peer
                stream.abort(Ending.TIMED_OUT)
                peer.abort(Ending.TIMED_OUT)
        if self._holders or self._stuck:
            self._reset_stuck(now)
        return True
