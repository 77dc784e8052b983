"""Connections joined to the first of several targets that can be reached.

Used by the SNI router and the apiserver proxy. Until the first byte is sent, the next target is
tried when one fails. After that, a connection is a tunnel like any other. Each program decides
which clients to accept, which targets there are, and how to refuse a client.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from typing_extensions import override

from isthmus.errors import DialFailure
from isthmus.frame.observe.tracing import Span
from isthmus.frame.part import Ground, Part
from isthmus.frame.tunnels import TunnelTable
from isthmus.net.charging import PaidEarly
from isthmus.net.connect import Dialing, Failed
from isthmus.net.connection_gate import stay_awake
from isthmus.net.rules_slots import ConnectionSlots
from isthmus.net.socket_end import SocketEnd
from isthmus.tunnel.end import End, Ending, nobody_listens
from isthmus.tunnel.tunnel import Tunnel
from isthmus.values import DialRequest, HostPort, Identity
from isthmus.wire.proxy_protocol import IpPort

C = TypeVar("C", bound="ForwardedConnection[Any]")
W = TypeVar("W", bound=Enum)


class TargetCounts(Protocol):
    """How many connections each target has, including pending dials, and which failed recently.

    ``took``, then one of ``let_go`` and ``failed``, for each dial.
    """

    def took(self, at: HostPort, /) -> None:
        """Count a new dial."""

    def reached(self, at: HostPort, /) -> None:
        """Note that a dial reached the target."""

    def failed(self, at: HostPort, /, *, now: float) -> None:
        """Note a failed dial: for a moment the other targets come first."""

    def let_go(self, at: HostPort, /) -> None:
        """Note a dial that was given up, or a connection that ended."""


class ForwardedConnections(Part, Generic[C, W]):
    """All connections of a program, from accept to the end; subclasses accept, dial and refuse.

    ``gone`` is the reason to refuse a connection whose client left, ``all_failed`` one without a
    reachable target.
    """

    gone: W
    all_failed: W

    def __init__(
        self,
        ground: Ground[Any, Any],
        tunnels: TunnelTable,
        places: ConnectionSlots,
        counts: TargetCounts,
    ) -> None:
        self.ground = ground
        self.poller = ground.poller
        self.tunnels = tunnels
        self.places = places
        self.places.budget = ground.budget
        self.counts = counts
        self.dialing: set[C] = set()

    def __len__(self) -> int:
        return len(self.dialing) + len(self.tunnels)

    @override
    def busy(self) -> bool:
        return len(self) > 0

    def now(self) -> float:
        """The loop's time."""
        return self.ground.now()

    def pay(self, connection: C, source: str) -> None:
        """Charge a source for what is held of its connection."""
        account = self.places.account(source)
        if account is not None:
            connection.client.charge_to(account)
            account.close()

    # Called by connections.

    def dial(
        self,
        at: HostPort,
        *,
        timeout_s: float,
        reached: Callable[[SocketEnd], None],
        failed: Failed,
    ) -> Dialing:
        """Open a connection to a target."""
        raise NotImplementedError

    def target_failed(self, connection: C, at: HostPort, failure: DialFailure, detail: str) -> None:
        """Note a target that could not be reached; others may be."""
        raise NotImplementedError

    def joining(self, connection: C, far: SocketEnd, at: HostPort) -> str:
        """A target was reached; return the frontend's name for the new tunnel."""
        raise NotImplementedError

    def ended(self, connection: C, at: HostPort) -> None:
        """Note that the tunnel of a connection ended."""
        self.counts.let_go(at)

    def refused(self, connection: C, why: W, detail: str) -> None:
        """A connection ended before it was joined; close it if its socket is open."""
        raise NotImplementedError

    def reached(self, connection: C, far: SocketEnd, at: HostPort) -> None:
        """Join a connection to its target, which has got its first bytes."""
        self.dialing.discard(connection)
        self.ground.metrics.dial_succeeded(self.now() - connection.dialed_at)

        def over(_: Tunnel, _s: float) -> None:
            self.ended(connection, at)

        requester = Identity(str(connection.source), kind="address")
        self.tunnels.open_here(
            DialRequest(at, requester, self.joining(connection, far, at)),
            client=connection.client,
            far=far,
            on_ended=over,
            payer=connection.client.payer,
        )


