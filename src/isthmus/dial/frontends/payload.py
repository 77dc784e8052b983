"""KEP-1281's calls of the gRPC frontend: the request of one call, until its tunnel stands.

Connections, and the calls that speak konnectivity's packets by the same path, are grpc_proxy.py;
what a call says of its tunnel is tunnel/payload.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.dial.frontends.backend import CONNECTION_ID, Dial, new_connection_id
from isthmus.dial.frontends.peers import peer_address
from isthmus.dial.frontends.statuses import explain
from isthmus.errors import DialFailure, ProtocolError
from isthmus.tunnel.end import BaseEnd
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.payload import PayloadEnd
from isthmus.values import HostPort, Identity
from isthmus.wire.grpc import Status
from isthmus.wire.http2 import Headers, header, literal_header
from isthmus.wire.payload import STATUS_OF_FAILURE, target_in
from isthmus.wire.request_metadata import HALF_CLOSE, metadata_in

if TYPE_CHECKING:
    from isthmus.dial.frontends.grpc_proxy import ClientConnection


class PayloadRequest:
    """One call; see tunnel.call_stream.CallClient and backend.Request."""

    __slots__ = ("_connection", "_dial", "_end", "asking", "connection_id", "target")

    frontend = "grpc"

    def __init__(self, connection: ClientConnection, end: PayloadEnd, headers: Headers) -> None:
        self._connection = connection
        self.asking = metadata_in(headers)
        self.connection_id = new_connection_id()
        if not connection.frontend.compat:
            end.named = literal_header(CONNECTION_ID, self.connection_id.encode())
        self._end: PayloadEnd | None = end
        self._dial: Dial | None = None
        self.target: HostPort | None = None

    @property
    def requester(self) -> Identity:
        """Who asks, as the transport proved it."""
        return self._connection.identity

    @property
    def client_address(self) -> str:
        """Where the client is; empty on a UNIX socket."""
        return peer_address(self._connection.carrier.sock)

    def dial(self, headers: Headers) -> None:
        """Dial the target that the metadata name."""
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
        assert self.target is not None  # else it is a call of the other kind
        dial = frontend.backend.dial(self, self.target)
        if self._end is not None:
            self._dial = dial

    def established(self) -> BaseEnd | None:
        """Say the response's headers; give the end that may now be joined."""
        end, self._end, self._dial = self._end, None, None
        if end is None or end.ending is not None:
            return None
        end.accept()
        return end

    def dial_failed(self, failure: DialFailure, detail: str) -> None:
        """Say why not."""
        end, self._end, self._dial = self._end, None, None
        if end is not None:
            assert self.target is not None
            end.refuse(STATUS_OF_FAILURE[failure], explain(failure, self.target, detail))

    def left(self) -> None:
        """The client gave up: take its dial back."""
        dial, self._dial, self._end = self._dial, None, None
        if dial is not None:
            self._connection.frontend.backend.abandoned()
            dial.cancel()

    def broke_rules(self, what: str) -> None:
        """Say so once a minute."""
        self._connection.frontend.complain(what)


def serve(connection: ClientConnection, stream: Http2Stream, headers: Headers) -> PayloadEnd:
    """Take a call: its end, which is the handler of its stream."""
    end = PayloadEnd(stream, half_closes=bool(header(headers, HALF_CLOSE)))
    request = PayloadRequest(connection, end, headers)
    end.client = request
    request.dial(headers)
    return end
