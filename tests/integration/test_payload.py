"""KEP-1281's protocol through a real server and agent: what only it can keep, and its reuse.

What it keeps like the other frontends is in test_through_frontends.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator

import pytest
from clients import Target, echo_target, free_port, full_target
from stack import Stack, client_context

from isthmus.dial.dialers.through_grpc import PayloadDialer
from isthmus.dial.dialers.through_server import ServerPlace
from isthmus.errors import DialFailure
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.testing.ends import MemoryEnd
from isthmus.testing.http2 import Recorder
from isthmus.tools.pki.making import PkiFiles
from isthmus.tunnel.end import BaseEnd, Ending, join
from isthmus.tunnel.http2 import Http2Connection
from isthmus.values import HostPort
from isthmus.wire.grpc import Status, read_status
from isthmus.wire.http2 import ErrorCode, Headers
from isthmus.wire.payload import CONNECT_OPTIONS, PATH, connect_options, payload_head

LIMIT_S = 20.0


@pytest.fixture(scope="module")
def running(certificates: PkiFiles) -> Iterator[Stack]:
    with Stack(certificates) as stack:
        stack.add_server(mode=("grpc",))
        stack.add_agent()
        yield stack


class Bed:
    """A dialer in the loop of the programs, and what its dials said."""

    def __init__(self, stack: Stack, carrier: str) -> None:
        loop = asyncio.get_running_loop()
        self.stack = stack
        self.poller = Poller(loop)
        self.dialer = PayloadDialer(loop, self.poller, Resolver(loop), self._place(carrier))
        self.ends: list[BaseEnd] = []
        self.failures: list[tuple[DialFailure, str]] = []

    def _place(self, carrier: str) -> ServerPlace:
        if carrier == "uds":
            return ServerPlace(uds=self.stack.server.settings.uds_name)

        def context() -> object:
            made = client_context(self.stack.files)
            made.set_alpn_protocols(["h2"])
            return made

        port = self.stack.server.doors.ports["grpc"]
        return ServerPlace(tcp=HostPort("localhost", port), context=context)  # type: ignore[arg-type]

    def dial(self, target: str) -> None:
        self.dialer.dial(
            HostPort.parse(target),
            timeout_s=LIMIT_S,
            reached=self.ends.append,
            failed=lambda *why: self.failures.append(why),
        )

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await asyncio.sleep(0.001)

    async def reach(self, target: str) -> tuple[MemoryEnd, BaseEnd]:
        self.dial(target)
        await self.until(lambda: self.ends or self.failures)
        assert not self.failures
        end, client = self.ends.pop(), MemoryEnd()
        join(client, end)
        return client, end


def run(stack: Stack, carrier: str, test: Callable[[Bed], Awaitable[None]]) -> None:
    async def main() -> None:
        bed = Bed(stack, carrier)
        try:
            await test(bed)
        finally:
            bed.dialer.close()
        assert not bed.ends and not bed.failures
        await bed.until(lambda: len(bed.poller) == 0)
        await asyncio.sleep(0)
        bed.poller.shut_down()

    stack.run(main())


carriers = pytest.mark.parametrize("carrier", ["uds", "tls"])


@carriers
def test_the_target_half_closes_and_still_hears(stack: Stack, carrier: str) -> None:
    """What neither konnectivity's protocol nor a plain gRPC client can do."""

    async def test(bed: Bed) -> None:
        with Target() as target:
            client, end = await bed.reach(target.name)
            with await asyncio.to_thread(target.accept) as far:
                far.send(b"that is all")
                far.half_close()
                await bed.until(lambda: client.eofs)
                assert client.received == b"that is all" and end.ending is None
                client.feed(b"x" * 300_000)
                client.feed_eof()
                assert await asyncio.to_thread(far.read_to_end) == b"x" * 300_000
                await bed.until(lambda: end.ending is Ending.CLEAN)

    run(stack, carrier, test)


@carriers
def test_many_tunnels_in_one_connection(stack: Stack, carrier: str) -> None:
    async def test(bed: Bed) -> None:
        with echo_target() as target:
            for _ in range(40):
                bed.dial(target.name)
            await bed.until(lambda: len(bed.ends) == 40)
            assert not bed.failures and len(bed.dialer.pool.connections) == 1
            clients = []
            for number, end in enumerate(bed.ends):
                client = MemoryEnd()
                join(client, end)
                client.feed(b"tunnel %d" % number * 5000)
                client.feed_eof()
                clients.append(client)
            await bed.until(lambda: all(client.eofs for client in clients))
            for number, client in enumerate(clients):
                assert client.received == b"tunnel %d" % number * 5000
            await bed.until(lambda: all(end.ending is Ending.CLEAN for end in bed.ends))
            bed.ends.clear()
            assert bed.dialer.pool.connections[0].streams == 0

    run(stack, carrier, test)


def test_a_reader_that_stops_stops_only_its_own_stream(stack: Stack) -> None:
    async def test(bed: Bed) -> None:
        with Target() as target, echo_target() as echo:
            stuck, end = await bed.reach(target.name)
            stuck.fill()
            with await asyncio.to_thread(target.accept) as far:
                sent = 0
                with contextlib.suppress(TimeoutError):
                    far.sock.settimeout(0.3)
                    while sent < 64 * 1024 * 1024:
                        sent += await asyncio.to_thread(far.sock.send, bytes(65536))
                assert sent < 64 * 1024 * 1024
                other, other_end = await bed.reach(echo.name)  # in the same connection
                assert len(bed.dialer.pool.connections) == 1
                other.feed(b"still quick" * 1000)
                other.feed_eof()
                await bed.until(lambda: other.eofs)
                assert other.received == b"still quick" * 1000
                await bed.until(lambda: other_end.ending)
                end.abort(Ending.CANCELLED)

    run(stack, "uds", test)


