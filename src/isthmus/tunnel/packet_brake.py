"""The brake of a call that carries many connections: what to do when a sink is full.

The protocol has no flow control of a connection's own. A full sink brakes the whole call, which
slows its sender down, for as long as its reader is quick: then nobody waits long for it. A reader
that is slower than that brakes once, for BRAKE_S, and from then on gets a budget; when that is
used up its connection is ended. Nobody else ever waits longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from isthmus.tunnel.end import Early, End, Ending

if TYPE_CHECKING:
    from isthmus.tunnel.linked_end import LinkedEnd

#: How long the others may wait for a reader that turns out to be slow or gone.
BRAKE_S = 0.050
#: A reader is quick if it takes so much in that time (8 MB/s).
QUICK_BYTES = 400 * 1024
#: A sink that has no more than this left to send brakes no longer.
LOW_BYTES = 64 * 1024
_LOOK_S = 0.005
#: What a slow reader may make us keep, and all of them together.
BUDGET_BYTES = 16 * 1024 * 1024
TOTAL_BUDGET_BYTES = 128 * 1024 * 1024


class Brake:
    """The full sinks of one call.

    ``ease_later(delay_s)`` has ``ease`` called then; ``let_go`` is called when nobody brakes.
    """

    __slots__ = (
        "_checked_at",
        "_clock",
        "_ease_later",
        "_easing",
        "_let_go",
        "_slow",
        "braking",
    )

    def __init__(
        self,
        clock: Callable[[], float],
        ease_later: Callable[[float], None],
        let_go: Callable[[], None],
    ) -> None:
        self._clock = clock
        self._ease_later = ease_later
        self._let_go = let_go
        self._easing = False  # a timer runs: one is enough
        #: Since when each brakes, and how much its sink had passed on by then.
        self.braking: dict[LinkedEnd, tuple[float, int]] = {}
        self._slow: dict[LinkedEnd, None] = {}
        self._checked_at = float("-inf")

    @property
    def held(self) -> int:
        """Bytes that full sinks have not taken."""
        return sum(unsent(end.peer) for end in (*self.braking, *self._slow))

    def full(self, end: LinkedEnd) -> None:
        """A sink said that it is full."""
        if end in self._slow:
            if unsent(end.peer) > BUDGET_BYTES:
                self._stall(end)
            elif len(self._slow) * BUDGET_BYTES > TOTAL_BUDGET_BYTES:
                self._check_total()
        elif end not in self.braking:
            self.braking[end] = (self._clock(), _passed_on(end.peer))
            self._ease_soon()

    def _check_total(self) -> None:
        # Asking all of them for every packet would cost more than the packets.
        now = self._clock()
        if now - self._checked_at < _LOOK_S:
            return
        self._checked_at = now
        while self.held > TOTAL_BUDGET_BYTES:
            self._stall(max((*self.braking, *self._slow), key=lambda it: unsent(it.peer)))

    def _stall(self, end: LinkedEnd) -> None:
        peer = end.peer
        end.abort(Ending.STALLED)
        peer.abort(Ending.STALLED)

    def relieved(self, end: LinkedEnd) -> None:
        """A sink has room again, or is no more."""
        self._slow.pop(end, None)
        if self.braking.pop(end, None) is not None and not self.braking:
            self._let_go()

    def ease(self) -> None:
        """Let go of those that are nearly done, and of those that turned out to be slow."""
        self._easing = False
        if not self.braking:
            return
        now = self._clock()
        for end, (since, before) in list(self.braking.items()):
            passed = _passed_on(end.peer)
            if unsent(end.peer) <= LOW_BYTES:
                del self.braking[end]
            elif passed - before >= QUICK_BYTES:
                self.braking[end] = (now, passed)
            elif now - since >= BRAKE_S:
                del self.braking[end]
                self._slow[end] = None
        if self.braking:
            self._ease_soon()
        else:
            self._let_go()

    def _ease_soon(self) -> None:
        if not self._easing:
            self._easing = True
            self._ease_later(_LOOK_S)


def _passed_on(end: End) -> int:
    return end.bytes_written - unsent(end)


def unsent(end: End) -> int:
    """How many bytes an end has taken and not passed on."""
    if isinstance(end, Early):
        return len(getattr(end, "buffer", b""))  # nobody's peer yet, or nobody's any more
    waiting = getattr(end, "backlog_bytes", None)
    return int(waiting if waiting is not None else getattr(end, "out_bytes", 0))
