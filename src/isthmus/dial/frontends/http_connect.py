"""The HTTP CONNECT frontend: reads the head, requests a dial, answers, joins.

Over UDS or over TCP with mutual TLS. A connection carries one tunnel. wire/http_connect.py
parses the head; the backend chooses the agent.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import time
from collections.abc import Callable

from isthmus.dial.frontends.backend import (
    Backend,
    Dial,
    new_connection_id,
    payer_of,
    peer_address,
    uds_identity,
)
from isthmus.dial.frontends.statuses import explain, status_for
from isthmus.errors import DialFailure
from isthmus.logs import OncePer
from isthmus.net.connection_gate import source_of
from isthmus.net.contexts import peer_identity
from isthmus.net.deadlines import Deadlines
from isthmus.net.poller import Poller
from isthmus.net.raw import READ_BYTES
from isthmus.net.rules_slots import (
    STRANGER_S,
    AdmissionRefusal,
    Allowance,
    Strangers,
    stranger_refusal,
)
from isthmus.net.socket_end import SocketEnd
from isthmus.net.tls import TlsEnd
from isthmus.tunnel.budget import HANDSHAKE_BYTES, UNBOUNDED, Budget, Deposit
from isthmus.tunnel.end import EARLY_BYTES, BaseEnd, Discard, Early, Ending
from isthmus.values import NOTHING, HostPort, Identity, RequestMetadata
from isthmus.wire.http_connect import (
    CONNECTION_ID,
    BadRequest,
    HeadReader,
    established,
    reply,
    take_connect,
)

#: From the first byte (or the handshake) to the whole head. A client that needs longer is broken
#: or malicious; kube-apiserver writes its head in one piece.
HEAD_S = 10.0
MOST_HEADS = 4096
#: How long a refused client may take to read its answer.
GOODBYE_S = 2.0
_QUIET_S = 60.0
_log = logging.getLogger("isthmus.frontend")


class ConnectClient(Early):
    """One client until its tunnel is established: the early peer of its end."""

    __slots__ = (
        "_dial",
        "_frontend",
        "_half_closes",
        "_head",
        "_head_done",
        "accepted_at",
        "asking",
        "connection_id",
        "deposit",
        "end",
        "target",
    )

    frontend = "http-connect"

    def __init__(self, frontend: ConnectFrontend) -> None:
        super().__init__()
        self._frontend = frontend
        self._head: HeadReader | None = None  # for a head that arrives in pieces
        self._head_done = False
        self._half_closes = False
        self._dial: Dial | None = None
        #: For a handshake, an incomplete head, or data before the dial's answer.
        self.deposit: Deposit | None = None
        self.end: SocketEnd | TlsEnd | None = None
        self.target: HostPort | None = None
        self.asking: RequestMetadata = NOTHING
        self.connection_id = ""  # empty until the head is complete
        self.accepted_at = time.monotonic()

    @property
    def requester(self) -> Identity:
        """The requester, as authenticated by the transport."""
        end = self.end
        if isinstance(end, TlsEnd):
            return peer_identity(end.tls)
        return uds_identity(end.sock) if end is not None else Identity("unknown")

    @property
    def client_address(self) -> str:
        """The client's address; empty on a UNIX socket."""
        return peer_address(self.end.sock) if self.end is not None else ""

    @property
    def waits_for_head(self) -> bool:
        """Whether its head is incomplete."""
        return not self._head_done and self.end is not None

    def write(self, data: bytes) -> bool:
        """Take bytes of the head; bytes after it are kept for the tunnel."""
        self.buffer += data
        if not self._head_done:
            try:
                head = self._head
                request = take_connect(self.buffer) if head is None else head.take(self.buffer)
            except BadRequest as exc:
                self._frontend.once.log(
                    ("bad request", exc.status), _QUIET_S, _log, logging.WARNING,
                    "refused a request", status=exc.status, reason=exc.reason,
                )  # fmt: skip
                self.connection_id = new_connection_id()
                self._frontend.backend.refused(exc.status, self, exc.reason)
                self._goodbye(exc.to_bytes())
                return True
            if request is not None:
                self._head_done, self._head = True, None
                self._frontend.heard(self, proved=True)
                self.target = request.target
                self.asking = request.asking
                self._half_closes = request.half_closes
                self.connection_id = new_connection_id()
                dial = self._frontend.backend.dial(self, request.target)
                if self.end is None:  # answered at once
                    return True
                self._dial = dial
            elif head is None:
                self._head = HeadReader()
        if self.buffer and self.deposit is None and self.end is not None:
            self.keep(payer_of(self.requester, self), EARLY_BYTES)
        return len(self.buffer) < self.limit

    def keep(self, peer: Identity | str, size: int) -> None:
        """Charge the client's kept bytes."""
        account = self._frontend.budget.account(peer)
        self.deposit = Deposit(account, size)
        account.close()

    def kept(self) -> None:
        """Release the charge."""
        if self.deposit is not None:
            self.deposit.close()
            self.deposit = None

    def write_eof(self) -> None:
        """An end of file before the whole head means that the client left; later, a half-close."""
        super().write_eof()
        if not self._head_done:
            self._close()
        elif self.end is not None and self.end.hung_up:
            # On a UNIX socket this is a client that left, not a half-close.
            self.end.abort(Ending.CANCELLED)
            self.abort(Ending.CANCELLED)

    def abort(self, reason: Ending) -> None:
        """The client is gone: cancel its dial."""
        super().abort(reason)
        self._frontend.heard(self)
        self.kept()
        dial, self._dial = self._dial, None
        if dial is not None:
            self._frontend.backend.abandoned()
            dial.cancel()
        self.end = None

    def established(self) -> BaseEnd | None:
        """Answer 200; returns the end to join, or None if the client is gone."""
        if self.deposit is not None:
            self.kept()
        end, self.end, self._dial = self.end, None, None
        if end is None or end.ending is not None:
            return None
        named = "" if self._frontend.compat else self.connection_id
        end.write(established(named, keeps_half_close=self._half_closes))
        return end

    def dial_failed(self, failure: DialFailure, detail: str) -> None:
        """Report the failure."""
        self._dial = None
        assert self.target is not None
        compat = self._frontend.compat
        named = [] if compat else [(CONNECTION_ID, self.connection_id)]
        status = status_for(failure, compat=compat)
        self._goodbye(reply(status, explain(failure, self.target, detail), headers=named))

    def too_slow(self) -> None:
        """The head did not arrive in time."""
        self._frontend.backend.refused(408)
        self._goodbye(reply(408, "the request head did not arrive in time"))

    def leave(self, why: Ending = Ending.DRAINED) -> None:
        """Reset a client without a complete head, for example when the server stops."""
        self.kept()
        if self.end is not None:
            self.end.abort(why)
            self.end = None

    def _goodbye(self, answer: bytes) -> None:
        """Answer and close, reading on for a moment: unread bytes would turn FIN into a reset."""
        self._frontend.heard(self)
        self.kept()
        self._head_done = True
        end, self.end = self.end, None
        if end is None or end.ending is not None:
            return
        if isinstance(end, TlsEnd) and not end.secured:
            end.abort(Ending.TIMED_OUT)
            return
        end.peer = Discard()
        end.write(answer)
        end.write_eof()
        if end.ending is None:
            self._frontend.goodbyes.add(end)
            end.resume_reading()

    def _close(self) -> None:
        self._frontend.heard(self)
        self.kept()
        end, self.end = self.end, None
        if end is not None:
            end.write_eof()


