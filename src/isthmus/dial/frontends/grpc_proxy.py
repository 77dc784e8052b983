"""The gRPC frontend: /ProxyService/Proxy, konnectivity's protocol, over UDS or TCP with mutual TLS.

A connection carries any number of calls, a call one tunnel: konnectivity's single-use clients open
one connection each, its reusable ones many calls on one. A call whose metadata names its target
uses KEP-1281's own protocol: see PayloadRequest below. Packets are tunnel/proxy_end.py, frames
tunnel/http2.py; the backend chooses the agent.
"""

from __future__ import annotations

import itertools
import logging
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from isthmus.dial.frontends.backend import (
    CONNECTION_ID,
    Backend,
    Dial,
    new_connection_id,
    peer_address,
    uds_identity,
)
from isthmus.dial.frontends.statuses import explain, explain_to_konnectivity
from isthmus.errors import DialFailure, ProtocolError
from isthmus.logs import OncePer
from isthmus.net.carriers import PlainCarrier, TlsCarrier
from isthmus.net.connection_gate import source_of
from isthmus.net.contexts import peer_identity
from isthmus.net.deadlines import Deadlines
from isthmus.net.poller import Poller
from isthmus.net.rules_slots import (
    STRANGER_S,
    AdmissionRefusal,
    Allowance,
    Strangers,
    stranger_refusal,
)
from isthmus.text.short_cache import short_cache
from isthmus.text.text_limits import MAX_SHOWN_CHARS, cut, plain
from isthmus.tunnel.budget import HANDSHAKE_BYTES, UNBOUNDED, Budget, Deposit
from isthmus.tunnel.end import BaseEnd
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import Handler, Http2Stream
from isthmus.tunnel.limits import MIB, Http2Limits
from isthmus.tunnel.message_reader import PacketCounts
from isthmus.tunnel.payload import PayloadEnd
from isthmus.tunnel.proxy_end import SETTLE_S, ProxyEnd
from isthmus.values import ANONYMOUS, HostPort, Identity, RequestMetadata
from isthmus.wire.grpc import Refusal, Status, request_problem
from isthmus.wire.http2 import ErrorCode, Headers, goaway, header, literal_header, settings
from isthmus.wire.payload import STATUS_OF_FAILURE, names_target, target_in
from isthmus.wire.request_metadata import HALF_CLOSE, metadata_in

PATH = b"/ProxyService/Proxy"
#: From the connection (or the handshake) to the preface.
PREFACE_S = 10.0
MOST_STRANGERS = 4096
GOODBYE_S = 2.0
#: The timeout of the answer to a ping after a silence.
_PONG_S = 20.0
_SWEEP_S = 10.0
_QUIET_S = 60.0
_MOST_CONNECT_ID = 2**28
#: Longer headers and addresses are not cached.
_SHORT_HEADERS_BYTES = 8192
_SHORT_TARGET_BYTES = 512
#: Calls within this time count as one burst; also the longest delay of a target's first bytes.
_MOMENT_S = 0.25
_LONGEST_SETTLE_S = 0.5
_KEEPS_HALF_CLOSE = literal_header(HALF_CLOSE, b"1")
_log = logging.getLogger("isthmus.frontend")


class Said(NamedTuple):
    """The parsed headers of a call."""

    refusal: Refusal | None
    names_target: bool
    asking: RequestMetadata
    half_closes: bool


@short_cache(128, _SHORT_HEADERS_BYTES)
def _said(headers: Headers) -> Said:
    """Read the headers of a call; cached, because clients without traces repeat them."""
    return Said(
        request_problem(headers),
        names_target(headers),
        metadata_in(headers),
        bool(header(headers, HALF_CLOSE)),
    )


E = TypeVar("E", ProxyEnd, PayloadEnd)


class _Call(Generic[E]):
    """One call until its tunnel stands; see backend.Request and tunnel.call_stream.CallClient."""

    __slots__ = ("_connection", "_dial", "_end", "asking", "connection_id", "target")

    frontend = "grpc"
    _connection: ClientConnection
    _end: E | None
    _dial: Dial | None
    target: HostPort | None

    @property
    def requester(self) -> Identity:
        """The requester, as authenticated by the transport."""
        return self._connection.identity

    @property
    def client_address(self) -> str:
        """The client's address; empty on a UNIX socket."""
        return peer_address(self._connection.carrier.sock)

    def left(self) -> None:
        """The client cancelled: cancel its dial."""
        dial, self._dial, self._end = self._dial, None, None
        if dial is not None:
            self._connection.frontend.backend.abandoned()
            dial.cancel()

    def broke_rules(self, what: str) -> None:
        """Log the violation, once a minute."""
        self._connection.frontend.complain(what)


