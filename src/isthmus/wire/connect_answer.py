"""HTTP CONNECT for clients: the request to a proxy, and the head of its answer.

The proxy's side is http_connect.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import h11

from isthmus import __version__
from isthmus.errors import ProtocolError
from isthmus.values import HostPort

MAX_ANSWER_BYTES = 16 * 1024
MAX_REFUSAL_BYTES = 64 * 1024
_START = b"HTTP/"
_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True)
class ConnectAnswer:
    """A proxy's answer: its status, and its status line made safe for a log."""

    status: int
    line: str
    #: Names are in lower case.
    headers: tuple[tuple[bytes, bytes], ...] = field(default=(), compare=False)

    @property
    def connected(self) -> bool:
        """Whether the connection now leads to the target (RFC 9110 §9.3.6: any 2xx)."""
        return 200 <= self.status < 300

    def header(self, name: bytes) -> bytes | None:
        """The value of the first header of this name, given in lower case; None if absent."""
        return next((value for key, value in self.headers if key == name), None)


class ConnectAsking:
    """One CONNECT exchange: send ``request``, and pass received bytes to ``receive``.

    With ``keep_early`` the target may send first: bytes after the head of a 2xx are then in
    ``early``. After any other answer, ``receive_refusal`` reads the body. ``headers`` are sent with
    the request.
    """

    def __init__(
        self,
        target: HostPort,
        *,
        authorization: str | None = None,
        keep_early: bool = False,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        self._keep_early = keep_early
        self._rest = b""  # bytes received with the head, beyond MAX_ANSWER_BYTES
        self._refusal = bytearray()
        self.early = b""
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_ANSWER_BYTES)
        sent = [
            (b"Host", str(target).encode()),
            (b"User-Agent", f"isthmus/{__version__}".encode()),
            *headers,
        ]
        if authorization is not None:
            sent.append((b"Proxy-Authorization", authorization.encode()))
        request = self._h11.send(h11.Request(method="CONNECT", target=str(target), headers=sent))
        assert request is not None  # only a closed connection has no bytes
        self.request = request
        self._h11.send(h11.EndOfMessage())
        self._start = b""
        self._size = 0

    def receive(self, data: bytes) -> ConnectAnswer | None:
        """Take bytes of the answer; return None while its head is incomplete.

        The result depends only on the bytes of the head, not on how reads split them.

        Raises:
            ProtocolError: not HTTP, larger than MAX_ANSWER_BYTES, or bytes follow the head of a
                2xx without ``keep_early``: a target that waits for the client cannot have sent
                them.
        """
        taken = data[: MAX_ANSWER_BYTES - self._size]
        self._size += len(taken)
        if len(self._start) < _SHOWN_CHARS:
            self._start += taken[:_SHOWN_CHARS]
        if not self._start.startswith(_START[: len(self._start)]):
            raise ProtocolError(f"not an HTTP answer: {_shown(self._start)}")
        try:
            if taken:  # h11 takes empty data as end of file
                self._h11.receive_data(taken)
            event = self._h11.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = self._h11.next_event()
        except h11.RemoteProtocolError as exc:
            raise ProtocolError(f"not an HTTP answer: {_shown(self._start)}") from exc
        if isinstance(event, h11.Response):
            self._rest = data[len(taken) :]
            return self._verdict(event)
        if len(data) > len(taken):
            raise ProtocolError(f"the answer's head is larger than {MAX_ANSWER_BYTES} bytes")
        return None

    def _verdict(self, event: h11.Response) -> ConnectAnswer:
        parts = (b"HTTP/" + event.http_version, b"%d" % event.status_code, event.reason)
        line = b" ".join(part for part in parts if part).decode("latin-1")
        answer = ConnectAnswer(event.status_code, _printable(line), tuple(event.headers))
        if answer.connected:
            self.early, self._rest = self._h11.trailing_data[0] + self._rest, b""
            if self.early and not self._keep_early:
                raise ProtocolError(f"unexpected bytes after {answer.line!r}")
        return answer

    def receive_refusal(self, data: bytes = b"", *, end: bool = False) -> str | None:
        """Take bytes of the body of an answer other than 2xx; return None until it is complete.

        Call it first without data, for bytes received with the head. ``end``: no more bytes follow.
        The body also counts as complete at MAX_REFUSAL_BYTES, or where it is malformed.
        """
        rest, self._rest = self._rest + data, b""
        try:
            if rest:
                self._h11.receive_data(rest[:MAX_REFUSAL_BYTES])
            if end:
                self._h11.receive_data(b"")
            while isinstance(event := self._h11.next_event(), h11.Data):
                self._refusal += event.data
            whole = event is not h11.NEED_DATA
        except (h11.RemoteProtocolError, RuntimeError):  # RuntimeError: bytes after the end
            whole = True
        if whole or len(self._refusal) >= MAX_REFUSAL_BYTES:
            text = bytes(self._refusal[:MAX_REFUSAL_BYTES]).decode("utf-8", "replace")
            return " ".join(map(_printable_word, text.split()))
        return None


def _shown(data: bytes) -> str:
    return ascii(data[:_SHOWN_CHARS].decode("latin-1"))


def _printable_word(word: str) -> str:
    return word if word.isprintable() else ascii(word)[1:-1]


def _printable(text: str) -> str:
    shown = text if text.isprintable() else ascii(text)[1:-1]
    return shown[: 2 * _SHOWN_CHARS]
