"""A tunnel: two joined ends with one record, from the accepted dial until both are done."""

from __future__ import annotations

from collections.abc import Callable

from isthmus.tunnel.end import BaseEnd, End, Ending, join
from isthmus.values import HostPort, Identity, TunnelId


class Tunnel:
    """Owns two ends: tells once how they ended, and can end them."""

    __slots__ = (
        "_left",
        "agent_id",
        "client",
        "connection_id",
        "ended_by",
        "ending",
        "far",
        "frontend",
        "id",
        "link_id",
        "on_done",
        "on_ended",
        "opened_at",
        "relay",
        "requester",
        "target",
    )

    def __init__(
        self,
        tunnel_id: TunnelId,
        *,
        client: BaseEnd,
        far: BaseEnd,
        target: HostPort,
        requester: Identity,
        opened_at: float,
        agent_id: str,
        link_id: int,
        frontend: str,
        on_done: Callable[[Tunnel], None],
        connection_id: str = "",
        on_ended: Callable[[Tunnel, float], None] | None = None,
        relay: str = "",
    ) -> None:
        """``on_ended`` is for whoever keeps the table to call, with how long it lived.

        ``relay`` is the other server that has the agent, if one has.
        """
        self.id = tunnel_id
        self.client = client
        self.far = far
        self.target = target
        self.requester = requester
        self.opened_at = opened_at
        self.agent_id = agent_id
        self.link_id = link_id
        self.frontend = frontend
        self.on_done = on_done
        self.connection_id = connection_id
        self.on_ended = on_ended
        self.relay = relay
        self.ending = Ending.CLEAN
        self.ended_by = ""
        self._left = 2

    def __repr__(self) -> str:
        return f"<Tunnel {self.id} to {self.target} by {self.agent_id}>"

    def open(self) -> None:
        """Join the two ends. They may be done before this returns."""
        self.client.on_done = self.far.on_done = self._end_done
        join(self.client, self.far)

    @property
    def untouched(self) -> bool:
        """It could be dialed again: no byte has flowed. See first_byte.py."""
        return False

    @property
    def last_end(self) -> BaseEnd | None:
        """The end that is not done yet, when the other one is."""
        if self._left != 1:
            return None
        return self.client if self.client.ending is None else self.far

    def abort(self, reason: Ending, by: str = "us") -> None:
        """Reset both sides; ``by`` says who wanted it."""
        if self._left and not self.ended_by:
            self.ended_by = by
            self.ending = reason
        self.client.abort(reason)
        self.far.abort(reason)

    def _end_done(self, end: End, ending: Ending) -> None:
        # The first end that fails takes the other with it: the first is the one to name.
        if not self.ended_by and ending is not Ending.CLEAN:
            self.ending = ending
            self.ended_by = "client" if end is self.client else "target"
        self._left -= 1
        if not self._left:
            self.on_done(self)