class ProxyCall(_Call[ProxyEnd]):
    """By konnectivity's packets; its end's client, too (tunnel/proxy_end.py)."""

    __slots__ = ("accepted_at",)

    def __init__(self, connection: ClientConnection, end: ProxyEnd, said: Said) -> None:
        self._connection = connection
        self.asking = said.asking
        self.connection_id = new_connection_id()
        self.accepted_at = time.monotonic()
        if not connection.frontend.compat:
            end.named = literal_header(CONNECTION_ID, self.connection_id.encode())
        if said.half_closes:
            end.named += _KEEPS_HALF_CLOSE
        self._end = end
        self._dial = None
        self.target = None

    def wants(self, protocol: str, address: str) -> None:
        """The client requests a connection."""
        if protocol not in ("tcp", ""):
            protocol = cut(protocol, MAX_SHOWN_CHARS)
            self._not_served(f"protocol {protocol} is not supported, only tcp", address)
            return
        try:
            self.target = _target(address)
        except ValueError as exc:
            self._not_served(str(exc), address)
            return
        dial = self._connection.frontend.backend.dial(self, self.target)
        if self._end is not None:
            self._dial = dial

    def _not_served(self, why: str, address: str) -> None:
        end, self._end = self._end, None
        assert end is not None
        reason = f"cannot dial {cut(address, MAX_SHOWN_CHARS)}: {why}"
        self._connection.frontend.backend.refused(400, self, reason)
        end.refuse(reason)

    def established(self) -> BaseEnd | None:
        """Send DIAL_RSP; returns the end to join."""
        end, self._end, self._dial = self._end, None, None
        if end is None or end.ending is not None:
            return None
        end.accept(self._connection.frontend.next_connect_id())
        return end

    def dial_failed(self, failure: DialFailure, detail: str) -> None:
        """Report the failure."""
        end, self._end, self._dial = self._end, None, None
        if end is not None:
            assert self.target is not None
            compat = self._connection.frontend.compat
            end.refuse(explain_to_konnectivity(failure, self.target, detail, compat=compat))

    @property
    def settle_s(self) -> float:
        """Longer during a burst of calls, when the client is busy."""
        crowd = self._connection.frontend.crowd.size
        return min(SETTLE_S * (1.0 + crowd / 16.0), _LONGEST_SETTLE_S)

    def settle_later(self, end: ProxyEnd, delay_s: float) -> None:
        """Schedule ``end.settle`` after the delay."""
        self._connection.frontend.loop.call_later(delay_s, end.settle)


@short_cache(1024, _SHORT_TARGET_BYTES)
def _target(address: str) -> HostPort:
    """Read a target; cached, because targets repeat."""
    return HostPort.parse(address)


class Refused:
    """The handler of a request that is not gRPC, answered after its end."""

    __slots__ = ("_answer",)

    def __init__(self, refusal: Refusal) -> None:
        self._answer = refusal

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        """Ignore trailers."""

    def got_data(self, stream: Http2Stream, view: memoryview) -> None:
        """Ignore the body."""

    def batch_over(self, stream: Http2Stream) -> None:
        """Return the credit, so that the request can end."""
        stream.consumed(stream.unconsumed)

    def got_end(self, stream: Http2Stream) -> None:
        """Answer, also with a text, for people who try curl."""
        stream.send_headers(tuple(self._answer.to_headers()))
        stream.write(self._answer.message.encode() + b"\n", b"")
        stream.end()

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        """Do nothing: the client left."""

    def can_write(self, stream: Http2Stream) -> None:
        """Do nothing: nothing is waiting."""


