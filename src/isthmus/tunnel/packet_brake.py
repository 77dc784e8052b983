"""The brake of a call that carries many connections: a slow reader is slowed, never reset.

The protocol has flow control for the whole call (HTTP/2's), not for each connection. So credit is
*withheld* from the call's sender for bytes that a full sink has not taken.

- While no other connection is active, credit returns as the sink takes bytes, as in Go's programs.
- While others are active, the slow sink is also lent credit: PULSE_BYTES every PULSE_S, for bytes
  that it has not taken and that are buffered here. The others wait for a pulse or two, not for the
  slow reader. A connection that sends is noticed at once (``PacketLink.watching``); one that only
  waits for an answer gets it by an occasional probe.
- Buffered bytes are charged to an account (budget.py). When its share is used up, and until
  the account is well inside its share again, nothing is lent: the call runs at the pace of its slow
  readers, as in Go's programs, with a window of REDUCED_WINDOW_BYTES so that little queues ahead of
  the other connections.

The work per packet is one addition while a sink is full. Everything else happens in looks, every
few milliseconds and only while a sink is full.
"""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.tunnel.budget import Account, Budget
from isthmus.tunnel.end import End, Ending
from isthmus.tunnel.end import unsent as unsent
from isthmus.tunnel.linked_end import LinkedCall, LinkedEnd

KIB, MIB = 1024, 1024 * 1024
#: The budget of a call whose program has none; the share of its only peer is half of it.
PRIVATE_BUDGET_BYTES = 256 * MIB
#: While others are active, each slow reader is lent this much (a turn of a sender) this often.
PULSE_S = 0.002
PULSE_BYTES = 64 * KIB
#: How long a connection counts as active after it sent or got something.
ACTIVE_S = 0.2
#: A call that stands still lets this much through (a turn and a small packet after it), first
#: every PROBE_S, then less often, up to MOST_PROBE_S.
PROBE_BYTES = 68 * KIB
PROBE_S = 0.1
MOST_PROBE_S = 0.5
#: The call's receive window when the share is used up.
REDUCED_WINDOW_BYTES = 64 * KIB
#: Credit is returned in pieces of at least this size, small so that others wait little.
_WORTH_A_FRAME_BYTES = 4 * KIB
_LOOK_S = 0.005
_IDLE_LOOK_S = 0.020
#: Sinks that get no more data are only charged for what they buffer.
_LEAVING_LOOK_S = 0.100
_IDLE_LOOKS = 20
_MOST_GAP_S = 0.050
#: Querying a sink takes about 1 µs: scans are this far apart per sink, 1 % of the time.
_SCAN_S_EACH = 0.000_1
#: A loop's timers may fire this much early.
_EARLY_S = 0.001


class _Sink:
    """The last observation of a full sink, and the bytes charged for it."""

    __slots__ = ("account", "charged", "end", "moved_at", "passed")

    def __init__(self, end: End, account: Account, now: float) -> None:
        self.end = end
        self.account = account
        self.charged = 0
        self.passed = end.bytes_written - unsent(end)
        self.moved_at = now

    def charge(self, size: int) -> None:
        more = size - self.charged
        self.charged = size
        if more > 0:
            self.account.hold(more)
        elif more:
            self.account.give_back(-more)


