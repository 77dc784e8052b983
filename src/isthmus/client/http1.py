"""One HTTP/1.1 request over a connection, for debugging; used by ``isthmus curl``.

Programs use an HTTP library with one of the adapters instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from isthmus import __version__
from isthmus.client.tls import ByteStream
from isthmus.errors import ProtocolError
from isthmus.values import HostPort

MAX_HEAD_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """The target of a request, and its path."""

    target: HostPort
    authority: str
    path: str
    https: bool

    @classmethod
    def parse(cls, text: str) -> Url:
        """Read an http or https URL.

        Raises:
            ValueError: it is not such a URL.
        """
        url = urlsplit(text)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"not an http or https URL: {text!r}")
        https = url.scheme == "https"
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        if not path.isascii() or not path.isprintable() or " " in path:
            raise ValueError(f"the path must be percent-encoded: {path!r}")
        return cls(
            target=HostPort(url.hostname, url.port or (443 if https else 80)),
            authority=url.netloc.rpartition("@")[2],
            path=path,
            https=https,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """A request; ``headers`` replace the default headers."""

    method: str
    url: Url
    headers: Sequence[tuple[str, str]] = ()
    body: bytes | None = None

    def all_headers(self) -> list[tuple[str, str]]:
        """The headers to send."""
        made = [
            ("Host", self.url.authority),
            ("User-Agent", f"isthmus/{__version__}"),
            ("Accept", "*/*"),
            ("Connection", "close"),
        ]
        if self.body is not None:
            made.append(("Content-Type", "application/x-www-form-urlencoded"))
            made.append(("Content-Length", str(len(self.body))))
        given = {name.lower() for name, _ in self.headers}
        return [pair for pair in made if pair[0].lower() not in given] + list(self.headers)


class ClientExchange:
    """A sent request, and its answer as it arrives.

    After ``begin`` the head is known: ``status``, ``line`` and ``headers``.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.status = 0
        self.line = ""
        self.headers: list[tuple[str, str]] = []

    async def begin(self, request: ClientRequest) -> None:
        """Send the request and read the head of the answer.

        Raises:
            ProtocolError: the request is not valid HTTP, or the answer is not HTTP.
            OSError: the connection was reset.
        """
        try:
            head = h11.Request(
                method=request.method, target=request.url.path, headers=request.all_headers()
            )
            self._send(head)
            if request.body:
                self._send(h11.Data(data=request.body))
            self._send(h11.EndOfMessage())
        except h11.LocalProtocolError as exc:
            raise ProtocolError(f"invalid HTTP request: {exc}") from exc
        await self._stream.drain()
        event = await self._next()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next()
        if not isinstance(event, h11.Response):
            raise ProtocolError("the connection was closed before it answered")
        self.status = event.status_code
        reason = event.reason.decode("latin-1")
        self.line = f"HTTP/{event.http_version.decode()} {self.status} {reason}".rstrip()
        self.headers = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in event.headers.raw_items()
        ]

    async def body(self) -> AsyncIterator[bytes]:
        """The body in pieces.

        Raises:
            ProtocolError: it ends too early, or is not HTTP.
            OSError: the connection was reset.
        """
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            self._stream.write(data)

    async def _next(self) -> object:
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._stream.read())
        except h11.RemoteProtocolError as exc:
            raise ProtocolError(f"invalid HTTP response: {exc}") from exc
        return event
