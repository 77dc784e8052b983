"""Reads the dashboard's feed as the page does, with blocking calls, and asks its paths."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Callable
from typing import Any, Self

from clients import LIMIT_S

from isthmus.frame.dashboard.picture import Picture

Event = tuple[str, dict[str, Any]]


class Watcher:
    """One page's stream, from the request on; ``status`` and ``headers`` are of the answer."""

    def __init__(
        self,
        port: int,
        *,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        self._connection = (
            http.client.HTTPSConnection("localhost", port, timeout=LIMIT_S, context=tls)
            if tls
            else http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        )
        given = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection.request("GET", "/ui/events", headers=given | (headers or {}))
        self._answer = self._connection.getresponse()
        self.status, self.headers = self._answer.status, self._answer.headers
        self.pictures: dict[str, Picture] = {}
        #: The stream came to its clean end.
        self.ended = False
        self._got = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave."""
        self._answer.close()
        self._connection.close()

    def text(self) -> str:
        """All that is said, of an answer that is no stream."""
        return self._answer.read().decode()

    def line(self) -> str:
        """The next line, without its end; empty at the clean end of the stream too."""
        while (end := self._got.find(b"\n")) < 0:
            piece = self._answer.read1(1 << 20)
            if not piece:
                self.ended = True
                return ""
            self._got += piece
        line = self._got[:end].decode()
        del self._got[: end + 1]
        return line

    def event(self) -> Event:
        """The next event. Pictures follow: they are what a page would have."""
        line = self.line()
        while not line.startswith("event: "):
            assert not self.ended, "the stream ended"
            line = self.line()
        name = line.removeprefix("event: ")
        data = self.line()
        assert data.startswith("data: ") and self.line() == ""
        found: dict[str, Any] = json.loads(data.removeprefix("data: "))
        if name == "full":
            self.pictures[found["source"]] = Picture(json.loads(data.removeprefix("data: ")))
        elif name == "delta":
            self.pictures[found["source"]].apply(json.loads(data.removeprefix("data: ")))
        return name, found

    def until(self, holds: Callable[[str, dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Read on until an event is as wanted; its data."""
        for _ in range(200):
            name, data = self.event()
            if holds(name, data):
                return data
        raise AssertionError(f"never came: {what}")

    def next(self, name: str) -> dict[str, Any]:
        """Read on until an event of this name; its data."""
        return self.until(lambda found, _: found == name, name)

    def tunnels(self, source: str = "0") -> list[dict[str, Any]]:
        """The tunnels, as a page has them now."""
        found: list[dict[str, Any]] = self.pictures[source].full()["snapshot"]["tunnels"]
        return found


class Reply:
    """An answer, read to its end."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.status = answer.status
        self.headers = answer.headers
        self.body = answer.read()


def ask(port: int, path: str, *, method: str = "GET", body: str = "", **headers: str) -> Reply:
    """Ask a port for exactly this path; underscores in names of headers are hyphens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body=body or None, headers=given)
        return Reply(connection.getresponse())
    finally:
        connection.close()


def end_tunnel(port: int, source: str, tunnel: object, **headers: str) -> Reply:
    """End a tunnel as the page does."""
    body = json.dumps({"source": source, "tunnel": tunnel})
    return ask(port, "/ui/end", method="POST", body=body, **{"X_Isthmus_Intent": "end"} | headers)


def deaf(port: int) -> socket.socket:
    """A viewer that asks for the stream and never reads a byte of it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(LIMIT_S)
    sock.connect(("127.0.0.1", port))
    sock.sendall(b"GET /ui/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return sock
