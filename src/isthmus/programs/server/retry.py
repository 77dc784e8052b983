"""Dialing again for a tunnel whose link was lost before its first byte (tunnel/first_byte.py)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from isthmus.dial.dialers.through_agent import Again, AgentDial, AnyLink, may_dial_again
from isthmus.errors import DialFailure
from isthmus.frame.observe.relays import Retried
from isthmus.logs import log
from isthmus.tunnel.budget import Account
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.tunnel.first_byte import UntouchedTunnel
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import DialRequest

if TYPE_CHECKING:
    from isthmus.programs.server.program import Server

#: Gives what wants to know the end of a tunnel that is now reached by this dial.
Tells = Callable[[AgentDial], Callable[[Tunnel, float], None] | None]
_log = logging.getLogger("isthmus.server")


class Retry:
    """Who wants the answer of such a dial; see dialers.through_agent.Dialing."""

    __slots__ = ("_server", "_tells", "_tunnel")

    def __init__(self, server: Server, tunnel: UntouchedTunnel, tells: Tells) -> None:
        self._server = server
        self._tunnel = tunnel
        self._tells = tells

    def pass_on(self, request: DialRequest) -> DialRequest:
        """What was said at first."""
        return request

    def payer(self) -> Account:
        return self._server.budget.account(self._tunnel.request.requester)

    def dialed(self, dial: AgentDial, stream: BaseEnd, link: AnyLink | None) -> None:
        """The target is reached again: the tunnel goes on as if nothing had been."""
        if link is None:  # no way but by links is dialed again
            stream.abort(Ending.CANCELLED)
            return
        tunnel = self._tunnel
        self._server.metrics.relays.retried(Retried.BEFORE_FIRST_BYTE)
        log(
            _log, logging.INFO, "tunnel dialed again, its link was lost before the first byte",
            target=str(dial.request.target), before=tunnel.outcome.agent_id,
            agent_id=dial.outcome.agent_id, connection=dial.request.connection_id,
        )  # fmt: skip
        tunnel.on_ended = self._tells(dial)
        tunnel.dialed_again(stream, dial.outcome)

    def dial_failed(self, dial: AgentDial, failure: DialFailure, detail: str) -> None:
        """It is not: the tunnel ends with its link."""
        self._tunnel.not_dialed_again()


def dial_again(
    server: Server, first: AgentDial, lost: AnyLink, tells: Tells, tunnel: UntouchedTunnel
) -> AgentDial | None:
    """Dial again for a tunnel that lost this link; None: nobody can be asked any more."""
    if not may_dial_again(first):
        return None
    dial = Again(first, lost, Retry(server, tunnel, tells))
    dial.attempt()
    return dial if dial.who is not None else None
