"""The dialer through a connectivity server's HTTP CONNECT frontend.

The tunnel's end is the connection to the server. A half-close is one of that connection; a
reset is one of TCP. A UNIX socket cannot be reset, only closed: a server that preserves half-closes
closes it without our half-close only when the tunnel broke, so that reads as a reset. With a
konnectivity server, which does not announce half-closes, every tunnel ends this way, which reads
as a clean end.

net/through_proxy.py connects an agent to its server through an HTTP proxy.
"""

from __future__ import annotations

import select
import socket
import ssl

from isthmus.dial.dialers.through_server import (
    Reached,
    ServerDial,
    ServerDialer,
    failure_said,
    tls_fault,
)
from isthmus.errors import DialFailure, ProtocolError
from isthmus.net.connect import Failed
from isthmus.net.poller import Poller
from isthmus.net.socket_end import SocketEnd
from isthmus.net.tls import TlsEnd
from isthmus.tunnel.end import Early, Ending
from isthmus.values import HostPort
from isthmus.wire.connect_answer import ConnectAnswer, ConnectAsking
from isthmus.wire.request_metadata import HALF_CLOSE, headers_of

#: The failure for a status with an unknown text (dial/frontends/statuses.py).
FAILURE_OF_STATUS = {
    403: DialFailure.DENIED,
    503: DialFailure.NO_AGENT,
    504: DialFailure.TIMED_OUT,
}


class _UnixServer(SocketEnd):
    """The connection to a server at a UNIX socket, or at a TCP port in the clear."""

    __slots__ = ("keeps_half_close",)

    def __init__(
        self, sock: socket.socket, poller: Poller, early: Early, *, keeps_half_close: bool | None
    ) -> None:
        self.keeps_half_close = keeps_half_close  # None: not announced yet
        super().__init__(sock, poller, early)

    def got_eof(self) -> None:
        """Distinguish a close from a half-close."""
        if self.keeps_half_close and not self._eof_in and not self._eof_out and self._gone():
            self.broken()
        else:
            super().got_eof()

    def _gone(self) -> bool:
        # Not from earlier edges: the last one may still be pending.
        now = select.poll()
        now.register(self.fd, 0)
        return bool(now.poll(0))


class _TlsServer(TlsEnd):
    """The connection to a server at a TCP port."""

    __slots__ = ("error",)

    def __init__(
        self,
        sock: socket.socket,
        poller: Poller,
        context: ssl.SSLContext,
        early: Early,
        *,
        server_hostname: str,
    ) -> None:
        self.error = ""
        super().__init__(sock, poller, context, early, server_hostname=server_hostname)

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """Keep the error for the message."""
        self.error = tls_fault(error)

    def tls_failed(self, error: ssl.SSLError) -> None:
        """Keep the error for the message."""
        self.error = tls_fault(error)


class _Question(Early):
    """The early peer of the connection: reads the answer, and keeps the target's first bytes."""

    __slots__ = ("_answer", "_asking", "_dial")

    def __init__(self, dial: ConnectDial) -> None:
        super().__init__()
        self._dial: ConnectDial | None = dial
        said = [*headers_of(dial.asking), (HALF_CLOSE, b"1")]
        self._asking = ConnectAsking(dial.target, keep_early=True, headers=said)
        self._answer: ConnectAnswer | None = None

    @property
    def request(self) -> bytes:
        """The request to send."""
        return self._asking.request

    def write(self, data: bytes) -> bool:
        """Read more of the answer; bytes after it are the target's."""
        if self._dial is None:
            return super().write(data)
        if self._answer is not None:
            self._read_refusal(data)
            return True
        try:
            self._answer = self._asking.receive(data)
        except ProtocolError as exc:
            self._dial.server_failed(str(exc))
            return True
        if self._answer is not None and not self._answer.connected:
            self._read_refusal()
        elif self._answer is not None:
            self.buffer += self._asking.early
            dial, self._dial = self._dial, None
            dial.connected(keeps_half_close=self._answer.header(HALF_CLOSE) is not None)
            # A join inside the callback has taken the buffer, and paused reading if necessary.
        return len(self.buffer) < self.limit

    def write_eof(self) -> None:
        """The server ends its answer, or the target its stream."""
        super().write_eof()
        if self._answer is not None and self._dial is not None:
            self._read_refusal(end=True)
        elif self._dial is not None:
            self._dial.server_failed("closed the connection before it answered")

    def abort(self, reason: Ending) -> None:
        """The connection broke."""
        super().abort(reason)
        if self._answer is not None and self._dial is not None:
            self._read_refusal(end=True)
        elif self._dial is not None:
            self._dial.broke()

    def leave(self) -> None:
        """Stop waiting for the answer."""
        self._dial = None

    def refusal(self, text: str) -> tuple[DialFailure, str] | None:
        """The failure in the answer received so far; None without an answer."""
        if self._answer is None or self._answer.connected:
            return None
        failure, detail = failure_said(text)
        if failure is DialFailure.INTERNAL:
            failure = FAILURE_OF_STATUS.get(self._answer.status, failure)
        if detail == text:  # not one of our messages: include the status
            detail = f"{self._answer.line}: {text}" if text else self._answer.line
        return failure, detail

    def refusal_so_far(self) -> tuple[DialFailure, str] | None:
        """The failure of a refusal that was not complete in time."""
        if self._answer is None:
            return None
        return self.refusal(self._asking.receive_refusal(end=True) or "")

    def _read_refusal(self, data: bytes = b"", *, end: bool = False) -> None:
        text = self._asking.receive_refusal(data, end=end)
        said = self.refusal(text) if text is not None else None
        if said is not None and self._dial is not None:
            self._dial.fail(*said)


class ConnectDial(ServerDial):
    """One CONNECT; see ServerDial."""

    _end: _UnixServer | _TlsServer | None = None
    _question: _Question | None = None

    def ask(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        """Send the request."""
        question = self._question = _Question(self)
        place = self.place
        end: _UnixServer | _TlsServer
        if context is not None:
            end = self._end = _TlsServer(
                sock, self.poller, context, question, server_hostname=place.name
            )
            end.begin()
        else:
            end = self._end = _UnixServer(
                sock, self.poller, question, keeps_half_close=place.keeps_half_close
            )
        end.write(question.request)
        end.read_again()  # data that arrived before registration will not trigger another edge

    def connected(self, *, keeps_half_close: bool) -> None:
        """The connection now leads to the target; the server preserves half-closes or not."""
        end, self._end, self._question = self._end, None, None
        assert end is not None
        if isinstance(end, _UnixServer) and end.keeps_half_close is None:
            end.keeps_half_close = keeps_half_close
        self.won(end)

    def broke(self) -> None:
        """The connection broke before the answer."""
        tls_error = self._end.error if isinstance(self._end, _TlsServer) else ""
        self.server_failed(tls_error or "the connection broke before it answered")

    def too_late(self) -> tuple[DialFailure, str]:
        """An incomplete refusal counts as a refusal."""
        said = self._question.refusal_so_far() if self._question is not None else None
        return said or super().too_late()

    def drop(self) -> None:
        """Close the connection."""
        end, self._end = self._end, None
        question, self._question = self._question, None
        if question is not None:
            question.leave()
        if end is not None:
            end.abort(Ending.CANCELLED)


class ConnectDialer(ServerDialer):
    """Dials by HTTP CONNECT; the resulting end has the target's first bytes."""

    def make_dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> ConnectDial:
        return ConnectDial(self, target, timeout_s=timeout_s, reached=reached, failed=failed)