class ClientConnection:
    """One client's connection; the owner of its carrier."""

    __slots__ = ("_handshake", "account", "carrier", "frontend", "http2", "identity")

    def __init__(self, frontend: GrpcFrontend, peer: Identity | str) -> None:
        self.frontend = frontend
        self.identity = Identity("unknown")
        self.account = frontend.budget.account(peer)
        self._handshake = Deposit(self.account, HANDSHAKE_BYTES)
        self.carrier: PlainCarrier | TlsCarrier
        self.http2: Http2Connection | None = None

    def begin(self, limits: Http2Limits) -> None:
        """Start HTTP/2 with the client."""
        self._handshake.close()
        self.http2 = Http2Connection(
            self.carrier,
            client=False,
            clock=time.monotonic,
            on_request=self._request,
            limits=limits,
            account=self.account,
        )
        self.carrier.session = self.http2
        if self.frontend.draining:
            self.http2.go_away()

    def _request(self, stream: Http2Stream, headers: Headers) -> Handler:
        said = _said(headers)
        refusal = said.refusal
        if refusal is None and header(headers, b":path") != PATH:
            path = plain(header(headers, b":path"))
            refusal = Refusal(
                http_status=200, status=Status.UNIMPLEMENTED, message=f"unknown method {path}"
            )
            stream.send_headers(tuple(refusal.to_headers()), end=True)
        if refusal is not None:
            self.frontend.complain(refusal.message)
            return Refused(refusal)
        if said.names_target:
            return serve_payload(self, stream, headers)
        self.frontend.crowd.came()
        end = ProxyEnd(stream, time.monotonic, self.frontend.packets)
        end.client = ProxyCall(self, end, said)
        return end

    # The carrier reports.

    def secured(self) -> None:
        """The client is authenticated."""
        assert isinstance(self.carrier, TlsCarrier)
        self.identity = peer_identity(self.carrier.tls)
        if self.identity is not ANONYMOUS:
            before, self.account = self.account, self.frontend.budget.account(self.identity)
            before.close()
        self.frontend.known(self, proved=True)
        self.begin(self.frontend.tcp_limits)

    def insecure(self, error: ssl.SSLError) -> None:
        """The TLS handshake failed."""
        self.frontend.backend.handshake_failed(error)

    def violated(self, error: ProtocolError) -> None:
        """The client violated HTTP/2: GOAWAY is written; close once it is sent."""
        self.frontend.complain(str(error))
        http2 = self.http2
        if http2 is not None:
            http2.flush()
            http2.lost(str(error))
        self.carrier.say_goodbye()
        self.frontend.goodbyes.add(self)

    def lost(self, why: str) -> None:
        """The connection is lost: end its calls."""
        self.carrier.close()
        frontend = self.frontend
        if self not in frontend.connections:
            return
        frontend.connections.remove(self)
        frontend.strangers.remove(self)
        frontend.known(self)
        frontend.goodbyes.remove(self)
        if self.http2 is not None:
            self.http2.lost(why)
        self._handshake.close()
        self.account.close()

    def greeted(self) -> None:
        """The time for the preface is over."""
        if self.http2 is None or not self.http2.got_settings:
            self.lost("no preface in time")

    def leave(self) -> None:
        """Close at once."""
        if self.http2 is not None:
            self.http2.flush()
        self.lost("server is stopping")


class Crowd:
    """The approximate number of recent calls; older ones count less."""

    __slots__ = ("_clock", "_since", "_size")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._size = 0.0
        self._since = clock()

    @property
    def size(self) -> float:
        """The current number."""
        return self._size * max(0.0, 1.0 - (self._clock() - self._since) / _MOMENT_S)

    def came(self) -> None:
        """Count a call."""
        self._size = self.size + 1.0
        self._since = self._clock()


