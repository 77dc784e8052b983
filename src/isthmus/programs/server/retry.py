"""Dialing again for a tunnel whose link was lost before its first byte (tunnel/first_byte.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from isthmus.dial.dialers.through_agent import Again, AgentDial, AnyLink, may_dial_again
from isthmus.errors import DialFailure
from isthmus.frame.observe.relays import Retried
from isthmus.logs import log
from isthmus.tunnel.budget import Account
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.tunnel.first_byte import DialAgain, UntouchedTunnel
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import Asking

if TYPE_CHECKING:
    from isthmus.programs.server.program import Server

#: Gives what wants to know the end of a tunnel that is now reached by this dial and link.
Tells = Callable[[AgentDial, AnyLink], Callable[[Tunnel, float], None] | None]
_log = logging.getLogger("isthmus.server")


class Retry:
    """Who wants the answer of such a dial; see dialers.through_agent.Dialing."""

    __slots__ = ("_server", "_tells", "_tunnel", "asking", "connection_id")

    def __init__(
        self, server: Server, tunnel: UntouchedTunnel, asking: Asking, tells: Tells
    ) -> None:
        self._server = server
        self._tunnel = tunnel
        self._tells = tells
        self.connection_id = tunnel.connection_id
        self.asking = asking

    def pass_on(self) -> Asking:
        """What was said at first."""
        return self.asking

    def payer(self) -> Account:
        """See Dialing: who paid for the tunnel so far."""
        return self._server.budget.account(self._tunnel.requester)

    def dialed(self, dial: AgentDial, stream: BaseEnd, link: AnyLink | None) -> None:
        """The target is reached again: the tunnel goes on as if nothing had been."""
        if link is None:  # no way but by links is dialed again
            stream.abort(Ending.CANCELLED)
            return
        tunnel = self._tunnel
        self._server.metrics.relays.retried(Retried.BEFORE_FIRST_BYTE)
        log(
            _log, logging.INFO, "tunnel dialed again, its link was lost before the first byte",
            target=str(dial.target), before=tunnel.agent_id, agent_id=dial.agent_id,
            connection=self.connection_id,
        )  # fmt: skip
        tunnel.on_ended = self._tells(dial, link)
        tunnel.dialed_again(stream, agent_id=dial.agent_id, link_id=link.id, relay=dial.relay)

    def dial_failed(self, dial: AgentDial, failure: DialFailure, detail: str) -> None:
        """It is not: the tunnel ends with its link."""
        self._tunnel.not_dialed_again()


def dialing_again(
    server: Server, dial: AgentDial, link: AnyLink | None, asking: Asking, tells: Tells
) -> DialAgain | None:
    """What a tunnel asks that loses this link; None: it was reached by a way without links."""
    return None if link is None else partial(_again, server, dial, link, asking, tells)


def _again(
    server: Server,
    first: AgentDial,
    lost: AnyLink,
    asking: Asking,
    tells: Tells,
    tunnel: UntouchedTunnel,
) -> AgentDial | None:
    if not may_dial_again(first):
        return None
    dial = Again(first, lost, Retry(server, tunnel, asking, tells))
    dial.attempt()
    return dial if dial.who is not None else None
