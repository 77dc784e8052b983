"""A tunnel that may be dialed again while no byte has flowed either way.

Its target is reached and its client knows that. If the link is lost now, nothing of either side
has reached the other, so that another connection to the target is as good as the first. From the
first byte, half-close or reset on it is a tunnel like any other: the two ends are joined, and what
stood between them is gone. Who dials again, and for how long, is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from isthmus.tunnel.end import GONE, BaseEnd, Early, End, Ending
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import DialOutcome


class Cancellable(Protocol):
    """A dial under way."""

    def cancel(self) -> None:
        """Nobody waits any more."""


#: Dials again for a tunnel: the dial, or None if nobody can be asked. It tells the tunnel by
#: ``dialed_again`` or ``not_dialed_again``, perhaps before this returns.
DialAgain = Callable[["UntouchedTunnel"], Cancellable | None]


class _TowardsFar(Early):
    """The client's peer until the first byte; keeps what it says while somebody dials again."""

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
        """The client is gone."""
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


class _TowardsClient(Early):
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
        """The far end is gone: dial again, if it was its link that was lost."""
        self.tunnel.far_gone(reason)

    def pause_reading(self) -> None:
        self.tunnel.client.pause_reading()

    def resume_reading(self) -> None:
        self.tunnel.client.resume_reading()

    def let_go(self) -> None:
        self.tunnel.client.let_go()


class UntouchedTunnel(Tunnel):
    """See Tunnel; ``again`` is asked when the link is lost before the first byte.

    From then on the ends are each other's peers; a subclass may put something between (``meet``).
    """

    __slots__ = ("_again", "_dial", "_lost", "_up", "dialing")

    def dial_again_by(self, again: DialAgain | None) -> None:
        """Say who dials again, before it is opened; None: nobody, as if a byte had flowed."""
        self._again = again
        self._dial: Cancellable | None = None
        self._lost: BaseEnd | None = None  # whose end nobody has counted yet
        self._up: _TowardsFar | None = None
        self.dialing = False

    @property
    def untouched(self) -> bool:
        """No byte has flowed."""
        return self._again is not None

    def open(self) -> None:
        """Join the two ends, for now by what looks for the first byte."""
        client, far = self.client, self.far
        client.on_done = far.on_done = self._end_done
        self._up = _TowardsFar(self)
        client.peer, far.peer = self._up, _TowardsClient(self)
        client.start()
        far.start()

    def meet(self) -> tuple[End, End]:
        """What is the peer of the client, and what is that of the far end, when bytes flow."""
        return self.far, self.client

    def touched(self) -> tuple[End, End]:
        """Something has flowed: join the two ends. Gives what ``meet`` gives."""
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

    # A link that was lost.

    def _end_done(self, end: End, ending: Ending) -> None:
        if ending is Ending.LINK_LOST and end is self.far and self._again is not None:
            self._lost = self.far  # its peer hears it next
            return
        super()._end_done(end, ending)

    def far_gone(self, reason: Ending) -> None:
        """The far end told its peer that it is gone."""
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

    def dialed_again(self, far: BaseEnd, outcome: DialOutcome) -> None:
        """Somebody else reached the target: go on with this end."""
        self._dial, self._lost = None, None
        self.dialing = False
        self.far, self.outcome = far, outcome
        far.bytes_written = 0
        far.on_done = self._end_done
        far.peer = _TowardsClient(self)
        kept = self._up
        if kept is not None and (kept.buffer or kept.eof):
            goes_on = kept.pass_on(self.touched()[0])
            if self.client.ending is None:
                (self.client.resume_reading if goes_on else self.client.pause_reading)()
        far.start()

    def not_dialed_again(self) -> None:
        """Nobody did: it ends as it would have ended."""
        self._dial = None
        self.dialing = False
        self._fail(Ending.LINK_LOST)

    def give_up(self, reason: Ending) -> None:
        """The client is gone while somebody dials."""
        self._stop_dialing()
        self._count_lost(reason)
        self._again = self._up = None

    def _stop_dialing(self) -> None:
        dial, self._dial = self._dial, None
        self.dialing = False
        if dial is not None:
            dial.cancel()

    def _fail(self, reason: Ending) -> None:
        """Reset the client, as the far end was."""
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
