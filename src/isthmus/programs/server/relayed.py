"""Dials relayed by another server: checked against our policy, and sent to our own agents only.

A certificate's name decides who may relay (``--peer-relay-name``; checked in agents.py). The
other server's statement about the requester is trusted, because it authenticated it; our own policy
is checked as well, so that a path through a second server never allows more. Dials from here are
never relayed further: they have no relays.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from isthmus.dial.dialers.through_agent import AgentDial, AnyLink
from isthmus.dial.frontends.backend import new_connection_id
from isthmus.errors import DialFailure
from isthmus.links.dials import IncomingDial
from isthmus.links.talk import Incoming
from isthmus.programs.server.client_dial import dial_again
from isthmus.programs.server.metrics import RESULTS, Relayed
from isthmus.tunnel.budget import Account
from isthmus.tunnel.end import BaseEnd
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import DialRequest, HostPort, Identity, RequestMetadata

if TYPE_CHECKING:
    from isthmus.links.server_side import AgentLink
    from isthmus.programs.server.dials import ServerDials

#: The frontend name of relayed tunnels; clients' tunnels have the name of a mode.
FRONTEND = "relay"
_QUIET_S = 60.0
_ID = re.compile(r"[!-~]{1,64}", re.ASCII)
_log = logging.getLogger("isthmus.server")


class RelayedDial:
    """One relayed dial; see through_agent.DialOwner and recording.Asked."""

    __slots__ = ("_dial", "_incoming", "_server", "link", "request")

    frontend = FRONTEND

    def __init__(
        self, server: ServerDials, incoming: IncomingDial, link: AgentLink, target: HostPort
    ) -> None:
        self._server = server
        self._incoming = incoming
        self._dial: AgentDial | None = None
        self.link = link
        known = incoming.connection_id
        self.request = DialRequest(
            target,
            incoming.requester,
            FRONTEND,
            known if _ID.fullmatch(known) else new_connection_id(),
            incoming.asking,
            incoming.traffic,
        )

    @property
    def requester(self) -> Identity:
        """The requester, as the other server names it."""
        return self.request.requester

    @property
    def connection_id(self) -> str:
        """The connection id."""
        return self.request.connection_id

    @property
    def asking(self) -> RequestMetadata:
        """The metadata passed on by the other server."""
        return self.request.asking

    @property
    def client_address(self) -> str:
        """The address of the other server."""
        return self.link.peer_address

    @property
    def relayed_by(self) -> str:
        """The id of the other server."""
        return self.link.agent_id

    def pass_on(self, request: DialRequest) -> DialRequest:
        """The request of the other server."""
        return request

    def payer(self) -> Account:
        """The account of the named requester, inside the other server's account."""
        who = self.request.requester
        return self.link.account.inside((who.kind[:256], who.name[:256]))

    def start(self) -> None:
        """Dial; the answer may come before this returns."""
        server, incoming = self._server, self._incoming
        dialer, router = server.dialer, server.networks.router
        dial = AgentDial(dialer, self.request, self)
        dial.relays = None  # one hop at most
        if router is not None:
            decision = router.place(dial)
            if not decision.allowed:
                dial.answered = True
                dial.give_up(DialFailure.DENIED, decision.why)
                return
        dialer.begin(dial)
        if dial.who is not None:
            self._dial = dial
            incoming.on_cancelled = self._cancelled

    def _cancelled(self) -> None:
        """The other server cancelled it, or its link is lost."""
        dial, self._dial = self._dial, None
        self._incoming.on_cancelled = None  # breaks the reference cycle
        if dial is not None:
            dial.cancel()
            if self._server.audit is not None:
                why = "the other server cancelled it before the answer"
                self._server.audit.failed(self, self.client_address, dial, None, why)

    # See DialOwner.

    def dialed(self, dial: AgentDial, stream: BaseEnd, link: AnyLink | None) -> None:
        """One of our agents reached the target: join."""
        assert link is not None  # our own agents have links
        server, outcome = self._server, dial.outcome
        self._dial = None
        server.metrics.relays.taken[Relayed.JOINED] += 1
        server.tunnels.open(
            dial.request,
            outcome,
            client=self._incoming.accept_for(outcome.agent_id, outcome.address),
            far=stream,
            on_ended=self._told(dial),
            again=partial(dial_again, server, dial, link, self._told),
        )

    def _told(self, dial: AgentDial) -> Callable[[Tunnel, float], None] | None:
        audit = self._server.audit
        return audit.began(self, self.client_address, dial) if audit is not None else None

    def dial_failed(self, dial: AgentDial, failure: DialFailure, detail: str) -> None:
        """The dial failed: answer."""
        server = self._server
        self._dial = None
        server.metrics.relays.taken[RESULTS.get(failure, Relayed.FAILED)] += 1
        server.once.log(
            ("relayed", failure, self.relayed_by), _QUIET_S, _log, logging.WARNING,
            "relayed dial failed", server_id=self.relayed_by,
            target=str(self.request.target), reason=failure.value, detail=detail,
            connection=self.connection_id,
        )  # fmt: skip
        if server.audit is not None:
            server.audit.failed(self, self.client_address, dial, failure, detail)
        self._incoming.refuse(failure, detail)


class RelayedDials:
    """Handles dials relayed by other servers."""

    def __init__(self, server: ServerDials) -> None:
        self._server = server

    def take(self, incoming: Incoming) -> None:
        """Handle a dial of another server; see links.link.Link.on_dial."""
        server = self._server
        link = server.agent_door.link_of(incoming.link_id)
        if link is None or not isinstance(incoming, IncomingDial):
            incoming.refuse(DialFailure.AGENT_LOST, "the link no longer exists")
            return
        try:
            target = HostPort(incoming.host, incoming.port)
        except ValueError as exc:
            self._refuse(incoming, str(exc))
            return
        if not incoming.relayed:
            # Only a server that mistakes this one for an agent sends it.
            self._refuse(incoming, "it is not marked as relayed")
            return
        RelayedDial(server, incoming, link, target).start()

    def _refuse(self, incoming: IncomingDial, why: str) -> None:
        self._server.metrics.relays.taken[Relayed.REFUSED] += 1
        incoming.refuse(DialFailure.DENIED, f"cannot be relayed: {why}")
