"""A blocking client of the gRPC frontend: one call of konnectivity's protocol on one connection."""

from __future__ import annotations

import hpack
from clients import Client

from isthmus.wire.grpc import MESSAGE_HEAD, message_size
from isthmus.wire.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PREFACE,
    RST_STREAM,
    SETTINGS_ACK,
    encode_headers,
    frame,
    settings,
    unpack_head,
)
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import close_request, data_packet, dial_request, parse

_CALL = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/ProxyService/Proxy"),
    (b":authority", b"localhost"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)
_RANDOM = 7


class GrpcCall:
    """One call; ``metadata`` are its headers besides the usual ones."""

    def __init__(self, client: Client, metadata: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        self.client = client
        self.response: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.was_reset = False
        self.connect_id = 0
        self._decoder = hpack.Decoder()
        self._messages = bytearray()
        call = encode_headers((*_CALL, *metadata))
        client.send(PREFACE + settings() + SETTINGS_ACK + frame(HEADERS, END_HEADERS, 1, call))

    def ask(self, target: str) -> None:
        """Ask for a connection, and do not wait."""
        self.client.send(frame(DATA, 0, 1, dial_request("tcp", target, _RANDOM)))

    def dial(self, target: str) -> str:
        """Ask for a connection; the error, empty if there is none."""
        self.ask(target)
        packet = self.packet()
        assert packet is not None
        assert packet.dialResponse.random == _RANDOM
        self.connect_id = packet.dialResponse.connectID
        return packet.dialResponse.error

    def send(self, data: bytes) -> None:
        """Send bytes to the target."""
        self.client.send(frame(DATA, 0, 1, data_packet(self.connect_id, data)))

    def close(self) -> None:
        """Ask to close the connection."""
        self.client.send(frame(DATA, 0, 1, close_request(self.connect_id)))

    def half_close(self) -> None:
        """End our side of the call."""
        self.client.send(frame(DATA, END_STREAM, 1, b""))

    def reset(self) -> None:
        """Cancel the call."""
        self.client.send(frame(RST_STREAM, 0, 1, (8).to_bytes(4, "big")))

    def read_exactly(self, size: int) -> bytes:
        """So many bytes of the target."""
        got = b""
        while len(got) < size:
            packet = self.packet()
            assert packet is not None and packet.HasField("data"), packet
            got += packet.data.data
        return got

    def packet(self) -> Packet | None:
        """The next packet; None when the call is over."""
        while True:
            if len(self._messages) >= MESSAGE_HEAD:
                end = MESSAGE_HEAD + message_size(bytes(self._messages[:MESSAGE_HEAD]))
                if len(self._messages) >= end:
                    packet = parse(bytes(self._messages[MESSAGE_HEAD:end]))
                    del self._messages[:end]
                    return packet
            if self.trailers or self.was_reset:
                return None
            self._frame()

    def wait_response(self) -> None:
        """Wait for the head of the response, or for the end of the call."""
        while not (self.response or self.trailers or self.was_reset):
            self._frame()

    def _frame(self) -> None:
        high, low, kind, _, stream = unpack_head(self.client.read_exactly(9))
        payload = self.client.read_exactly(high << 8 | low)
        if kind == DATA:
            self._messages += payload
        elif kind == HEADERS:
            found = {str(name): str(value) for name, value in self._decoder.decode(payload)}
            if ":status" in found:
                self.response = found
            if "grpc-status" in found:
                self.trailers = found
        elif kind == RST_STREAM and stream == 1:
            self.was_reset = True
