"""A gRPC client of any calls, over real sockets: what a foreign program would send, or should not.

Its HTTP/2 is our own, in the client's role; headers and packets are the test's.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable

from isthmus.errors import ProtocolError
from isthmus.net.carriers import PlainCarrier, TlsCarrier
from isthmus.net.poller import Poller
from isthmus.testing.http2 import Recorder
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.wire.grpc import MESSAGE_HEAD, Status, message_size, read_status
from isthmus.wire.konnectivity_pb2 import Packet


async def until(holds: Callable[[], object]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)


class Call:
    """One call and what came of it."""

    def __init__(self, stream: Http2Stream, heard: Recorder) -> None:
        self.stream = stream
        self.heard = heard

    def send(self, *messages: bytes) -> None:
        """Send messages, each with its head."""
        self.stream.write(b"".join(messages), b"")

    @property
    def packets(self) -> list[Packet]:
        """Every whole packet that came."""
        data, found = bytes(self.heard.received), []
        while len(data) >= MESSAGE_HEAD:
            end = MESSAGE_HEAD + message_size(data[:MESSAGE_HEAD])
            if len(data) < end:
                break
            found.append(Packet.FromString(data[MESSAGE_HEAD:end]))
            data = data[end:]
        return found

    @property
    def response(self) -> dict[bytes, bytes]:
        """The response's headers."""
        return dict(self.heard.headers[0])

    @property
    def over(self) -> bool:
        """The server ended it."""
        return "end" in self.heard.calls or "reset" in self.heard.calls

    @property
    def status(self) -> tuple[Status, str]:
        """How it ended."""
        return read_status(self.heard.headers[-1])


class Caller:
    """A connection, the owner of its carrier; without ``speak`` it sends only what it is told."""

    def __init__(
        self,
        poller: Poller,
        sock: socket.socket,
        context: ssl.SSLContext | None = None,
        *,
        server_hostname: str = "localhost",
        speak: bool = True,
    ) -> None:
        self.http2: Http2Connection | None = None
        self.secure = context is None
        self._speak = speak
        self.over = ""
        self.failure: ssl.SSLError | None = None
        sock.setblocking(False)
        self.carrier: PlainCarrier | TlsCarrier
        if context is None:
            self.carrier = PlainCarrier(self, sock, poller)
            self._begin()
        else:
            self.carrier = TlsCarrier(self, sock, poller, context, server_hostname=server_hostname)
            self.carrier.begin()
            self.carrier.read_again()

    def _begin(self) -> None:
        if not self._speak:
            return
        self.http2 = Http2Connection(self.carrier, client=True, clock=time.monotonic)
        self.carrier.session = self.http2

    def call(self, path: bytes, *more: tuple[bytes, bytes], **other: bytes) -> Call:
        """Make a call; ``more`` are further headers, ``other`` replaces the usual ones."""
        assert self.http2 is not None
        heard = Recorder()
        stream = self.http2.open(heard)
        assert stream is not None
        usual = {
            b":method": other.get("method", b"POST"),
            b":scheme": b"http",
            b":path": path,
            b":authority": b"localhost",
            b"content-type": other.get("content_type", b"application/grpc"),
            b"te": b"trailers",
        }
        stream.send_headers((*usual.items(), *more))
        return Call(stream, heard)

    def close(self) -> None:
        """Leave without a word."""
        self.lost("closed by the test")

    # The carrier reports.

    def secured(self) -> None:
        """The handshake is done."""
        self.secure = True
        self._begin()

    def insecure(self, error: ssl.SSLError) -> None:
        """It failed."""
        self.failure = error
        self.lost("insecure")

    def violated(self, error: ProtocolError) -> None:
        """The server broke HTTP/2: no test expects that."""
        self.lost(f"violated: {error}")

    def lost(self, why: str) -> None:
        """The connection is gone."""
        if not self.over:
            self.over = why
            self.carrier.close()
            if self.http2 is not None:
                self.http2.lost(why)
