"""One connection at the SNI router, from its first byte until it is joined or refused.

Its ClientHello is read and kept; nothing is decrypted. The bytes go to the backend as they came,
behind a PROXY header where the route says so. Until the first of them is sent a backend that fails
is no loss: the next is tried. After that the connection is a tunnel like every other.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from isthmus.dial.dialers.direct import DirectDial, DirectDialer
from isthmus.errors import DialFailure, ProtocolError
from isthmus.frame.observe.tracing import Span
from isthmus.logs import log
from isthmus.net.accepted import stay_awake
from isthmus.net.charging import PaidEarly
from isthmus.net.poller import Poller
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.sni_router.metrics import Refusal
from isthmus.programs.sni_router.rules import Found, Miss, RoutingTable
from isthmus.programs.sni_router.rules_backends import Backends
from isthmus.tunnel.end import End, Ending, nobody_listens
from isthmus.values import HostPort
from isthmus.wire.client_hello import ClientHello, hello_in
from isthmus.wire.proxy_protocol import BOTH, IpPort, take_proxy_header
from isthmus.wire.tls_alert import Alert

#: 16 KiB in fragments of 512 bytes, the smallest that OpenSSL makes.
MAX_RECORDS = 32
_log = logging.getLogger("isthmus.sni")

_OF_MISS = {
    Miss.NO_NAME: Refusal.NO_NAME,
    Miss.UNKNOWN_NAME: Refusal.UNKNOWN_NAME,
    Miss.NO_PROTOCOL: Refusal.NO_PROTOCOL,
}
#: What a refused client is told; None is a reset without a word.
ALERT_OF: dict[Refusal, Alert | None] = {
    Refusal.NO_NAME: Alert.UNRECOGNIZED_NAME,
    Refusal.UNKNOWN_NAME: Alert.UNRECOGNIZED_NAME,
    Refusal.NO_PROTOCOL: Alert.NO_APPLICATION_PROTOCOL,
    Refusal.ROUTE_FULL: Alert.INTERNAL_ERROR,
    Refusal.BACKEND_DOWN: Alert.INTERNAL_ERROR,
    Refusal.LOOP: Alert.INTERNAL_ERROR,
    Refusal.NOT_TLS: None,
    Refusal.LATE: None,
    Refusal.LEFT: None,
    Refusal.CROWDED: None,
    Refusal.NO_PROXY_HEADER: None,
    Refusal.UNTRUSTED_PROXY: None,
    Refusal.TOO_MANY: None,
    Refusal.TOO_MANY_OF_SOURCE: None,
}


class Owner(Protocol):
    """The router, as far as a connection asks it."""

    poller: Poller
    dialer: DirectDialer
    backends: Backends
    dial_timeout_s: float
    expects_proxy: bool

    def now(self) -> float:
        """The loop's time."""

    def table(self) -> RoutingTable:
        """The routes in use."""

    def told_source(self, connection: Connection) -> None:
        """A PROXY header has said where a connection comes from."""

    def refusal_of(self, connection: Connection, found: Found) -> Refusal | None:
        """Why a connection cannot go where it wants now; None takes it in."""

    def trace(self, target: HostPort) -> Span | None:
        """A span for a dial, where somebody traces."""

    def refused(self, connection: Connection, why: Refusal, detail: str) -> None:
        """A connection is over before it was joined; if its socket lives, say the alert."""

    def backend_failed(
        self, connection: Connection, backend: HostPort, failure: DialFailure, detail: str
    ) -> None:
        """A backend could not be reached; others may be."""

    def reached(self, connection: Connection, far: SocketEnd, backend: HostPort) -> None:
        """A backend was reached, and has been told what comes first: join them."""


class Stage(Enum):
    """How far a connection has come."""

    HELLO = "its ClientHello is not here"
    DIALING = "a backend is dialed"
    OVER = "joined or refused"


class _Reader(PaidEarly):
    """The peer of a client that has none yet: keeps the bytes, and has them looked at."""

    __slots__ = ("heard",)

    def __init__(self, heard: Callable[[], None]) -> None:
        super().__init__()
        self.heard = heard

    def write(self, data: bytes) -> bool:
        """Keep the bytes and look at them."""
        self.buffer += data
        self.heard()
        # Asked only now: when a backend was reached at once, nothing is left here.
        self.charge()
        return len(self.buffer) < self.limit

    def write_eof(self) -> None:
        """Remember the end of file; a hello that is not here will not come any more."""
        super().write_eof()
        self.heard()


def _unheard() -> None:
    """Nobody asks any more."""


