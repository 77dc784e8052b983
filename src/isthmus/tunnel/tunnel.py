"""A tunnel: two joined ends with one record, from the accepted dial until both are done."""

from __future__ import annotations

from collections.abc import Callable

from isthmus.tunnel.end import BaseEnd, End, Ending, join
from isthmus.values import DialOutcome, DialRequest, TunnelId


class Tunnel:
    """Owns two ends: reports once how they ended, and can end them."""

    __slots__ = (
        "_left",
        "client",
        "ended_by",
        "ending",
        "far",
        "id",
        "on_done",
        "on_ended",
        "opened_at",
        "outcome",
        "request",
    )

    def __init__(
        self,
        tunnel_id: TunnelId,
        request: DialRequest,
        outcome: DialOutcome,
        *,
        client: BaseEnd,
        far: BaseEnd,
        opened_at: float,
        on_done: Callable[[Tunnel], None],
    ) -> None:
        self.id = tunnel_id
        self.request = request
        self.outcome = outcome
        self.client = client
        self.far = far
        self.opened_at = opened_at
        self.on_done = on_done
        #: Called by the owner of the table, with the tunnel's duration.
        self.on_ended: Callable[[Tunnel, float], None] | None = None
        self.ending = Ending.CLEAN
        self.ended_by = ""
        self._left = 2

    def __repr__(self) -> str:
        return f"<Tunnel {self.id} to {self.request.target} by {self.outcome.agent_id}>"

    def open(self) -> None:
        """Join the two ends. They may be done before this returns."""
        self.client.on_done = self.far.on_done = self._end_done
        join(self.client, self.far)

    @property
    def untouched(self) -> bool:
        """Whether no byte has flowed, so that it could be dialed again. See first_byte.py."""
        return False

    @property
    def last_end(self) -> BaseEnd | None:
        """The last end that is not done, once the other one is."""
        if self._left != 1:
            return None
        return self.client if self.client.ending is None else self.far

    def abort(self, reason: Ending, by: str = "us") -> None:
        """Reset both sides; ``by`` names the side that caused it."""
        if self._left and not self.ended_by:
            self.ended_by = by
            self.ending = reason
        self.client.abort(reason)
        self.far.abort(reason)

    def _end_done(self, end: End, ending: Ending) -> None:
        # The first end that fails resets the other: report the first.
        if not self.ended_by and ending is not Ending.CLEAN:
            self.ending = ending
            self.ended_by = "client" if end is self.client else "target"
        self._left -= 1
        if not self._left:
            self.on_done(self)