class ForwardedConnection(Generic[W]):
    """A client to be joined to one of several targets."""

    __slots__ = (
        "_at", "_dial", "_due_at", "_order", "_owner", "_span", "client", "destination",
        "dialed_at", "is_over", "source", "tried",
    )  # fmt: skip

    def __init__(
        self,
        owner: ForwardedConnections[Any, W],
        sock: socket.socket,
        early: PaidEarly,
        *,
        source: IpPort,
        destination: IpPort,
    ) -> None:
        """Take a new connection; ``early`` holds what it sends before it is joined."""
        self._owner = owner
        self._order: list[HostPort] = []
        self._at: HostPort | None = None
        self._dial: Dialing | None = None
        self._span: Span | None = None
        self._due_at = 0.0
        #: It is joined or refused.
        self.is_over = False
        self.source = source
        self.destination = destination
        self.dialed_at = 0.0
        #: How many targets were tried.
        self.tried = 0
        stay_awake(sock)
        self.client = SocketEnd(sock, owner.poller, early)
        self.client.on_done = self._client_gone

    def __repr__(self) -> str:
        return f"<{type(self).__name__} from {self.source}{' over' if self.is_over else ''}>"

    def try_each(self, order: list[HostPort], *, timeout_s: float) -> None:
        """Dial one target after another, until one is reached or the time is up."""
        self._order = order
        self._due_at = self._owner.now() + timeout_s
        self._dial_next()

    def _dial_next(self) -> None:
        owner = self._owner
        at = self._at = self._order.pop(0)
        owner.counts.took(at)
        self.tried += 1
        self.dialed_at = owner.now()
        self._span = owner.ground.span(at)
        dial = owner.dial(
            at,
            # Each remaining target gets a share of the time: one that does not answer must not use
            # it all.
            timeout_s=max(0.0, self._due_at - self.dialed_at) / (1 + len(self._order)),
            reached=self._reached,
            failed=self._failed,
        )
        if not self.is_over and self._at is at:  # else it is over already
            self._dial = dial

    def _failed(self, failure: DialFailure, detail: str) -> None:
        at, self._at, self._dial = self._at, None, None
        assert at is not None
        if self._span is not None:
            self._span.failed(failure, detail)
        self._owner.counts.failed(at, now=self._owner.now())
        self._owner.target_failed(self, at, failure, detail)
        if self._order:
            self._dial_next()
        else:
            self.refuse(self._owner.all_failed, detail or failure.value)

    def _reached(self, far: SocketEnd) -> None:
        at = self._at
        assert at is not None
        if far.sock.family != socket.AF_UNIX:  # which is the inside of a proxy's TLS
            stay_awake(far.sock)
        self._at = self._dial = None
        self.over()
        if self._span is not None:
            self._span.succeeded()
        self._owner.counts.reached(at)
        header = self.header()
        if header:
            far.write(header)
        self._owner.reached(self, far, at)

    def header(self) -> bytes:
        """The bytes for a target before the client's first byte: a PROXY header, or none."""
        return b""

    def over(self) -> None:
        """Mark it as joined or refused."""
        self.is_over = True

    def refuse(self, why: W, detail: str = "") -> None:
        """End a connection that is not joined yet, in its owner's way."""
        if self.is_over:
            return
        self.over()
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        if self._at is not None:
            self._owner.counts.let_go(self._at)
            self._at = None
            if self._span is not None:
                self._span.cancelled()
        self.client.on_done = nobody_listens
        self._owner.refused(self, why, detail)

    def _client_gone(self, end: End, ending: Ending) -> None:
        self.refuse(self._owner.gone)
