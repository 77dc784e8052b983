"""Carriers: plain or TLS connections that carry many streams and feed a session.

The session is pure (tunnel/session.py, tunnel/http2.py); the owner of both is told about the
handshake, protocol violations and the end. Carriers are never paused; their streams are.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Protocol

from isthmus.errors import ProtocolError
from isthmus.net.poller import CARRIED_BYTES, CIPHER_BYTES, Poller
from isthmus.net.raw import MOST_LAST_READS, RawSocket
from isthmus.net.tls import TlsSocket
from isthmus.tunnel.session import Carried


class CarrierOwner(Protocol):
    """The owner of a carrier."""

    def secured(self) -> None:
        """The TLS handshake is done."""

    def insecure(self, error: ssl.SSLError) -> None:
        """The TLS handshake failed."""

    def violated(self, error: ProtocolError) -> None:
        """The peer violated the protocol."""

    def lost(self, why: str) -> None:
        """The connection is gone, or the peer ended it."""


class CarrierBase:
    """The common part of both carriers: a mix-in for a RawSocket, without storage."""

    if not TYPE_CHECKING:  # a type checker would treat these as the only fields
        __slots__ = ()

    poller: Poller
    owner: CarrierOwner
    session: Carried | None
    said_goodbye: bool
    bytes_in: int
    bytes_out: int

    def init_carrier(self, owner: CarrierOwner) -> None:
        """Set the fields, before the socket is registered."""
        self.owner = owner
        self.session = None
        self.said_goodbye = False
        self.bytes_in = self.bytes_out = 0

    def feed(self, view: memoryview) -> None:
        """Pass received bytes to the session."""
        session = self.session
        if session is not None:
            self.bytes_in += len(view)
            session.heard()
            try:
                session.receive(view)
            except ProtocolError as exc:
                self.owner.violated(exc)

    def wake(self) -> None:
        """Flush when the batch of events is over."""
        self.poller.flush_later(self._flush_session)

    def wake_in_time(self) -> None:
        """Flush within milliseconds."""
        self.poller.flush_in_time(self._flush_session)

    def _flush_session(self) -> None:
        if self.session is not None:
            self.session.flush()

    def drained(self) -> None:
        """The socket has room again."""
        if self.session is not None:
            self.session.resume()

    def broken(self) -> None:
        """The connection failed."""
        self.owner.lost("connection lost")


_SLOTS = ("bytes_in", "bytes_out", "owner", "said_goodbye", "session")


class PlainCarrier(CarrierBase, RawSocket):
    """A carrier over a plain socket."""

    __slots__ = _SLOTS

    def __init__(self, owner: CarrierOwner, sock: socket.socket, poller: Poller) -> None:
        self.init_carrier(owner)
        RawSocket.__init__(self, sock, poller)

    def readable(self) -> None:
        """Read once and feed the session; the poller calls again if there may be more."""
        buffer = self.poller.carried
        try:
            size = self.sock.recv_into(buffer)
        except BlockingIOError:
            return
        except OSError:
            self.broken()
            return
        if not size:
            self.owner.lost("closed by the peer")
            return
        self.feed(buffer[:size])
        if (size == CARRIED_BYTES or self.peer_shut) and not self.closed and not self._queued:
            self._queued = True
            self.poller.again(self.read_again)

    def last_words(self) -> None:
        """Feed what arrived before a reset."""
        buffer = self.poller.carried
        with contextlib.suppress(OSError):
            for _ in range(MOST_LAST_READS):
                size = self.sock.recv_into(buffer)
                if not size or self.closed:
                    return
                self.feed(buffer[:size])

    def send(self, data: bytes) -> bool:
        """Send a batch of frames."""
        if self.closed or self.said_goodbye:
            return True
        self.bytes_out += len(data)
        return self.put(data)

    def say_goodbye(self) -> None:
        """Close our direction after unsent data, and read on, discarding, until the peer closes."""
        self.said_goodbye = True
        self.session = None
        self.shut_write()


class TlsCarrier(CarrierBase, TlsSocket):
    """A carrier over TLS."""

    __slots__ = _SLOTS

    def __init__(
        self,
        owner: CarrierOwner,
        sock: socket.socket,
        poller: Poller,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
    ) -> None:
        self.init_carrier(owner)
        TlsSocket.__init__(
            self, sock, poller, context, server_hostname=server_hostname, read_bytes=CIPHER_BYTES
        )

    def handshake_done(self) -> None:
        """Tell the owner; the ALPN protocol is now known."""
        self.owner.secured()

    def handshake_failed(self, error: ssl.SSLError) -> None:
        self.owner.insecure(error)

    def tls_failed(self, error: ssl.SSLError) -> None:
        """Tell the owner if nothing was received yet: TLS 1.3 servers refuse a client this late."""
        if not self.bytes_in and not self.tls.server_side:
            self.owner.insecure(error)

    def deliver(self, plain: memoryview) -> bool:
        """Feed the session; a carrier is never paused."""
        self.feed(plain)
        return True

    def send(self, data: bytes) -> bool:
        """Encrypt a batch of frames."""
        if self.closed or self.said_goodbye:
            return True
        self.bytes_out += len(data)
        return self.encrypt(data)

    def say_goodbye(self) -> None:
        """Close our direction after unsent data, and read on until the peer closes."""
        # Closing at once would lose unsent data, and bytes that still arrive would make the
        # kernel send a reset that overtakes even data it had accepted.
        self.said_goodbye = True
        self.close_notify()
        self.shut_write()

    def ended(self) -> None:
        """The peer closed the connection."""
        self.owner.lost("closed by the peer")
