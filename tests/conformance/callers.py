"""Who is at the far side of gRPC's ends: konnectivity's client and link, KEP-1281's two sides."""

from __future__ import annotations

import asyncio

from users import DEADLINE_S, FULL, MemoryUser

from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.tunnel.message_reader import PacketCounts
from isthmus.tunnel.packet_link import PacketLink
from isthmus.tunnel.proxy_end import SETTLE_S, ProxyEnd
from isthmus.wire.grpc import (
    MESSAGE_HEAD,
    Status,
    message_head,
    message_size,
    read_status,
    status_headers,
)
from isthmus.wire.http2 import ErrorCode, Headers
from isthmus.wire.kep1281_pb2 import Payload
from isthmus.wire.konnectivity_pb2 import Packet
from isthmus.wire.packet import CLOSE_RSP, DATA, DIAL_RSP, data_packet, dial_request

REQUEST: Headers = ((b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"))
RESPONSE: Headers = ((b":status", b"200"),)
HALF_CLOSE = (b"isthmus-half-close", b"1")
LARGEST = 16 * 1024


class Dialed:
    """The server's part of a call: every dial succeeds at once. See proxy_end.Client."""

    def __init__(self, end: ProxyEnd) -> None:
        self.end = end

    def wants(self, protocol: str, address: str) -> None:
        self.end.accept(7)

    def left(self) -> None:
        raise AssertionError("the answer was given")

    settle_s = SETTLE_S

    def settle_later(self, end: ProxyEnd, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, end.settle)

    def broke_rules(self, what: str) -> None:
        raise AssertionError(what)


class CallUser:
    """A konnectivity client with one connection, by protobuf alone; full above 64 KiB."""

    def __init__(self, http2: Http2Connection) -> None:
        self.connect_id = 0
        self.received = bytearray()
        self._raw = bytearray()
        self._closed = False
        self._broken = False
        self._changed = asyncio.Event()
        stream = http2.open(self)
        assert stream is not None
        self.stream = stream
        stream.send_headers(REQUEST)
        stream.write(dial_request("tcp", "target:1", 1), b"")

    # The user.

    async def send(self, data: bytes) -> None:
        for at in range(0, len(data), LARGEST):
            while self.stream.out_bytes and self.stream.open:
                await self._change()
            if not self.stream.open or self.stream.local_done:
                raise ConnectionResetError
            self.stream.write(data_packet(self.connect_id, data[at : at + LARGEST]), b"")

    async def recv(self) -> bytes:
        while not self.received and not self._closed and not self._broken:
            await self._change()
        if self._broken:
            raise ConnectionResetError
        data = bytes(self.received)
        self.received.clear()
        self.stream.release()
        return data

    async def send_eof(self) -> None:
        self.stream.end()

    async def waiting(self) -> None:
        while not self.received:
            await self._change()

    def reset(self) -> None:
        self.stream.reset(ErrorCode.CANCEL)
        self._broken = True

    def close(self) -> None:
        self.reset()

    async def _change(self) -> None:
        self._changed.clear()
        async with asyncio.timeout(DEADLINE_S):
            await self._changed.wait()

    # The handler of the stream.

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        if end and read_status(headers)[0] is not Status.OK:
            self._broken = True
        self._changed.set()

    def got_data(self, stream: Http2Stream, view: memoryview) -> None:
        self._raw += view
        while len(self._raw) >= MESSAGE_HEAD:
            end = MESSAGE_HEAD + message_size(self._raw[:MESSAGE_HEAD])
            if len(self._raw) < end:
                break
            self._take(Packet.FromString(bytes(self._raw[MESSAGE_HEAD:end])))
            del self._raw[:end]

    def _take(self, packet: Packet) -> None:
        if packet.type == DATA:
            assert packet.data.data and packet.data.connectID == self.connect_id
            assert not self._closed
            self.received += packet.data.data
        elif packet.type == DIAL_RSP:
            self.connect_id = packet.dialResponse.connectID
        elif packet.type == CLOSE_RSP:
            self._closed = True
            self._broken = bool(packet.closeResponse.error)
        self._changed.set()

    def batch_over(self, stream: Http2Stream) -> None:
        if len(self.received) > FULL:
            stream.hold()
        else:
            stream.release()

    def got_end(self, stream: Http2Stream) -> None:
        self._closed = True
        self._changed.set()

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        self._broken = self._broken or not self._closed
        self._changed.set()

    def can_write(self, stream: Http2Stream) -> None:
        self._changed.set()


class PayloadUser:
    """Either side of one KEP-1281 call, by protobuf alone; full above 64 KiB.

    Both directions end apart, as our own programs agree: a client half-closes its stream, a server
    says so in a message and sends trailers when both are done.
    """

    def __init__(self, *, server: bool) -> None:
        self.server = server
        self.answered = server
        self.received = bytearray()
        self._raw = bytearray()
        self._sent_eof = False
        self._closed = False
        self._broken = False
        self._changed = asyncio.Event()
        self.stream: Http2Stream

    def begin(self, http2: Http2Connection) -> None:
        """Call, as a client."""
        stream = http2.open(self)
        assert stream is not None
        self.stream = stream
        stream.send_headers((*REQUEST, HALF_CLOSE))

    def accept(self, stream: Http2Stream, headers: Headers) -> PayloadUser:
        """Take the call and answer it, as a server."""
        assert HALF_CLOSE in headers
        self.stream = stream
        kind = (b"content-type", b"application/grpc")
        stream.send_headers((*RESPONSE, kind, HALF_CLOSE))
        return self

    # The user.

    async def send(self, data: bytes) -> None:
        for at in range(0, len(data), LARGEST):
            while self.stream.out_bytes and self.stream.open:
                await self._change()
            if not self.stream.open or self.stream.local_done:
                raise ConnectionResetError
            self._say(Payload(data=data[at : at + LARGEST]))

    def _say(self, payload: Payload) -> None:
        body = payload.SerializeToString()
        self.stream.write(message_head(len(body)), body)

    async def recv(self) -> bytes:
        while not self.received and not self._closed and not self._broken:
            await self._change()
        if self._broken:
            raise ConnectionResetError
        data = bytes(self.received)
        self.received.clear()
        self.stream.release()
        return data

    async def send_eof(self) -> None:
        self._sent_eof = True
        if not self.server:
            self.stream.end()
        elif self._closed:
            self.stream.end(tuple(status_headers(Status.OK)))
        else:
            self._say(Payload(isthmus_end_of_data=True))

    async def waiting(self) -> None:
        while not self.received:
            await self._change()

    def reset(self) -> None:
        if self.server and not self.stream.out_bytes:
            self.stream.end(tuple(status_headers(Status.ABORTED, "reset by peer")))
        self.stream.reset(ErrorCode.CANCEL)
        self._broken = True

    def close(self) -> None:
        self.reset()

    async def _change(self) -> None:
        self._changed.clear()
        async with asyncio.timeout(DEADLINE_S):
            await self._changed.wait()

    # The handler of the stream.

    def got_headers(self, stream: Http2Stream, headers: Headers, end: bool) -> None:
        self.answered = True
        if end and read_status(headers)[0] is not Status.OK:
            self._broken = True
        self._changed.set()

    def got_data(self, stream: Http2Stream, view: memoryview) -> None:
        self._raw += view
        while len(self._raw) >= MESSAGE_HEAD:
            end = MESSAGE_HEAD + message_size(self._raw[:MESSAGE_HEAD])
            if len(self._raw) < end:
                break
            payload = Payload.FromString(bytes(self._raw[MESSAGE_HEAD:end]))
            del self._raw[:end]
            assert payload.data or payload.isthmus_end_of_data
            assert not self._closed
            self.received += payload.data
            self._closed = payload.isthmus_end_of_data
        self._changed.set()

    def batch_over(self, stream: Http2Stream) -> None:
        if len(self.received) > FULL:
            stream.hold()
        else:
            stream.release()

    def got_end(self, stream: Http2Stream) -> None:
        self._closed = True
        if self.server and self._sent_eof:
            stream.end(tuple(status_headers(Status.OK)))
        self._changed.set()

    def was_reset(self, stream: Http2Stream, code: int, text: str) -> None:
        self._broken = self._broken or not (self._closed and self._sent_eof)
        self._changed.set()

    def can_write(self, stream: Http2Stream) -> None:
        self._changed.set()


class Answer:
    """The client's part of a KEP-1281 call: only that it is answered. See call_stream.Caller."""

    def __init__(self) -> None:
        self.answered = False

    def dialed(self) -> None:
        self.answered = True

    def call_failed(self, status: Status, text: str) -> None:
        raise AssertionError(f"{status} {text}")

    def not_called(self, text: str) -> None:
        raise AssertionError(text)

    def connection_lost(self, text: str) -> None:
        raise AssertionError(text)


class Linker:
    """One program of a link: every dial succeeds at once. See packet_link.Owner."""

    def __init__(self, *, agent: bool) -> None:
        self.agent = agent
        self.link: PacketLink | None = None
        self.user: MemoryUser | None = None

    def begin(self, http2: Http2Connection) -> None:
        """Open the call, as an agent does."""
        stream = http2.open(self)  # type: ignore[arg-type]  # replaced in the next line
        assert stream is not None
        stream.handler = self._make(stream)
        stream.send_headers(REQUEST)

    def accept(self, stream: Http2Stream, headers: Headers) -> PacketLink:
        """Take the call, as a server does."""
        stream.send_headers(RESPONSE)
        return self._make(stream)

    def _make(self, stream: Http2Stream) -> PacketLink:
        clock = asyncio.get_running_loop().time
        self.link = PacketLink(
            stream, self, agent=self.agent, clock=clock,
            counts=PacketCounts(), half_closes=True,
        )  # fmt: skip
        return self.link

    def asked(self, protocol: str, address: str, random: int, ours: bytes) -> None:
        assert self.link is not None
        self.user = MemoryUser()
        join(self.link.accept(random), self.user)

    def taken_back(self, random: int) -> None:
        raise AssertionError("the answer was given")

    def told_to_drain(self) -> None:
        raise AssertionError("nobody drains")

    def call_over(self, text: str) -> None:
        assert self.link is not None
        self.link.lost(Ending.LINK_LOST)

    def ease_later(self, delay_s: float) -> None:
        assert self.link is not None
        asyncio.get_running_loop().call_later(delay_s, self.link.ease)

    def broke_rules(self, what: str) -> None:
        raise AssertionError(what)
