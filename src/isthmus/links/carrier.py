"""The carrier of a mux link: TLS over TCP, feeding a session with whatever arrives."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING

from isthmus.errors import ProtocolError
from isthmus.net.poller import Poller
from isthmus.net.tls import TlsSocket
from isthmus.tunnel.session import Session

if TYPE_CHECKING:
    from isthmus.links.link import Link

#: Leave the queue with us, where streams take turns, and not in the kernel, where they cannot.
NOTSENT_LOWAT_BYTES = 128 * 1024
_TCP_NOTSENT_LOWAT = 25
_READ_BYTES = 256 * 1024


class LinkSocket(TlsSocket):
    """One link's connection."""

    __slots__ = ("bytes_in", "bytes_out", "link", "said_goodbye", "session")

    def __init__(
        self,
        link: Link,
        sock: socket.socket,
        poller: Poller,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None,
    ) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, NOTSENT_LOWAT_BYTES)
        self.link = link
        self.session: Session | None = None
        self.said_goodbye = False
        self.bytes_in = self.bytes_out = 0
        super().__init__(
            sock, poller, context, server_hostname=server_hostname, read_bytes=_READ_BYTES
        )

    def carry(self, session: Session) -> None:
        """The handshake is done: from now on plaintext goes to this session."""
        self.session = session

    def handshake_done(self) -> None:
        """Tell the link."""
        self.link.secured()

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """Tell the link."""
        self.link.insecure(error)

    def deliver(self, plain: memoryview) -> bool:
        """Feed the session; a link is never paused, each of its streams is."""
        session = self.session
        if session is not None and session.closed is None:
            self.bytes_in += len(plain)
            session.heard()
            try:
                session.receive(plain)
            except ProtocolError as exc:
                self.link.violated(exc)
        return True

    def send(self, data: bytes) -> bool:
        """Encrypt a batch of frames."""
        if self.closed or self.said_goodbye:
            return True
        self.bytes_out += len(data)
        return self.encrypt(data)

    def wake(self) -> None:
        """Flush when the batch of events is over."""
        self.poller.flush_later(self._flush_session)

    def _flush_session(self) -> None:
        if self.session is not None:
            self.session.flush()

    def say_goodbye(self) -> None:
        """Close our direction after what is unsent, and go on reading until the peer closes its."""
        # Closing at once would lose what is unsent, and bytes that still arrive would make the
        # kernel answer with a reset that overtakes even what it had taken.
        self.said_goodbye = True
        self.close_notify()
        self.shut_write()

    def drained(self) -> None:
        """There is room for more."""
        if self.session is not None:
            self.session.resume()

    def ended(self) -> None:
        """The peer closed the connection."""
        self.link.lost("closed by the peer")

    def broken(self) -> None:
        """The connection failed."""
        self.link.lost("connection lost")