class Brake:
    """The full sinks of one call, and the credit withheld from its sender because of them."""

    __slots__ = (
        "_due",
        "_far_over",
        "_feeding",
        "_full_window",
        "_given_at",
        "_held",
        "_idle",
        "_leaving",
        "_link",
        "_looked_at",
        "_other_at",
        "_probe_s",
        "_scan_at",
        "_sinks",
        "_timers",
        "behind",
        "exhausted",
        "withheld",
    )

    def __init__(self, link: LinkedCall) -> None:
        self._link = link
        #: The connections whose sink is full, with the bytes that each has not taken: as of the
        #: last look, plus what arrived since.
        self.behind: dict[LinkedEnd, int] = {}
        self._held = 0  # sum over all of them
        #: Received bytes for which credit is withheld.
        self.withheld = 0
        self._sinks: dict[LinkedEnd, _Sink] = {}
        #: Connections that receive no more data but whose sink still buffers some.
        self._leaving: dict[LinkedEnd, None] = {}
        #: The share is used up: the call runs at the pace of its slow readers.
        self.exhausted = False
        self._far_over = False
        self._full_window = 0  # the full window, while it is reduced
        self._feeding = 1  # the number of slow readers that take turns
        self._other_at = float("-inf")
        self._given_at = float("-inf")
        self._probe_s = PROBE_S
        self._timers = 0
        self._due = 0.0
        self._looked_at = 0.0
        self._scan_at = 0.0
        self._idle = 0

    @property
    def held(self) -> int:
        """Bytes that full sinks have not taken yet."""
        leaving = sum(unsent(self._sinks[end].end) for end in self._leaving)
        return leaving + sum(unsent(end.peer) for end in self.behind)

    def stalled(self, for_s: float) -> Iterator[LinkedEnd]:
        """The connections whose full sink has taken nothing for ``for_s`` seconds.

        For the caller that resets them when the budget is exhausted; this class does not.
        """
        since = self._link.clock() - for_s
        return iter([end for end, sink in self._sinks.items() if sink.moved_at <= since])

    # Events of sinks.

    def full(self, end: LinkedEnd, size: int) -> None:
        """A sink took ``size`` bytes and is full."""
        behind = self.behind
        self.withheld += size
        self._held += size
        if end in behind:
            behind[end] += size
            return
        if not behind:
            self._begin()
        behind[end] = size
        self._look_in(_LOOK_S)

    def _begin(self) -> None:
        link = self._link
        self._given_at = self._looked_at = now = link.clock()
        self._probe_s = PROBE_S
        self._scan_at = self._idle = 0
        link.watching = len(link.ends) + len(link.dials) < 2
        if not link.watching:  # not watched until now: a connection may be waiting for an answer
            self._other_at = now

    def resumed(self, end: LinkedEnd) -> None:
        """A sink has room again."""
        if self._leaving and end in self._leaving:
            del self._leaving[end]
            self._sinks.pop(end).charge(0)
        elif end in self.behind:
            self._drop(end)
            if end in self._sinks:
                self._sinks.pop(end).charge(0)
            if self.behind:
                self.other(end)

    def ended(self, end: LinkedEnd, ending: Ending) -> None:
        """A connection is over; after a clean end its sink may still keep what came before."""
        if ending is Ending.CLEAN:
            self.nothing_more(end)
            return
        self._leaving.pop(end, None)
        sink = self._sinks.pop(end, None)
        if sink is not None:
            sink.charge(0)
        if end in self.behind:
            self._drop(end)

    def nothing_more(self, end: LinkedEnd) -> None:
        """A sink receives nothing more: it brakes no connection, but its bytes stay charged."""
        if end in self.behind:
            waiting = unsent(end.peer)
            self._sink(end, self._link.clock()).charge(waiting)
            if waiting:
                self._leaving[end] = None
                self._look_in(_LEAVING_LOOK_S)
            else:
                del self._sinks[end]
            self._drop(end)

    def lost(self) -> None:
        """The link is gone: stop looking."""
        for sink in self._sinks.values():
            sink.charge(0)
        self._sinks.clear()
        self._leaving.clear()

    def _drop(self, end: LinkedEnd) -> None:
        self._held -= self.behind.pop(end)
        if not self.behind:
            self._let_go()
        elif self.withheld > self._held:
            self._give(self.withheld - self._held)

    def _let_go(self) -> None:
        self.withheld = self._held = 0
        self._link.watching = self.exhausted = False
        self._widen()
        self._link.give_credit()

    # Other connections.

    def other(self, end: LinkedEnd | None) -> None:
        """Another connection sends or receives; only called while a sink is full."""
        if end in self.behind:
            return
        now = self._link.clock()
        was_active = self._active(now)
        self._other_at = now
        self._link.watching = False
        self._probe_s = PROBE_S
        if not was_active and not self.exhausted:
            self._give(min(self.withheld, PULSE_BYTES))
            self._looked_at = now
            self._look_in(PULSE_S)

    def _active(self, now: float) -> bool:
        return now - self._other_at <= ACTIVE_S

    # Credit.

    def batch_over(self, touched: list[LinkedEnd]) -> None:
        """Return credit for a batch, except for what is withheld."""
        behind = self.behind
        for end in touched:
            if end not in behind:
                self.other(end)
                break
        stream = self._link.stream
        stream.consumed(stream.unconsumed - self.withheld)

    def _give(self, size: int) -> None:
        """Release ``size`` bytes of withheld credit, and tell the sender at once."""
        self.withheld -= size
        stream = self._link.stream
        stream.give(size)
        self._given_at = self._link.clock()

    def _narrow(self) -> None:
        stream = self._link.stream
        more = stream.window - REDUCED_WINDOW_BYTES
        if not self._full_window and more > 0:
            self._full_window = stream.full_window
            stream.shrink_window(REDUCED_WINDOW_BYTES)
            # The buffered bytes fill the window anyway: that part is removed.
            size = min(more, self.withheld)
            self.withheld -= size
            stream.consumed(size)

    def _widen(self) -> None:
        if self._full_window:
            window, self._full_window = self._full_window, 0
            self._link.stream.grow_window(window)

    # Looks.

    def _look_in(self, delay_s: float) -> None:
        """Have ``ease`` called after ``delay_s``, or earlier."""
        due = self._link.clock() + delay_s
        if not self._timers or due < self._due:
            self._timers += 1
            self._due = due
            self._link.owner.ease_later(delay_s)

    def ease(self) -> None:
        """Look at the sinks: the delay requested with ``ease_later`` is over."""
        if self._timers:
            self._timers -= 1
        now = self._link.clock()
        if self._timers and now + _EARLY_S < self._due:
            return  # an older timer; the current one fires later
        self._due = float("inf")
        took = 0
        if (self.behind or self._leaving) and now >= self._scan_at:
            took = self._scan(now)
        if self.behind:
            self._look_in(self._look(now, took))
        elif self._leaving:
            self._look_in(_LEAVING_LOOK_S)

    def _look(self, now: float, took: int) -> float:
        """Return as much credit as allowed; returns the time until the next look."""
        gap_s = min(now - self._looked_at, _MOST_GAP_S)
        self._looked_at = now
        active = self._active(now)
        self._link.watching = not active
        self._idle = 0 if took else self._idle + 1
        credit = self._link.stream.receive_credit
        self._release(self.withheld - self._held)
        delay_s = _LOOK_S if self._idle < _IDLE_LOOKS else _IDLE_LOOK_S
        if self.exhausted:
            # Far over the share half of that, so that it shrinks while every connection still
            # moves.
            size = min(took // 2 if self._far_over else took, self.withheld)
            if size >= _WORTH_A_FRAME_BYTES:
                self._give(size)
            else:
                self._release(size)
        elif active:
            lent = int(gap_s / PULSE_S * PULSE_BYTES) * self._feeding
            self._give(min(self.withheld, took + lent))
            return PULSE_S
        elif now - self._given_at >= self._probe_s:
            self._give(min(self.withheld, PROBE_BYTES))
            self._probe_s = min(2 * self._probe_s, MOST_PROBE_S)
        if self._link.stream.receive_credit > credit:
            self._given_at = now
        return delay_s

    def _release(self, size: int) -> None:
        """Release ``size`` bytes of withheld credit; the sender is told in worthwhile frames."""
        size = min(size, self.withheld)
        if size > 0:
            self.withheld -= size
            self._link.stream.consumed(size)

    def _scan(self, now: float) -> int:
        """Charge what each sink keeps; returns what the sinks took since the last scan."""
        took = feeding = 0
        self._held = 0
        behind = self.behind
        for end, before in list(behind.items()):
            sink = self._sink(end, now)
            # A full sink that cannot report its size counts with everything received.
            waiting = unsent(sink.end) or before
            passed = sink.end.bytes_written - waiting
            if passed > sink.passed:
                took += passed - sink.passed
                sink.moved_at = now
            sink.passed = passed
            feeding += waiting > sink.charged
            sink.charge(waiting)
            behind[end] = waiting
            self._held += waiting
        if self._leaving:
            self._scan_leaving(now)
        self._feeding = max(feeding, self._feeding * 3 // 4, 1)
        self._scan_at = now + _SCAN_S_EACH * len(self._sinks)
        accounts = {self._sinks[end].account for end in behind}
        self._far_over = any(map(_far_over, accounts))
        if any(account.over_share for account in accounts):
            self.exhausted = True
            self._narrow()
        elif self.exhausted and all(account.has_room for account in accounts):
            self.exhausted = False
            self._widen()
        return took

    def _scan_leaving(self, now: float) -> None:
        for end in list(self._leaving):
            sink = self._sinks[end]
            waiting = unsent(sink.end) if getattr(sink.end, "ending", None) is None else 0
            sink.charge(waiting)
            passed = sink.end.bytes_written - waiting
            if passed != sink.passed:
                sink.passed, sink.moved_at = passed, now
            if not waiting:
                del self._leaving[end], self._sinks[end]

    def _sink(self, end: LinkedEnd, now: float) -> _Sink:
        sink = self._sinks.get(end)
        if sink is None or sink.end is not end.peer:  # joined since: another end keeps its bytes
            if sink is not None:
                sink.charge(0)
            account = end.account or self._link.account
            sink = self._sinks[end] = _Sink(end.peer, account, now)
        return sink


def _far_over(account: Account) -> bool:
    share = account.share_bytes
    return account.used_bytes > share + share // 8


def private_account() -> Account:
    """An account for a call whose program has no budget."""
    return Budget(PRIVATE_BUDGET_BYTES).account("call")
