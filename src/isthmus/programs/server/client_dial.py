"""One request of a client, from its dial to a tunnel or a refusal, with metrics and audit.

A tunnel whose link was lost before its first byte (tunnel/first_byte.py) is dialed again.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from isthmus.dial.dialers.through_agent import Again, AgentDial, AnyLink, may_dial_again
from isthmus.dial.frontends.backend import Request, payer_of
from isthmus.dial.rules_shares import Hold
from isthmus.errors import DialFailure
from isthmus.frame.audit.recording import LEFT
from isthmus.logs import log
from isthmus.net.rules_slots import AdmissionRefusal
from isthmus.programs.server.metrics import Retried, TlsPort
from isthmus.programs.server.tls import refusal_of
from isthmus.tunnel.budget import Account
from isthmus.tunnel.end import BaseEnd, Ending
from isthmus.tunnel.first_byte import UntouchedTunnel
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import ANONYMOUS, NOTHING, DialRequest, HostPort, Identity

if TYPE_CHECKING:
    from isthmus.frame.observe.tracing import DialTrace
    from isthmus.programs.server.dials import ServerDials

_QUIET_S = 60.0
_log = logging.getLogger("isthmus.server")


class ClientDial:
    """Turns the answer of a request's dial into a tunnel or a refusal.

    See through_agent.DialOwner, and backend.Dial for the client's side.
    """

    __slots__ = (
        "_address",
        "_client",
        "_dial",
        "_payer",
        "_server",
        "_trace",
        "hold",
        "request",
    )

    def __init__(
        self, server: ServerDials, client: Request, target: HostPort, requester: Identity
    ) -> None:
        self._server = server
        self._client = client
        self._dial: AgentDial | None = None
        self.hold: Hold | None = None  # what it takes from its requester's shares
        self._payer = requester if requester is not ANONYMOUS else payer_of(requester, client)
        asking = client.asking
        if asking is not NOTHING and not server.believes(requester):
            asking = asking.only_trace()
        # The client's claims, as far as they are trusted.
        self.request = DialRequest(target, requester, client.frontend, client.connection_id, asking)
        # Read now: the client may have left when the record is written.
        self._address = client.client_address if server.audit is not None else ""
        self._trace: DialTrace | None = None
        if server.tracing is not None:
            self._trace = server.tracing.begin(
                asking,
                connection_id=client.connection_id,
                frontend=client.frontend,
                requester=str(requester),
                accepted_at=getattr(client, "accepted_at", None),
            )

    def pass_on(self, request: DialRequest) -> DialRequest:
        """The request for the next attempt; each attempt has its own span."""
        trace = self._trace
        return request if trace is None else request._replace(asking=trace.ask(request.asking))

    def payer(self) -> Account:
        # By its address if it is not authenticated.
        return self._server.budget.account(self._payer)

    def start(self) -> ClientDial:
        """Dial; the answer may come before this returns."""
        server, request = self._server, self.request
        if self._trace is not None:
            self._trace.target(request.target)
        refusal = server.admits_clients.refusal(request.requester)
        router = server.networks.router
        if refusal:
            dial = AgentDial(server.dialer, request, self)
            dial.give_up(DialFailure.DENIED, refusal)
        elif router is None:
            dial = server.dialer.dial(request, self)
        else:
            dial = router.dial(request, self)
        if dial.who is not None:  # not answered yet
            self._dial = dial
        return self

    def cancel(self) -> None:
        """The client is gone: cancel the dial."""
        dial, self._dial = self._dial, None
        if dial is None:
            return
        dial.cancel()
        self._left(dial)

    def dialed(self, dial: AgentDial, stream: BaseEnd, link: AnyLink | None) -> None:
        """The target was reached: join the client to it."""
        server, client = self._server, self._client
        self._dial = None
        end = client.established()
        if end is None:
            stream.abort(Ending.CANCELLED)
            self._left(dial)
            return
        if self._trace is not None:
            self._trace.reached(dial.outcome.agent_id, dial.outcome.address)
        request, outcome, tunnels = dial.request, dial.outcome, server.tunnels
        server.metrics.dial_succeeded(time.monotonic() - dial.started_at, request.connection_id)
        server.metrics.relays.answered(outcome.relay, None, dial.asked_in_vain)
        hold, gates = self.hold, None
        if hold is not None:
            assert server.networks.shares is not None  # otherwise there would be no hold
            gates = server.networks.shares.gates(hold)
        told = self._told(dial)
        if link is None:
            payer = self.payer()
            tunnels.open_here(
                request, client=end, far=stream, payer=payer, on_ended=told, gates=gates
            )
            payer.close()
        else:
            again = partial(dial_again, server, dial, link, self._told)
            tunnels.open(
                request, outcome, client=end, far=stream, on_ended=told, gates=gates, again=again
            )

    def _told(self, dial: AgentDial) -> Callable[[Tunnel, float], None] | None:
        """Record the start of the tunnel; returns the callback for its end."""
        audit, hold = self._server.audit, self.hold
        told = None if audit is None else audit.began(self._client, self._address, dial)
        return told if hold is None else partial(_ended, hold, told)

    def dial_failed(self, dial: AgentDial, failure: DialFailure, detail: str) -> None:
        """The dial failed: answer and count."""
        server = self._server
        self._dial = None
        if self.hold is not None:
            self.hold.release()
        server.metrics.relays.answered(dial.outcome.relay, failure, dial.asked_in_vain)
        server.metrics.dial_failed(
            failure, time.monotonic() - dial.started_at, answered=dial.answered
        )
        server.once.log(
            ("dial", failure), _QUIET_S, _log, logging.WARNING, "dial failed",
            target=str(dial.request.target), reason=failure.value, detail=detail,
            connection=dial.request.connection_id,
        )  # fmt: skip
        if self._trace is not None:
            self._trace.failed(failure, detail)
        if server.audit is not None:
            server.audit.failed(self._client, self._address, dial, failure, detail)
        self._client.dial_failed(failure, detail)

    def _left(self, dial: AgentDial) -> None:
        """The client left before the answer."""
        if self.hold is not None:
            self.hold.release()
        if self._trace is not None:
            self._trace.cancelled()
        audit = self._server.audit
        if audit is not None:
            audit.failed(self._client, self._address, dial, None, LEFT)


def _ended(
    hold: Hold, told: Callable[[Tunnel, float], None] | None, tunnel: Tunnel, duration_s: float
) -> None:
    hold.release()
    if told is not None:
        told(tunnel, duration_s)


#: Returns the callback for the end of a tunnel that this dial now serves.
Tells = Callable[[AgentDial], Callable[[Tunnel, float], None] | None]


class Retry:
    """The owner of a repeated dial; see through_agent.DialOwner."""

    __slots__ = ("_server", "_tells", "_tunnel")

    def __init__(self, server: ServerDials, tunnel: UntouchedTunnel, tells: Tells) -> None:
        self._server = server
        self._tunnel = tunnel
        self._tells = tells

    def pass_on(self, request: DialRequest) -> DialRequest:
        """The original request."""
        return request

    def payer(self) -> Account:
        return self._server.budget.account(self._tunnel.request.requester)

    def dialed(self, dial: AgentDial, stream: BaseEnd, link: AnyLink | None) -> None:
        """The target was reached again: the tunnel continues."""
        if link is None:  # only dials through links are repeated
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
        """The dial failed: the tunnel ends with its link."""
        self._tunnel.not_dialed_again()


def dial_again(
    server: ServerDials, first: AgentDial, lost: AnyLink, tells: Tells, tunnel: UntouchedTunnel
) -> AgentDial | None:
    """Dial again for a tunnel that lost this link; None: no agent is left.

    A suspended link may come back, so that only another link is worth a new dial.
    """
    if not may_dial_again(first) or (lost.suspended and not first.others_take_dials(lost)):
        return None
    dial = Again(first, lost, Retry(server, tunnel, tells))
    dial.attempt()
    return dial if dial.who is not None else None


class ClientRequests:
    """Handles the requests of frontends' clients; see backend.Backend."""

    def __init__(self, server: ServerDials) -> None:
        self._server = server
        self.believes = server.believes

    def dial(self, request: Request, target: HostPort) -> ClientDial:
        """Dial a target for a client."""
        return ClientDial(self._server, request, target, request.requester).start()

    def refused(self, status: int, request: Request | None = None, reason: str = "") -> None:
        """Count a request that was refused without a dial."""
        server = self._server
        server.metrics.request_refused(status)
        if server.audit is not None and request is not None:
            server.audit.refused(request, status, reason)

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """Count a client that failed to authenticate."""
        self._server.metrics.tls_refused(TlsPort.FRONTEND, refusal_of(error))

    def no_place(self, why: AdmissionRefusal, source: str) -> None:
        """Count a refused client connection."""
        self._server.agent_door.no_place(TlsPort.FRONTEND, why, source)

    def abandoned(self) -> None:
        """Count a client that left during its dial."""
        self._server.metrics.dial_abandoned()
