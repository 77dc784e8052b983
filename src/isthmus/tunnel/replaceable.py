"""A carrier whose connection can be replaced, so that a session outlives its connections.

Both sides number the bytes of a session from the first one after the TLS handshake. A side keeps
what it sent, by reference, until the peer acknowledges it. When the connection is lost, the owner
detaches it, learns from the peer on a new connection how far the peer got, and attaches that
connection: everything after that offset is sent again, and the session goes on. The session itself
is plain yamux and notices nothing but a pause.

links/ finds the other side again and authenticates. The clock of a suspended session is here, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from isthmus.errors import ProtocolError
from isthmus.tunnel.budget import Account
from isthmus.tunnel.limits import KIB, MIB
from isthmus.tunnel.session import Carried, Carrier, Session

#: Control frames go out even while data is held back, or two full sides would wait for each other's
#: acknowledgements for ever. An honest peer acknowledges long before this much of them is kept.
MOST_KEPT_CONTROL_BYTES = 4 * MIB
#: Over a shorter round trip 4 MiB are acknowledged before the sender has used them up. More memory
#: costs CPU: downloads took 11 to 14 % more of it per GB with 16 MiB over loopback.
LONG_WAY_S = 0.005
#: What the list and the object of one piece cost besides its bytes.
_PIECE_BYTES = 48
#: Kept bytes are charged in steps: a charge for each piece would be a call for each batch. What an
#: idle link keeps is in what a link costs anyway.
_FREE_BYTES, _STEP_BYTES = 2 * KIB, 64 * KIB
_LOW_BITS = 0xFFFFFFFF


def _nobody_flushes() -> None:
    """There is no connection."""


class SessionConnection(Carrier, Protocol):
    """One connection below a session, which feeds what it reads to ``session``."""

    session: Carried | None


class PausableClock:
    """A clock that can be stopped; times measured with it do not grow meanwhile."""

    __slots__ = ("_behind_s", "_clock", "_stopped_at")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._behind_s = 0.0
        self._stopped_at: float | None = None

    def __call__(self) -> float:
        now = self._clock() if self._stopped_at is None else self._stopped_at
        return now - self._behind_s

    def stop(self) -> None:
        """Stop the clock."""
        if self._stopped_at is None:
            self._stopped_at = self._clock()

    def go_on(self) -> None:
        """Run again from where it stopped."""
        if self._stopped_at is not None:
            self._behind_s += self._clock() - self._stopped_at
            self._stopped_at = None


class ReplaceableCarrier:
    """Stands between a session and its connection; keeps what the peer has not acknowledged."""

    __slots__ = (
        "_account",
        "_charged_bytes",
        "_clock",
        "_connection",
        "_pieces",
        "_resend_at",
        "_start",
        "acknowledged",
        "kept_bytes",
        "limit_bytes",
        "resent_bytes",
        "sent",
        "session",
        "wake",
        "wake_in_time",
    )

    def __init__(self, connection: SessionConnection, session: Session, account: Account) -> None:
        """``account`` pays for what is kept, until ``close``."""
        self._connection: SessionConnection | None = connection
        self._account = account.join()
        self._charged_bytes = 0
        self._clock: PausableClock | None = None
        self._pieces: deque[bytes] = deque()
        self._start = 0  # the offset of the first kept byte
        self._resend_at = -1  # how many pieces went out again; -1: nothing is sent again
        self.session = session
        #: Reads the connection itself: a call for each batch of events would cost too much.
        self.wake: Callable[[], None] = connection.wake
        self.wake_in_time: Callable[[], None] = connection.wake_in_time
        #: Offsets in the byte stream of this side: the peer has everything before
        #: ``acknowledged``, and this side has sent everything before ``sent``.
        self.acknowledged = self.sent = 0
        self.kept_bytes = 0
        self.limit_bytes = session.limits.first_kept_bytes
        self.resent_bytes = 0
        session.carrier = self

    def __repr__(self) -> str:
        state = "suspended" if self._connection is None else "connected"
        return f"<ReplaceableCarrier {state}, {self.acknowledged} of {self.sent} acknowledged>"

    @property
    def suspended(self) -> bool:
        """There is no connection."""
        return self._connection is None

    @property
    def overfull(self) -> bool:
        """The peer takes frame after frame and acknowledges none: the owner gives the link up."""
        return self.kept_bytes > self.limit_bytes + MOST_KEPT_CONTROL_BYTES

    # The session's carrier.

    def send(self, data: bytes) -> bool:
        """Keep a batch of frames, and send it; False: the connection is full, or there is none."""
        self._pieces.append(data)
        size = len(data)
        self.sent += size
        self.kept_bytes += size + _PIECE_BYTES
        if self.kept_bytes > self._charged_bytes + _FREE_BYTES:
            self._charge()
        if self.kept_bytes > self.limit_bytes:
            self._be_full()
        # While pieces go out again the session is suspended, and nothing new comes here.
        return self._connection is not None and self._connection.send(data)

    # Acknowledgements.

    def acknowledge(self, offset: int) -> None:
        """The peer has everything before ``offset``.

        Raises:
            ProtocolError: it was never sent.
        """
        if offset > self.sent:
            raise ProtocolError(f"link: {offset} bytes acknowledged, {self.sent} were sent")
        if offset <= self.acknowledged:
            return  # overtaken by a later one, or said again after a loss
        self.acknowledged = offset
        pieces, start = self._pieces, self._start
        while pieces:
            size = len(pieces[0])
            if start + size > offset:
                break
            start += size
            pieces.popleft()
            self.kept_bytes -= size + _PIECE_BYTES
            if self._resend_at > 0:
                self._resend_at -= 1
        self._start = start
        if self._charged_bytes > self.kept_bytes + _STEP_BYTES:
            self._give_back()
        session = self.session
        if session.holds_back and self.kept_bytes <= self.limit_bytes // 2:
            session.hold_back(False)

    def acknowledge_low(self, low_bits: int) -> None:
        """The same by the lower 32 bits of the offset, as a ping carries them.

        Raises:
            ProtocolError: it was never sent.
        """
        # What is kept is far below 4 GiB, so that there is one such offset.
        ahead = (low_bits - self.acknowledged) & _LOW_BITS
        if ahead <= self.sent - self.acknowledged:
            self.acknowledge(self.acknowledged + ahead)
        elif ahead < 1 << 31:
            raise ProtocolError(f"link: a ping acknowledges {ahead} bytes that were not sent")

    def pays_by(self, account: Account) -> None:
        """Another account pays from now on: the peer has shown who it is."""
        before, self._account = self._account, account.join()
        if self._charged_bytes:
            self._account.hold(self._charged_bytes)
            before.give_back(self._charged_bytes)
        before.close()

    # Replacing the connection.

    def detach(self) -> int:
        """Let go of the connection: no further byte of it reaches the session.

        Gives the offset that the peer is to send from; it holds until ``attach``.
        """
        if self._connection is not None:
            self._connection.session = None
            self._connection = None
            self.wake = self.wake_in_time = _nobody_flushes
            self._resend_at = -1
            if self._clock is None:  # most sessions never stand still, and pay for no such clock
                self._clock = PausableClock(self.session.clock)
                self.session.clock = self._clock
            self._clock.stop()
            self.session.suspend()
        return self.session.received_bytes

    def can_resume_at(self, offset: int) -> bool:
        """Everything after this offset is still kept, and it was sent."""
        return self.acknowledged <= offset <= self.sent

    def attach(self, connection: SessionConnection, offset: int) -> None:
        """Go on by this connection; the peer has everything before ``offset``.

        Raises:
            ProtocolError: that cannot be.
        """
        if not self.can_resume_at(offset):
            raise ProtocolError(
                f"link: resume at {offset}, not from {self.acknowledged} to {self.sent}"
            )
        self.detach()
        self.acknowledge(offset)
        self._connection = connection
        self.wake, self.wake_in_time = connection.wake, connection.wake_in_time
        connection.session = self
        self._resend_at = 0
        if self._clock is not None:
            self._clock.go_on()
        self.session.heard()
        self.resume()

    def resume(self) -> None:
        """Send more of what has to go again, then let the session go on."""
        connection = self._connection
        while self._resend_at >= 0 and connection is not None:
            if self._resend_at == len(self._pieces):
                self._resend_at = -1
                connection.session = self.session
                self.session.resume()
                return
            piece = self._pieces[self._resend_at]
            if not self._resend_at:
                piece = piece[self.acknowledged - self._start :]
            self._resend_at += 1
            self.resent_bytes += len(piece)
            if not connection.send(piece):
                return

    def close(self) -> None:
        """Drop everything that is kept, and end the charge for it."""
        self._connection = None
        self._pieces.clear()
        self.kept_bytes = 0
        charged, self._charged_bytes = self._charged_bytes, 0
        if charged:
            self._account.give_back(charged)
        self._account.close()

    # While it sends again, the connection feeds this carrier.

    def heard(self) -> None:
        """Bytes arrived."""
        self.session.heard()

    def receive(self, view: memoryview) -> None:
        """Pass on what was read."""
        self.session.receive(view)

    def flush(self) -> None:
        """Write out what a batch of events made, once everything old has gone."""
        self.session.flush()

    # Memory.

    def _charge(self) -> None:
        missing = self.kept_bytes - self._charged_bytes
        size = -(-missing // _STEP_BYTES) * _STEP_BYTES
        self._charged_bytes += size
        self._account.hold(size)

    def _give_back(self) -> None:
        needed = 0
        if self.kept_bytes > _FREE_BYTES:
            needed = -(-self.kept_bytes // _STEP_BYTES) * _STEP_BYTES
        size = self._charged_bytes - needed
        self._charged_bytes = needed
        self._account.give_back(size)
        if self._account.over_share:
            self.limit_bytes = self.session.limits.first_kept_bytes

    def _be_full(self) -> None:
        session = self.session
        if session.holds_back:
            return
        long_way = session.round_trip_s > LONG_WAY_S
        most = session.limits.most_kept_bytes
        if long_way and self.limit_bytes < most and self._account.has_room:
            self.limit_bytes *= 2
        else:
            session.hold_back(True)