def test_kill_the_server_and_every_caller_hears_it(fresh: Stack) -> None:
    fresh.add_server(mode=("grpc",))
    fresh.add_agent()

    async def test(bed: Bed) -> None:
        with echo_target() as target:
            tunnels = [await bed.reach(target.name) for _ in range(3)]
            await asyncio.to_thread(fresh.stop, fresh.server)
            await bed.until(lambda: all(end.ending for _, end in tunnels))
            assert all(client.aborted is not None for client, _ in tunnels)
            assert not any(client.eofs for client, _ in tunnels)
            bed.dial(target.name)
            await bed.until(lambda: bed.failures)
            failure, detail = bed.failures.pop()
            assert failure is DialFailure.UNREACHABLE
            assert f"connectivity server {bed.dialer.place}" in detail

    run(fresh, "uds", test)


def test_a_client_without_a_certificate_is_told_so(stack: Stack) -> None:
    async def test(bed: Bed) -> None:
        def bare() -> ssl.SSLContext:
            made = ssl.create_default_context(cafile=str(stack.files.ca_cert))
            made.set_alpn_protocols(["h2"])
            return made

        bed.dialer.place = ServerPlace(tcp=bed.dialer.place.tcp, context=bare)
        bed.dial("127.0.0.1:1")
        await bed.until(lambda: bed.failures)
        failure, detail = bed.failures.pop()
        assert failure is DialFailure.INTERNAL
        assert detail.startswith(
            f"connectivity server {bed.dialer.place}: it requires a client cert"
        )
        assert detail.count("connectivity server") == 1

    run(stack, "tls", test)


# A client that knows nothing but the KEP, in blocking code.


class Plain:
    """One call by our HTTP/2 and nothing else of ours."""

    def __init__(self, path: str, *more: tuple[bytes, bytes]) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.sock.settimeout(LIMIT_S)
        self.out = bytearray()
        self.http2 = Http2Connection(self, client=True, clock=lambda: 0.0)
        self.heard = Recorder()
        stream = self.http2.open(self.heard)
        assert stream is not None
        self.stream = stream
        request: Headers = (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", PATH),
            (b":authority", b"localhost"), (b"content-type", b"application/grpc"), *more,
        )  # fmt: skip
        stream.send_headers(request)

    def send(self, data: bytes) -> bool:
        self.sock.sendall(data)
        return True

    def wake(self) -> None:
        """Flushed by hand."""

    def wake_in_time(self) -> None:
        """Flushed by hand."""

    def until(self, holds: Callable[[], object]) -> None:
        self.http2.flush()
        while not holds():
            data = self.sock.recv(65536)
            assert data, self.heard.calls
            self.http2.receive(memoryview(data))
            self.http2.flush()

    @property
    def over(self) -> bool:
        return "end" in self.heard.calls or "reset" in self.heard.calls

    @property
    def status(self) -> tuple[Status, str]:
        return read_status(self.heard.headers[-1])

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()


def plain(stack: Stack, target: str) -> Plain:
    options = connect_options(HostPort.parse(target))
    return Plain(stack.server.settings.uds_name, (CONNECT_OPTIONS, options))


def test_a_plain_client_sees_the_target_end_and_what_it_had_sent_arrives(stack: Stack) -> None:
    with Target() as target, plain(stack, target.name) as client:
        client.until(lambda: client.heard.headers)
        assert b"isthmus-half-close" not in dict(client.heard.headers[0])
        assert dict(client.heard.headers[0])[b"isthmus-connection-id"]
        with target.accept() as far:
            far.send(b"bye")
            far.half_close()
            client.until(lambda: client.over)
            assert client.status == (Status.OK, "") and client.heard.received[-3:] == b"bye"
            client.stream.write(payload_head(4), b"last")  # before it took note
            client.stream.reset(ErrorCode.NO_ERROR)
            client.http2.flush()
            assert far.read_to_end() == b"last"


@pytest.mark.parametrize(
    ("value", "says"),
    [(b"", "remote_addr is empty"), (b"***", "not base64"), (b"CgNhOjA=", "port out of range: 0")],
)
def test_bad_metadata(stack: Stack, value: bytes, says: str) -> None:
    path = stack.server.settings.uds_name
    with Plain(path, (CONNECT_OPTIONS, value)) as client:
        client.until(lambda: client.over)
        status, text = client.status
        assert status is Status.INVALID_ARGUMENT
        assert text.startswith("metadata x-kube-net-proxy: ") and says in text


def test_a_refused_target_is_a_status(stack: Stack) -> None:
    target = f"127.0.0.1:{free_port()}"
    with plain(stack, target) as client:
        client.until(lambda: client.over)
        status, text = client.status
        assert status is Status.UNAVAILABLE
        assert text.startswith(f"cannot dial {target}: connection refused")
        assert len(client.heard.headers) == 1


def test_a_reset_target_is_no_ok(stack: Stack) -> None:
    with Target() as target, plain(stack, target.name) as client:
        client.until(lambda: client.heard.headers)
        far = target.accept()
        far.send(b"some")
        client.until(lambda: client.heard.received)
        far.reset()
        client.until(lambda: client.over)
        assert client.status[0] is Status.ABORTED


def test_a_client_that_leaves_while_the_target_is_dialed(stack: Stack) -> None:
    with full_target() as target, plain(stack, target.name) as client:
        client.http2.flush()
        pending = stack.server.dialer.pending
        stack.wait(lambda: len(pending) == 1, "the dial begins")
        client.stream.reset(ErrorCode.CANCEL)
        client.http2.flush()
        stack.wait(lambda: not len(pending), "the dial is taken back")