class GrpcFrontend:
    """Turns accepted connections into requests."""

    def __init__(
        self,
        poller: Poller,
        backend: Backend,
        *,
        once: OncePer,
        compat: str = "",
        context: Callable[[], ssl.SSLContext] | None = None,
        keepalive_s: float = 3600.0,
        budget: Budget = UNBOUNDED,
    ) -> None:
        self.budget = budget
        loop = self.loop = poller.loop
        self.backend = backend
        self.compat = compat
        self.draining = False
        self.connections: set[ClientConnection] = set()
        self.packets = PacketCounts()
        self.crowd = Crowd(time.monotonic)
        self.strangers: Deadlines[ClientConnection] = Deadlines(
            loop, PREFACE_S, ClientConnection.greeted
        )
        self.goodbyes: Deadlines[ClientConnection] = Deadlines(
            loop, GOODBYE_S, lambda connection: connection.lost("ended")
        )
        self._unproven: Strangers[ClientConnection] = Strangers(MOST_STRANGERS)
        self._allowance = Allowance(loop.time)
        self._poller = poller
        self._once = once
        self._context = context
        self._limits = Http2Limits(ping_every_s=keepalive_s, dead_after_s=keepalive_s + _PONG_S)
        # A round trip over the network is longer than one over a UNIX socket.
        self.tcp_limits = replace(
            self._limits, stream_window_bytes=MIB, connection_window_bytes=16 * MIB
        )
        self._connect_ids = itertools.count(1)
        self._timer = loop.call_later(_SWEEP_S, self._sweep)

    @property
    def unsent(self) -> bool:
        """Whether data of a target has not reached its client's kernel."""
        return any(
            it.carrier.out_bytes or any(stream.out_bytes for stream in it.http2.streams.values())
            for it in self.connections
            if it.http2 is not None
        )

    @property
    def calls(self) -> int:
        """The number of open calls."""
        return sum(len(it.http2.streams) for it in self.connections if it.http2 is not None)

    def accept(self, sock: socket.socket) -> None:
        """Accept a connection from a UNIX socket."""
        identity = uds_identity(sock)
        connection = ClientConnection(self, identity)
        connection.identity = identity
        connection.carrier = PlainCarrier(connection, sock, self._poller)
        self.connections.add(connection)
        connection.begin(self._limits)
        self.strangers.add(connection)
        # The preface has usually arrived: read before the batch ends, so that our settings
        # and the answer to theirs are sent in one write.
        connection.carrier.read_again()

    def accept_tls(self, sock: socket.socket) -> None:
        """Accept a connection from a TCP port."""
        assert self._context is not None
        source = source_of(sock)
        full = stranger_refusal(source, self._unproven, self._allowance, self.budget)
        if full is not None:
            sock.close()
            self.backend.no_place(full, source)
            return
        crowded_out = self._unproven.must_leave()
        if crowded_out is not None:
            self.backend.no_place(AdmissionRefusal.CROWD, source_of(crowded_out.carrier.sock))
            crowded_out.lost("crowded out")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = ClientConnection(self, source)
        connection.carrier = TlsCarrier(connection, sock, self._poller, self._context())
        self.connections.add(connection)
        self.strangers.add(connection)
        self._unproven.add(connection, source)

    def known(self, connection: ClientConnection, *, proved: bool = False) -> None:
        """A client of a TCP port has authenticated, or is gone."""
        source = self._unproven.remove(connection)
        if proved:
            self._allowance.give_back(source, STRANGER_S)

    def drain(self) -> None:
        """Accept no new calls; open ones continue."""
        self.draining = True
        for connection in list(self.connections):
            if connection.http2 is not None:
                connection.http2.go_away()

    def close(self) -> None:
        """End every connection."""
        self._timer.cancel()
        self.strangers.take_all()
        self.goodbyes.take_all()
        for connection in list(self.connections):
            connection.leave()

    def next_connect_id(self) -> int:
        """The next connect id, for logs; a client knows only its own."""
        return next(self._connect_ids) % _MOST_CONNECT_ID or next(self._connect_ids)

    def complain(self, what: str) -> None:
        """Log a client's protocol violation, each kind once a minute."""
        self._once.log(
            ("grpc client", what[:40]), _QUIET_S, _log, logging.WARNING,
            "a client broke the protocol", reason=what,
        )  # fmt: skip

    def _sweep(self) -> None:
        self._timer = self.loop.call_later(_SWEEP_S, self._sweep)
        for connection in list(self.connections):
            if connection.http2 is not None and not connection.http2.tick():
                connection.lost("no byte heard for too long")


def no_place(sock: socket.socket, why: AdmissionRefusal) -> None:
    """Refuse a client of a UNIX socket; see connection_gate.Refuse."""
    text = f"too many connections: {why.value}"
    sock.send(settings() + goaway(0, ErrorCode.ENHANCE_YOUR_CALM, text))


class PayloadRequest(_Call[PayloadEnd]):
    """By KEP-1281's payloads (tunnel/payload.py)."""

    __slots__ = ()

    def __init__(self, connection: ClientConnection, end: PayloadEnd, headers: Headers) -> None:
        self._connection = connection
        self.asking = metadata_in(headers)
        self.connection_id = new_connection_id()
        if not connection.frontend.compat:
            end.named = literal_header(CONNECTION_ID, self.connection_id.encode())
        self._end = end
        self._dial = None
        self.target = None

    def dial(self, headers: Headers) -> None:
        """Dial the target in the metadata."""
        frontend = self._connection.frontend
        try:
            self.target = target_in(headers)
        except ProtocolError as exc:
            end, self._end = self._end, None
            assert end is not None
            frontend.complain(str(exc))
            frontend.backend.refused(400, self, str(exc))
            end.refuse(Status.INVALID_ARGUMENT, str(exc))
            return
        assert self.target is not None  # otherwise it is a call of the other protocol
        dial = frontend.backend.dial(self, self.target)
        if self._end is not None:
            self._dial = dial

    def established(self) -> BaseEnd | None:
        """Send the response headers; returns the end to join."""
        end, self._end, self._dial = self._end, None, None
        if end is None or end.ending is not None:
            return None
        end.accept()
        return end

    def dial_failed(self, failure: DialFailure, detail: str) -> None:
        """Report the failure."""
        end, self._end, self._dial = self._end, None, None
        if end is not None:
            assert self.target is not None
            end.refuse(STATUS_OF_FAILURE[failure], explain(failure, self.target, detail))


def serve_payload(
    connection: ClientConnection, stream: Http2Stream, headers: Headers
) -> PayloadEnd:
    """Start serving a call; returns its end, the handler of its stream."""
    end = PayloadEnd(stream, half_closes=bool(header(headers, HALF_CLOSE)))
    request = PayloadRequest(connection, end, headers)
    end.client = request
    request.dial(headers)
    return end
