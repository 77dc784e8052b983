"""The client's side of an HTTP/2 connection: what a lying server may say; see http2_server.py."""

from isthmus.testing import Recorder
from isthmus.wire.http2 import settings
from targets import http2_server

REQUEST = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"))


class Side(http2_server.Side):
    """A client with three calls."""

    client = True

    def begin(self) -> None:
        """Greet, and open calls."""
        self.connection.receive(memoryview(settings()))
        for _ in range(3):
            handler = Recorder()
            handler.full = bool(self.behaviour & 1)
            stream = self.connection.open(handler)
            assert stream is not None
            self.handlers[stream.id] = handler
            stream.send_headers(REQUEST)
            handler.on_call = self.react


def check(data: bytes) -> None:
    """The same as for a server."""
    http2_server.check(data, Side)
