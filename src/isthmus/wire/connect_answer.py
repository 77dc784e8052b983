"""HTTP CONNECT as a client sees it: the request to a proxy, and the head of its answer.

The other side of it, a proxy's, is wire/http_connect.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import h11

from isthmus import __version__
from isthmus.errors import ProtocolError
from isthmus.values import HostPort

MAX_ANSWER_BYTES = 16 * 1024
_START = b"HTTP/"
_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True)
class ConnectAnswer:
    """A proxy's verdict: its status, and its status line fit for a log."""

    status: int
    line: str

    @property
    def connected(self) -> bool:
        """The connection leads to the target from here on (RFC 9110 §9.3.6: any 2xx)."""
        return 200 <= self.status < 300


class ConnectAsking:
    """One CONNECT: ``request`` is to be sent, and what comes back goes to ``receive``."""

    def __init__(self, target: HostPort, *, authorization: str | None = None) -> None:
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ANSWER_BYTES)
        headers = [("Host", str(target)), ("User-Agent", f"isthmus/{__version__}")]
        if authorization is not None:
            headers.append(("Proxy-Authorization", authorization))
        request = self._h11.send(h11.Request(method="CONNECT", target=str(target), headers=headers))
        assert request is not None  # only a closed connection has no bytes
        self.request = request
        self._h11.send(h11.EndOfMessage())
        self._start = b""
        self._size = 0

    def receive(self, data: bytes) -> ConnectAnswer | None:
        """Take bytes of the answer; None when its head is not all here yet.

        The verdict on the head depends on its bytes alone, not on how they were cut into reads.

        Raises:
            ProtocolError: it is not HTTP, is larger than MAX_ANSWER_BYTES, or bytes follow the
                head of a 2xx: the target's, which would speak only when spoken to.
        """
        taken = data[: MAX_ANSWER_BYTES - self._size]
        self._size += len(taken)
        if len(self._start) < _SHOWN_CHARS:
            self._start += taken[:_SHOWN_CHARS]
        if not self._start.startswith(_START[: len(self._start)]):
            raise ProtocolError(f"not an HTTP answer: {_shown(self._start)}")
        try:
            if taken:  # none would say: end of file
                self._h11.receive_data(taken)
            event = self._h11.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = self._h11.next_event()
        except h11.RemoteProtocolError as exc:
            raise ProtocolError(f"not an HTTP answer: {_shown(self._start)}") from exc
        if isinstance(event, h11.Response):
            return self._verdict(event, early=len(data) > len(taken))
        if len(data) > len(taken):
            raise ProtocolError(f"the answer's head is larger than {MAX_ANSWER_BYTES} bytes")
        return None

    def _verdict(self, event: h11.Response, *, early: bool) -> ConnectAnswer:
        parts = (b"HTTP/" + event.http_version, b"%d" % event.status_code, event.reason)
        line = b" ".join(part for part in parts if part).decode("latin-1")
        answer = ConnectAnswer(event.status_code, _printable(line))
        if answer.connected and (early or self._h11.trailing_data[0]):
            raise ProtocolError(f"bytes that nobody asked for follow {answer.line!r}")
        return answer


def _shown(data: bytes) -> str:
    return ascii(data[:_SHOWN_CHARS].decode("latin-1"))


def _printable(text: str) -> str:
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown[: 2 * _SHOWN_CHARS]