class ConnectFrontend:
    """Turns accepted connections into requests."""

    def __init__(
        self,
        poller: Poller,
        backend: Backend,
        *,
        compat: str = "",
        once: OncePer,
        context: Callable[[], ssl.SSLContext] | None = None,
        budget: Budget = UNBOUNDED,
    ) -> None:
        self.budget = budget
        self._poller = poller
        self._context = context
        self.backend = backend
        self.compat = compat
        self.once = once
        loop = poller.loop
        self.heads: Deadlines[ConnectClient] = Deadlines(loop, HEAD_S, ConnectClient.too_slow)
        self.strangers: Strangers[ConnectClient] = Strangers(MOST_HEADS)
        self._allowance = Allowance(loop.time)
        self.goodbyes: Deadlines[SocketEnd | TlsEnd] = Deadlines(loop, GOODBYE_S, _leave)

    def accept(self, sock: socket.socket) -> None:
        """Accept a connection from a UNIX socket."""
        client = ConnectClient(self)
        # The head has usually arrived. Reading it before the poller watches the socket saves
        # an iteration of the loop, and the edge of bytes already read.
        try:
            head = sock.recv(READ_BYTES)
        except OSError:
            head = b""  # no data yet, or an error: the poller reports which
        client.end = SocketEnd(sock, self._poller, client)
        if head:
            if len(head) == READ_BYTES:
                client.end.unread = True
            if not client.write(head):
                client.end.pause_reading()
        if client.waits_for_head:
            self.heads.add(client)

    def accept_tls(self, sock: socket.socket) -> None:
        """Accept a connection from a TCP port."""
        assert self._context is not None
        source = source_of(sock)
        full = stranger_refusal(source, self.strangers, self._allowance, self.budget)
        if full is not None:
            sock.close()
            self.backend.no_place(full, source)
            return
        crowded_out = self.strangers.must_leave()
        if crowded_out is not None:
            self.heard(crowded_out)
            greedy = crowded_out.end.sock if crowded_out.end is not None else sock
            self.backend.no_place(AdmissionRefusal.CROWD, source_of(greedy))
            crowded_out.leave(Ending.CANCELLED)
        client = ConnectClient(self)
        self.heads.add(client)
        self.strangers.add(client, source)
        client.keep(source, HANDSHAKE_BYTES)
        client.end = FrontendTls(sock, self._poller, self._context(), client)
        client.end.on_handshake_failed = self.backend.handshake_failed

    def heard(self, client: ConnectClient, *, proved: bool = False) -> None:
        """A client has sent its head, or authenticated, or is gone."""
        self.heads.remove(client)
        source = self.strangers.remove(client)
        if proved and source:
            self._allowance.give_back(source, STRANGER_S)
        if client.deposit is not None:
            client.kept()

    def close(self) -> None:
        """Reset the clients that have no tunnel yet."""
        for client in self.heads.take_all():
            client.leave()
        for end in self.goodbyes.take_all():
            end.abort(Ending.DRAINED)


class FrontendTls(TlsEnd):
    """A TLS client whose failed handshake is reported."""

    __slots__ = ("on_handshake_failed",)

    on_handshake_failed: Callable[[ssl.SSLError], None]

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """Report it."""
        self.on_handshake_failed(error)


def no_place(sock: socket.socket, why: AdmissionRefusal) -> None:
    """Refuse a client; see connection_gate.Refuse."""
    with contextlib.suppress(BlockingIOError):
        # Unread data would turn the following close into a reset.
        sock.recv(READ_BYTES, socket.MSG_DONTWAIT)
    sock.send(reply(503, f"too many connections: {why.value}"))


def _leave(end: SocketEnd | TlsEnd) -> None:
    end.abort(Ending.TIMED_OUT)
