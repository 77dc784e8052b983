"""What servers that are not ours may answer to an agent, and what it makes of it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from linkbench import GRPC, Bench, run

from isthmus.errors import DialFailure, LinkError, LinkStage, ProtocolError
from isthmus.net.carriers import TlsCarrier
from isthmus.net.connect import Address, literal
from isthmus.net.contexts import TlsFiles, server_context
from isthmus.net.listen import Listener, bind_tcp
from isthmus.testing.ends import MemoryEnd
from isthmus.testing.http2 import Recorder
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import join
from isthmus.tunnel.http2 import Http2Connection
from isthmus.tunnel.http2_stream import Http2Stream
from isthmus.wire.grpc import Status, status_headers
from isthmus.wire.http2 import ErrorCode, Headers
from isthmus.wire.packet import (
    close_dial,
    close_request,
    data_packet,
    dial_request,
)

GO: Headers = (
    (b":status", b"200"),
    (b"content-type", b"application/grpc"),
    (b"serverid", b"go-server"),
    (b"servercount", b"2"),
)
OK: Headers = GO[:2]


class Server:
    """A server that answers each call as ``answer`` does."""

    def __init__(self, bench: Bench, answer: Callable[[Http2Stream], None]) -> None:
        self._bench = bench
        self._answer = answer
        self._carriers: list[TlsCarrier] = []
        self.http2: Http2Connection | None = None
        self.calls: list[tuple[Http2Stream, Headers]] = []
        self.heard = Recorder()
        files = bench.files
        tls = TlsFiles(str(files.server_cert), str(files.server_key), str(files.ca_cert))
        self._context = server_context(tls, alpn=GRPC)
        (sock,) = bind_tcp("127.0.0.1", 0, flag="--port")
        self._listener = Listener(bench.loop, bench.poller, sock, self._accept)
        self.address: Address = literal("127.0.0.1", self._listener.port)

    def _accept(self, sock: socket.socket) -> None:
        self._carriers.append(TlsCarrier(self, sock, self._bench.poller, self._context))

    def _request(self, stream: Http2Stream, headers: Headers) -> Recorder:
        self.calls.append((stream, headers))
        self._answer(stream)
        return self.heard

    def secured(self) -> None:
        self.http2 = Http2Connection(
            self._carriers[-1], client=False, clock=time.monotonic, on_request=self._request
        )
        self._carriers[-1].session = self.http2

    def insecure(self, error: ssl.SSLError) -> None:
        """Not in these tests."""

    def violated(self, error: ProtocolError) -> None:
        raise AssertionError(error)

    def lost(self, why: str) -> None:
        self.close()

    def send(self, *messages: bytes) -> None:
        """Send messages by the first call."""
        self.calls[0][0].write(b"".join(messages), b"")

    def close(self) -> None:
        for carrier in self._carriers:
            carrier.close()
        self._listener.stop()


@asynccontextmanager
async def serving(bench: Bench, answer: Callable[[Http2Stream], None]) -> AsyncIterator[Server]:
    server = Server(bench, answer)
    try:
        yield server
    finally:
        server.close()


def welcome(stream: Http2Stream) -> None:
    stream.send_headers(GO)


def test_the_call_is_made_as_gos_agent_makes_it(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        async with serving(bench, welcome) as server:
            link = await bench.connect(alpn=GRPC, address=server.address, token="t0ken")
            assert (link.server_id, link.server_count) == ("go-server", 2)
            headers = dict(server.calls[0][1])
            assert headers[b":path"] == b"/AgentService/Connect"
            assert headers[b":method"] == b"POST"
            assert headers[b"agentid"] == b"agent"
            assert headers[b"agentidentifiers"] == b"host=n1"
            assert headers[b"authorization"] == b"Bearer t0ken"
            assert headers[b"te"] == b"trailers"

    run(files, test)


def test_without_a_token_there_is_no_authorization(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        async with serving(bench, welcome) as server:
            await bench.connect(alpn=GRPC, address=server.address)
            assert b"authorization" not in dict(server.calls[0][1])

    run(files, test)


SAYS_NOTHING = "the server did not send serverID and serverCount"


@pytest.mark.parametrize(
    ("headers", "end", "text", "stage"),
    [
        (OK, False, SAYS_NOTHING, LinkStage.PROTOCOL),
        (GO[:3], False, SAYS_NOTHING, LinkStage.PROTOCOL),
        ((*GO, (b"serverid", b"two")), False, SAYS_NOTHING, LinkStage.PROTOCOL),
        ((*GO[:3], (b"servercount", b"-1")), False, SAYS_NOTHING, LinkStage.PROTOCOL),
        ((*GO[:3], (b"servercount", b"many")), False, SAYS_NOTHING, LinkStage.PROTOCOL),
        (
            (*OK, *status_headers(Status.INVALID_ARGUMENT, "what are you")),
            True,
            "the server ended the call: InvalidArgument what are you",
            LinkStage.REFUSED,
        ),
        (
            ((b":status", b"502"), (b"content-type", b"text/html")),
            True,
            "the server ended the call: Unavailable the response has HTTP status '502'",
            LinkStage.REFUSED,
        ),
        (
            ((b":status", b"200"), (b"content-type", b"text/html")),
            False,
            "the server ended the call: Unknown the response has content-type 'text/html',"
            " not gRPC's",
            LinkStage.REFUSED,
        ),
    ],
)
def test_another_answer_is_no_welcome(
    files: pki.PkiFiles, headers: Headers, end: bool, text: str, stage: LinkStage
) -> None:
    async def test(bench: Bench) -> None:
        def answer(stream: Http2Stream) -> None:
            stream.send_headers(headers, end=end)

        async with serving(bench, answer) as server:
            with pytest.raises(LinkError) as failed:
                await bench.connect(alpn=GRPC, address=server.address)
            assert (str(failed.value), failed.value.stage) == (text, stage)

    run(files, test)


def test_a_server_that_says_an_empty_id_breaks_the_rules(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        def answer(stream: Http2Stream) -> None:
            stream.send_headers((*OK, (b"serverid", b""), (b"servercount", b"1")))

        async with serving(bench, answer) as server:
            with pytest.raises(LinkError) as failed:
                await bench.connect(alpn=GRPC, address=server.address)
            assert failed.value.stage is LinkStage.PROTOCOL

    run(files, test)


@pytest.mark.parametrize("how", ["trailers", "reset", "goaway"])
def test_a_call_that_ends_ends_the_link(files: pki.PkiFiles, how: str) -> None:
    async def test(bench: Bench) -> None:
        async with serving(bench, welcome) as server:
            link = await bench.connect(alpn=GRPC, address=server.address)
            stream = server.calls[0][0]
            if how == "trailers":
                stream.end(tuple(status_headers(Status.UNAVAILABLE, "restarting")))
            elif how == "reset":
                stream.reset(ErrorCode.CANCEL)
            else:
                assert server.http2 is not None
                server.http2.go_away(ErrorCode.INTERNAL_ERROR)
            why = await asyncio.wait_for(asyncio.shield(link.over), 20)
            assert why and link.stage is LinkStage.LOST and not link.ready
            if how == "trailers":
                assert why == "the server ended the call: Unavailable restarting"

    run(files, test)


def test_a_graceful_goaway_lets_the_call_go_on(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        async with serving(bench, welcome) as server:
            link = await bench.connect(alpn=GRPC, address=server.address)
            assert server.http2 is not None
            server.http2.go_away()
            server.send(dial_request("tcp", "10.0.0.1:80", 1))
            await bench.until(lambda: bench.dials)
            assert link.ready and link.orderly

    run(files, test)


def test_a_dial_by_packets_from_request_to_close(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        async with serving(bench, welcome) as server:
            link = await bench.connect(alpn=GRPC, address=server.address)
            server.send(dial_request("tcp", "[2001:db8::1]:443", 77))
            await bench.until(lambda: bench.dials)
            (incoming,) = bench.dials
            assert (incoming.host, incoming.port) == ("2001:db8::1", 443)
            far = MemoryEnd()
            join(incoming.accept("x"), far)
            server.send(data_packet(1, b"first"), data_packet(1, b" second"))
            await bench.until(lambda: far.received == b"first second")
            server.send(close_request(1))
            await bench.until(lambda: far.eofs)
            far.feed_eof()
            assert link.load == 0

    run(files, test)


def test_what_no_server_of_ours_would_say_ends_the_link(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        async with serving(bench, welcome) as server:
            link = await bench.connect(alpn=GRPC, address=server.address)
            server.send(dial_request("tcp", "10.0.0.1:80", 1, b"\xff"))
            await asyncio.wait_for(asyncio.shield(link.over), 20)
            assert link.stage is LinkStage.PROTOCOL and not bench.dials

    run(files, test)


def test_a_dial_that_is_taken_back_twice_is_cancelled_once(files: pki.PkiFiles) -> None:
    async def test(bench: Bench) -> None:
        async with serving(bench, welcome) as server:
            link = await bench.connect(alpn=GRPC, address=server.address)
            cancelled: list[bool] = []
            server.send(dial_request("tcp", "10.0.0.1:80", 1), dial_request("tcp", "10.0.0.2:1", 2))
            await bench.until(lambda: len(bench.dials) == 2)
            bench.dials[0].on_cancelled = lambda: cancelled.append(True)
            server.send(close_dial(1), close_dial(1), close_dial(99))
            await bench.until(lambda: cancelled and link.load == 1)
            bench.dials[1].refuse(DialFailure.REFUSED, "")
            assert (cancelled, link.load) == ([True], 0)

    run(files, test)
