"""A tunnel that may be dialed again while no byte has flowed either way.

The target was reached and the client knows it. If the link is lost now, no byte of either side
has reached the other, so another connection to the target is equivalent. From the first byte,
half-close or reset on, the tunnel is like any other: the two ends are joined directly, and the
observers between them are removed. The caller decides how to dial again, and for how long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from isthmus.tunnel.end import GONE, BaseEnd, Early, End, Ending, nobody_listens
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import DialOutcome


class Cancellable(Protocol):
    """A pending dial."""

    def cancel(self) -> None:
        """Cancel: the result is no longer wanted."""


#: Dials again for a tunnel: the dial, or None if there is no other agent. Reports to the tunnel
#: with ``dialed_again`` or ``not_dialed_again``, possibly before this returns.
DialAgain = Callable[["UntouchedTunnel"], Cancellable | None]


class _TowardsFar(Early):
    """The client's peer until the first byte; keeps the client's bytes during a new dial."""

    __slots__ = ("tunnel",)

    def __init__(self, tunnel: UntouchedTunnel) -> None:
        super().__init__()
        self.tunnel = tunnel

    def write(self, data: bytes) -> bool:
        if self.tunnel.dialing:
            return super().write(data)
        return self.tunnel.touched()[0].write(data)

    def write_eof(self) -> None:
        if self.tunnel.dialing:
            super().write_eof()
        else:
            self.tunnel.touched()[0].write_eof()

    def abort(self, reason: Ending) -> None:
        """Cancel: the client is gone."""
        if self.tunnel.dialing:
            self.tunnel.give_up(reason)
        else:
            self.tunnel.touched()[0].abort(reason)

    def pause_reading(self) -> None:
        if not self.tunnel.dialing:
            self.tunnel.far.pause_reading()

    def resume_reading(self) -> None:
        if not self.tunnel.dialing:
            self.tunnel.far.resume_reading()

    def let_go(self) -> None:
        if not self.tunnel.dialing:
            self.tunnel.far.let_go()


class TowardsClient(Early):
    """The far end's peer until the first byte; keeps nothing."""

    __slots__ = ("tunnel",)

    def __init__(self, tunnel: UntouchedTunnel) -> None:
        self.peer = GONE
        self.bytes_written = 0
        self.tunnel = tunnel

    def write(self, data: bytes) -> bool:
        return self.tunnel.touched()[1].write(data)

    def write_eof(self) -> None:
        self.tunnel.touched()[1].write_eof()

    def abort(self, reason: Ending) -> None:
        """The far end is gone: dial again if its link was lost."""
        self.tunnel.far_gone(reason)

    def pause_reading(self) -> None:
        self.tunnel.client.pause_reading()

    def resume_reading(self) -> None:
        self.tunnel.client.resume_reading()

    def let_go(self) -> None:
        self.tunnel.client.let_go()


class UntouchedTunnel(Tunnel):
    """A Tunnel that calls ``again`` when the link is lost before the first byte.

    After the first byte the ends are each other's peers; a subclass may insert ends (``meet``).
    """

    __slots__ = ("_again", "_dial", "_lost", "_up", "dialing")

    def dial_again_by(self, again: DialAgain | None) -> None:
        """Set the function that dials again, before ``open``; None: never."""
        self._again = again
        self._dial: Cancellable | None = None
        self._lost: BaseEnd | None = None  # an end that is not counted yet
        self._up: _TowardsFar | None = None
        self.dialing = False

    @property
    def untouched(self) -> bool:
        """Whether no byte has flowed yet."""
        return self._again is not None

    def open(self) -> None:
        """Join the two ends through the observers of the first byte."""
        client, far = self.client, self.far
        client.on_done = far.on_done = self._end_done
        self._up = _TowardsFar(self)
        client.peer, far.peer = self._up, TowardsClient(self)
        client.start()
        far.start()

    def meet(self) -> tuple[End, End]:
        """The peer of the client, and the peer of the far end, once bytes flow."""
        return self.far, self.client

    def touched(self) -> tuple[End, End]:
        """Something has flowed: join the two ends. Returns the result of ``meet``."""
        to_far, to_client = self.meet()
        if self._again is not None:
            self._again, self._up = None, None
            if self.client.ending is None:
                self.client.peer = to_far
            if self.far.ending is None:
                self.far.peer = to_client
        return to_far, to_client

    def abort(self, reason: Ending, by: str = "us") -> None:
        if self.dialing:
            self._stop_dialing()
            if not self.ended_by:
                self.ended_by, self.ending = by, reason
            self._count_lost(reason)
        if self.untouched:
            self.touched()
        super().abort(reason, by)

    # Lost links.

    def _end_done(self, end: End, ending: Ending) -> None:
        if ending is Ending.LINK_LOST and end is self.far and self._again is not None:
            self._lost = self.far  # its peer is told next
            return
        super()._end_done(end, ending)

    def far_gone(self, reason: Ending) -> None:
        """The far end was aborted."""
        again = self._again
        if self._lost is None or again is None or self.client.ending is not None:
            self._fail(reason)
            return
        self.dialing = True
        dial = again(self)
        if dial is None and self.dialing:
            self.not_dialed_again()
        elif self.dialing:
            self._dial = dial

    def link_suspended(self) -> None:
        """The link has lost its connection: dial again through another agent, if there is one."""
        again, far = self._again, self.far
        if again is None or self.dialing or self.client.ending is not None:
            return
        before = far.on_done, far.peer
        far.on_done, far.peer = nobody_listens, GONE
        self._lost, self.dialing = far, True
        dial = again(self)
        if dial is None and self.dialing:
            self._lost, self.dialing = None, False
            far.on_done, far.peer = before
            return
        if self.dialing:
            self._dial = dial
        far.abort(Ending.LINK_LOST)

    def dialed_again(self, far: BaseEnd, outcome: DialOutcome) -> None:
        """Another agent reached the target: continue with this end."""
        self._dial, self._lost = None, None
        self.dialing = False
        self.far, self.outcome = far, outcome
        far.bytes_written = 0
        far.on_done = self._end_done
        far.peer = TowardsClient(self)
        kept = self._up
        if kept is not None and (kept.buffer or kept.eof):
            goes_on = kept.pass_on(self.touched()[0])
            if self.client.ending is None:
                (self.client.resume_reading if goes_on else self.client.pause_reading)()
        far.start()

    def not_dialed_again(self) -> None:
        """The new dial failed: end the tunnel as without it."""
        self._dial = None
        self.dialing = False
        self._fail(Ending.LINK_LOST)

    def give_up(self, reason: Ending) -> None:
        """The client left during the new dial."""
        self._stop_dialing()
        self._count_lost(reason)
        self._again = self._up = None

    def _stop_dialing(self) -> None:
        dial, self._dial = self._dial, None
        self.dialing = False
        if dial is not None:
            dial.cancel()

    def _fail(self, reason: Ending) -> None:
        """Reset the client with the far end's ending."""
        self._again = self._up = None
        self._count_lost(reason)
        if self.client.ending is None:
            client, peer = self.client, GONE
            client.peer = peer
            client.abort(reason)

    def _count_lost(self, reason: Ending) -> None:
        lost, self._lost = self._lost, None
        if lost is not None:
            super()._end_done(lost, reason)
