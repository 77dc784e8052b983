"""The connections of a sidecar: their states, limits and counters.

Each sidecar's frontend parses its protocol; program.py puts the program together.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

from typing_extensions import override

from isthmus.errors import DialFailure
from isthmus.frame.observe.tracing import Span
from isthmus.frame.part import Ground, Part
from isthmus.frame.resources import most_connections
from isthmus.frame.tunnels import TunnelTable
from isthmus.logs import log
from isthmus.net.connect import AnyDialer, Dialing, Failed, Reached
from isthmus.net.connection_gate import admitted, reset, source_elsewhere, stay_awake
from isthmus.net.deadlines import Deadlines
from isthmus.net.rules_slots import AdmissionRefusal, ConnectionSlots, Strangers
from isthmus.programs.sidecar.frontend import Credentials, SidecarClient
from isthmus.programs.sidecar.metrics import SidecarMetrics, Unserved
from isthmus.programs.sidecar.password import PasswordFile
from isthmus.programs.sidecar.settings import SidecarSettings
from isthmus.tunnel.end import BaseEnd, Discard, End, Ending, join
from isthmus.values import DialRequest, HostPort, Identity

#: How long a client may take to close after its last answer.
FAREWELL_S = 2.0
#: How many times this long an unsent answer may make no progress.
MOST_STILL = 150
#: How long an idle connection is kept for another request.
IDLE_S = 60.0
_QUIET_S = 60.0
_log = logging.getLogger("isthmus.sidecar")
_NO_PLACE = {
    AdmissionRefusal.TOO_MANY: Unserved.TOO_MANY,
    AdmissionRefusal.TOO_MANY_OF_SOURCE: Unserved.TOO_MANY_OF_SOURCE,
    AdmissionRefusal.MEMORY: Unserved.TOO_MANY_OF_SOURCE,
}

#: Makes the client of an accepted connection.
MakeClient = Callable[[Any, socket.socket], SidecarClient]


class SidecarConnections(Part):
    """All connections of a sidecar, from accept to the end; the owner of its clients."""

    def __init__(
        self,
        ground: Ground[Any, Any],
        tunnels: TunnelTable,
        *,
        make: MakeClient,
        dialer: AnyDialer,
        password: PasswordFile,
    ) -> None:
        loop, settings = ground.loop, ground.settings
        self._ground = ground
        self._loop = loop
        self._settings: SidecarSettings = settings
        self._metrics: SidecarMetrics = ground.metrics
        self._make = make
        self._dialer = dialer
        self._password = password
        self.poller = ground.poller
        self.once = ground.once
        self.tunnels = tunnels
        self.draining = False
        #: The limits on connections.
        self.most = most_connections(settings.max_connections)
        self.places = ConnectionSlots(self.most, settings.max_connections_per_source)
        self.places.budget = ground.budget
        self._handshakes: Strangers[SidecarClient] = Strangers(settings.max_handshakes)
        self._asked: set[SidecarClient] = set()
        self._idle: Deadlines[SidecarClient] = Deadlines(loop, IDLE_S, _no_more)
        self._late = Deadlines(loop, settings.handshake_timeout_s, _too_late)
        self._leaving: Deadlines[BaseEnd] = Deadlines(loop, FAREWELL_S, self._leave)
        # Bytes that slow readers have not taken, and how often they made no progress.
        self._slow: dict[BaseEnd, tuple[int, int]] = {}

    def __len__(self) -> int:
        waiting = len(self._handshakes) + len(self._asked) + len(self._idle)
        return waiting + len(self.tunnels) + len(self._leaving)

    @property
    def handshakes(self) -> int:
        """The number of clients that have not sent their request."""
        return len(self._handshakes)

    # Part.

    @override
    def start(self) -> None:
        self._metrics.connections = lambda: len(self)
        self._metrics.waiting = lambda: self.handshakes

    @override
    def drain(self) -> None:
        # From now on no client is kept for another request.
        self.draining = True
        for client in self._idle.take_all():
            _no_more(client)

    @override
    def busy(self) -> bool:
        return len(self) > 0

    @override
    def close(self) -> None:
        self.draining = True
        for client in [*self._handshakes, *self._asked, *self._idle.take_all()]:
            client.unserved(Unserved.LEFT)
        self._late.take_all()
        for end in self._leaving.take_all():
            end.abort(Ending.DRAINED)

    @override
    def serving(self) -> dict[str, Any]:
        return {
            "authenticates": self._password.current is not None,
            "max_connections": self.most,
        }

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        return {"handshakes": self.handshakes, "requests": len(self._asked)}

    # Accepting.

    def accept(self, sock: socket.socket) -> None:
        """Take a new connection."""
        self._metrics.accepted += 1
        try:
            stay_awake(sock)
            source = source_elsewhere(sock)
        except OSError:  # gone already
            sock.close()
            self._count(Unserved.LEFT, source="", detail="")
            return
        guest = admitted(sock, self.places, source, self._refuse)
        if guest is None:
            return
        # Not the new one: a client that opens many and sends nothing would lock out the others.
        crowded_out = self._handshakes.must_leave(oldest=True)
        if crowded_out is not None:
            crowded_out.unserved(Unserved.CROWDED)
        client = self._make(self, guest)
        account = self.places.account(source)
        if account is not None:
            client.pay_by(account)
            account.close()
        self._handshakes.add(client, source)
        self._late.add(client)

    def _refuse(self, sock: socket.socket, why: AdmissionRefusal, source: str) -> None:
        self._count(_NO_PLACE[why], source=source, detail="")
        self.say_no(sock, why)

    def say_no(self, sock: socket.socket, why: AdmissionRefusal) -> None:
        """Refuse a client above the limit: SOCKS5 has no reply before its greeting."""
        reset(sock)

    # For clients; see SidecarOwner.

    def credentials(self) -> Credentials | None:
        """The credentials that clients need; None if they need none."""
        return self._password.current

    def asked(self, client: SidecarClient) -> None:
        """A client has sent its request."""
        self._forget(client)
        self._asked.add(client)

    def keep(self, client: SidecarClient) -> bool:
        """Keep a client for another request; False if the sidecar is draining."""
        if self.draining:
            return False
        self._asked.discard(client)
        self._idle.add(client)
        return True

    def dial(
        self,
        target: HostPort,
        *,
        reached: Reached,
        failed: Failed,
        dialer: AnyDialer | None = None,
    ) -> Dialing:
        """Open a connection for a client."""
        began = self._loop.time()
        span = self._ground.span(target)

        def there(far: BaseEnd) -> None:
            self._metrics.dial_succeeded(self._loop.time() - began)
            if span is not None:
                span.succeeded()
            reached(far)

        def not_there(failure: DialFailure, detail: str) -> None:
            self._dial_failed(target, failure, detail, self._loop.time() - began)
            if span is not None:
                span.failed(failure, detail)
            failed(failure, detail)

        dial = (dialer or self._dialer).dial(
            target, timeout_s=self._settings.dial_timeout_s, reached=there, failed=not_there
        )
        return dial if span is None else _Traced(dial, span)

    def _dial_failed(
        self, target: HostPort, failure: DialFailure, detail: str, seconds: float
    ) -> None:
        self._metrics.dial_failed(failure, seconds)
        self.once.log(
            ("dial", failure, target.host), _QUIET_S, _log, logging.WARNING, "dial failed",
            target=str(target), reason=failure.value, detail=detail,
        )  # fmt: skip

    def joined(self, client: SidecarClient, end: BaseEnd, far: BaseEnd) -> None:
        """Join a client to its target."""
        assert client.target is not None
        self._forget(client)
        if _log.isEnabledFor(logging.DEBUG):
            log(
                _log, logging.DEBUG, "tunnel opened", source=client.source,
                target=str(client.target), connection=client.connection_id,
            )  # fmt: skip
        requester = Identity(client.source, kind="address")
        self.tunnels.open_here(
            DialRequest(client.target, requester, client.frontend, client.connection_id),
            client=end,
            far=far,
            payer=client.payer,
        )

    def unserved(self, client: SidecarClient, why: Unserved, detail: str) -> None:
        """Count a client that ended before it was served."""
        idle = client not in self._handshakes and client not in self._asked
        self._forget(client)
        if not idle:  # a kept connection that ends was served
            self._count(why, source=client.source, detail=detail)

    def served(self, client: SidecarClient) -> None:
        """A client has ended after it was served."""
        self._forget(client)

    def say_goodbye(self, end: BaseEnd, answer: bytes = b"") -> None:
        """Send the last answer; an immediate close could discard it before it is read."""
        end.on_done = self._farewell_over
        self._leaving.add(end)
        join(end, Discard())
        if answer:
            end.write(answer)
        end.write_eof()

    def _leave(self, end: BaseEnd) -> None:
        """Close a lingering client once everything is sent: its reader may be slow."""
        end.let_go()
        if end.ending is not None:
            return
        unsent = getattr(end, "out_bytes", 0)
        seen, still = self._slow.get(end, (-1, 0))
        still = still + 1 if unsent == seen else 0
        if unsent and still < MOST_STILL:
            self._slow[end] = (unsent, still)
            self._leaving.add(end)
        else:
            end.abort(Ending.TIMED_OUT)

    def _farewell_over(self, end: End, ending: Ending) -> None:
        assert isinstance(end, BaseEnd)
        self._leaving.remove(end)
        self._slow.pop(end, None)

    def _forget(self, client: SidecarClient) -> None:
        self._handshakes.remove(client)
        self._late.remove(client)
        self._asked.discard(client)
        self._idle.remove(client)

    def _count(self, why: Unserved, *, source: str, detail: str) -> None:
        self._metrics.unserved[why] += 1
        # Probes connect and send nothing all day, and a failed dial has its own line.
        if why not in (Unserved.LEFT, Unserved.NO_DESTINATION, Unserved.NOT_SUPPORTED):
            self.once.log(
                ("unserved", why), _QUIET_S, _log, logging.WARNING, "client not served",
                reason=why.value, source=source, detail=detail,
            )  # fmt: skip


class _Traced:
    """A dial with a tracing span, which ends if the dial is cancelled."""

    def __init__(self, dial: Dialing, span: Span) -> None:
        self._dial = dial
        self._span = span

    def cancel(self) -> None:
        """Cancel without a callback."""
        self._dial.cancel()
        self._span.cancelled()


def _too_late(client: SidecarClient) -> None:
    client.unserved(Unserved.LATE, "", client.too_late())


def _no_more(client: SidecarClient) -> None:
    client.no_more()