class Connection:
    """A client that wants to be joined to a backend."""

    __slots__ = (
        "_backend", "_dial", "_due_at", "_order", "_owner", "_reader", "_span", "_stage",
        "_wanted", "_wants_proxy", "accepted_at", "client", "destination", "dialed_at", "found",
        "hello", "source",
    )  # fmt: skip

    def __init__(
        self, owner: Owner, sock: socket.socket, *, source: IpPort, destination: IpPort
    ) -> None:
        """Take a new connection; ``start`` reads it."""
        self._owner = owner
        self._stage = Stage.HELLO
        self._wants_proxy = owner.expects_proxy
        self._wanted = 1
        self._order: list[HostPort] = []
        self._backend: HostPort | None = None
        self._dial: DirectDial | None = None
        self._span: Span | None = None
        self._due_at = 0.0
        #: Who the client is and where it connected to, as a PROXY header tells if there is one.
        self.source = source
        self.destination = destination
        self.accepted_at = owner.now()
        self.dialed_at = 0.0
        self.hello = ClientHello()
        self.found: Found | None = None
        stay_awake(sock)
        self._reader = _Reader(self._heard)
        self.client = SocketEnd(sock, owner.poller, self._reader)
        self.client.on_done = self._client_gone

    def __repr__(self) -> str:
        return f"<Connection from {self.source}: {self._stage.value}>"

    # Reading.

    def _heard(self) -> None:
        if self._stage is not Stage.HELLO:
            return
        buffer = self._reader.buffer
        try:
            if self._wants_proxy and not self._take_proxy(buffer):
                return
            hello: ClientHello | int = self._wanted
            if len(buffer) >= self._wanted:  # not read again for each of its bytes
                hello = hello_in(bytes(buffer), max_records=MAX_RECORDS)
        except ProtocolError as exc:
            self.refuse(Refusal.NO_PROXY_HEADER if self._wants_proxy else Refusal.NOT_TLS, str(exc))
            return
        if isinstance(hello, ClientHello):
            self._route(hello)
        elif self._reader.eof:
            self.refuse(Refusal.LEFT)
        else:
            self._wanted = hello

    def _take_proxy(self, buffer: bytearray) -> bool:
        """Take the PROXY header; whether it was all here."""
        header = take_proxy_header(buffer, versions=BOTH)
        if header is None:
            if self._reader.eof:
                self.refuse(Refusal.LEFT)
            return False
        self._wants_proxy = False
        if header.source is not None and header.destination is not None:
            self.source, self.destination = header.source, header.destination
            self._owner.told_source(self)
        return True

    # Dialing.

    def _route(self, hello: ClientHello) -> None:
        self.hello = hello
        found = self._owner.table().find(hello.server_name, hello.alpn)
        if isinstance(found, Miss):
            self.refuse(_OF_MISS[found])
            return
        refusal = self._owner.refusal_of(self, found)
        if refusal is not None:
            self.refuse(refusal)
            return
        self.found = found
        self._stage = Stage.DIALING
        now = self._owner.now()
        self._due_at = now + self._owner.dial_timeout_s
        self._order = self._owner.backends.in_order(found.route.backends, now=now)
        self._dial_next()

    def _dial_next(self) -> None:
        owner = self._owner
        backend = self._backend = self._order.pop(0)
        owner.backends.took(backend)
        self.dialed_at = owner.now()
        self._span = owner.trace(backend)
        dial = owner.dialer.dial(
            backend,
            # Each that is left gets its share: one that does not answer must not take it all.
            timeout_s=max(0.0, self._due_at - self.dialed_at) / (1 + len(self._order)),
            reached=self._reached,
            failed=self._failed,
        )
        if self._stage is Stage.DIALING and self._backend is backend:  # else it is over already
            self._dial = dial

    def _failed(self, failure: DialFailure, detail: str) -> None:
        backend, self._backend, self._dial = self._backend, None, None
        assert backend is not None
        if self._span is not None:
            self._span.failed(failure, detail)
        self._owner.backends.failed(backend, now=self._owner.now())
        self._owner.backend_failed(self, backend, failure, detail)
        if self._order:
            self._dial_next()
        else:
            self.refuse(Refusal.BACKEND_DOWN, detail or failure.value)

    def _reached(self, far: SocketEnd) -> None:
        backend, found = self._backend, self.found
        assert backend is not None and found is not None
        self._backend = self._dial = None
        self._over()
        if self._span is not None:
            self._span.succeeded()
        self._owner.backends.reached(backend)
        stay_awake(far.sock)
        if found.route.proxy is not None:
            header = found.route.proxy.header(
                source=self.source,
                destination=self.destination,
                server_name=self.hello.server_name,
            )
            far.write(header.to_bytes())
        self._owner.reached(self, far, backend)

    # Ending.

    def refuse(self, why: Refusal, detail: str = "") -> None:
        """End a connection that is not joined yet; the owner decides how."""
        if self._stage is Stage.OVER:
            return
        self._over()
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        if self._backend is not None:
            self._owner.backends.let_go(self._backend)
            self._backend = None
            if self._span is not None:
                self._span.cancelled()
        self.client.on_done = nobody_listens
        if _log.isEnabledFor(logging.DEBUG):
            log(
                _log, logging.DEBUG, "connection refused", source=str(self.source),
                server_name=self.hello.server_name, reason=why.value, detail=detail,
            )  # fmt: skip
        self._owner.refused(self, why, detail)

    def _over(self) -> None:
        self._stage = Stage.OVER
        self._reader.heard = _unheard  # else only a collection would free us

    def _client_gone(self, end: End, ending: Ending) -> None:
        self.refuse(Refusal.LEFT)
