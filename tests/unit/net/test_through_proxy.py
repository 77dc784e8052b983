"""Through a proxy: every answer it may give, plain and by TLS, and nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from isthmus.errors import LinkError, LinkStage
from isthmus.net import through_proxy
from isthmus.net.contexts import TlsFiles, client_context, server_context
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.net.socket_end import SocketEnd
from isthmus.net.through_proxy import connect_through
from isthmus.net.tls import TlsEnd
from isthmus.testing import MemoryEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import Ending, join
from isthmus.values import HostPort

DEADLINE_S = 20.0
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
TARGET = HostPort("server.example", 8132)
BLOCK = bytes(range(256)) * 4096  # 1 MiB
SCHEMES = ["http", "https"]

Behaviour = Callable[["Session"], Awaitable[None]]


@dataclass(frozen=True)
class Files:
    server: TlsFiles
    client: TlsFiles
    strangers: TlsFiles


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    names = ("proxy.example", "server.example", "127.0.0.1", "::1")
    made = pki.init(tmp_path_factory.mktemp("proxy") / "pki", server_names=names)
    other = pki.init(tmp_path_factory.mktemp("other") / "pki")
    return Files(
        TlsFiles(str(made.server_cert), str(made.server_key), ""),
        TlsFiles("", "", str(made.ca_cert)),
        TlsFiles("", "", str(other.ca_cert)),
    )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


@dataclass
class Session:
    """One connection to the test's proxy, and its head once read."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: bytes = b""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def read_head(self) -> None:
        self.head = await self.reader.readuntil(b"\r\n\r\n")

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class Bed:
    """A poller and resolver of ours, and a proxy that does as the test says."""

    def __init__(self, files: Files, scheme: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.poller = Poller(self.loop)
        self.resolver = Resolver(
            self.loop, {"proxy.example": ["127.0.0.1"], "two.example": ["127.0.0.3", "127.0.0.1"]}
        )
        self.files, self.scheme = files, scheme
        self.sessions: list[Session] = []
        self.failures: list[BaseException] = []
        self.context = client_context(files.client)

    async def serve(self, behaviour: Behaviour, host: str = "127.0.0.1") -> asyncio.Server:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            session = Session(reader, writer)
            self.sessions.append(session)
            try:
                await behaviour(session)
            except (OSError, asyncio.IncompleteReadError):
                pass  # we left first
            except Exception as exc:
                self.failures.append(exc)
            finally:
                writer.transport.abort()
                session.over.set()

        tls = server_context(self.files.server) if self.scheme == "https" else None
        self.server = await asyncio.start_server(accepted, host, 0, ssl=tls)
        self.port = self.server.sockets[0].getsockname()[1]
        return self.server

    def proxy(self, place: str = "proxy.example", userinfo: str = "") -> ProxyAddress:
        return ProxyAddress.parse(f"{self.scheme}://{userinfo}{place}:{self.port}")

    async def connect(
        self,
        proxy: ProxyAddress | None = None,
        target: HostPort = TARGET,
        *,
        timeout_s: float = DEADLINE_S,
    ) -> socket.socket:
        return await connect_through(
            self.poller,
            self.resolver,
            proxy or self.proxy(),
            target,
            context=self.context,
            timeout_s=timeout_s,
        )

    async def fail(self, proxy: ProxyAddress | None = None, timeout_s: float = DEADLINE_S) -> str:
        with pytest.raises(LinkError) as caught:
            await self.connect(proxy, timeout_s=timeout_s)
        assert caught.value.stage is LinkStage.CONNECT
        shown = proxy or self.proxy()
        assert str(caught.value).startswith(f"proxy {shown}: ")
        return str(caught.value).removeprefix(f"proxy {shown}: ")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.asynccontextmanager
async def bed_of(files: Files, scheme: str, behaviour: Behaviour) -> AsyncIterator[Bed]:
    bed = Bed(files, scheme)
    async with await bed.serve(behaviour):
        before = descriptors()
        yield bed
        for session in bed.sessions:
            await asyncio.wait_for(session.over.wait(), DEADLINE_S)
        await until(lambda: len(bed.poller) == 0 and descriptors() <= before)
        assert not bed.failures
    bed.resolver.close()
    bed.poller.shut_down()


def run(main: Awaitable[None]) -> None:
    async def timed() -> None:
        async with asyncio.timeout(60):
            await main

    asyncio.run(timed())  # not uvloop: its TLS, which is the proxy's here, may hang at the close


async def echo(session: Session) -> None:
    """Be a proxy to a target that says everything back, and ends when told to."""
    await session.read_head()
    await session.say(ESTABLISHED)
    while data := await session.reader.read(65536):
        await session.say(data)


async def silent(session: Session) -> None:
    await session.reader.read()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_target_is_at_the_other_end(files: Files, scheme: str) -> None:
    async def main() -> None:
        async with bed_of(files, scheme, echo) as bed:
            sock = await bed.connect(bed.proxy(userinfo="me:p%2Fw@"))
            assert not sock.getblocking()
            user, end = MemoryEnd(), SocketEnd(sock, bed.poller)
            join(end, user)
            end.read_again()
            user.feed(b"hello")
            await until(lambda: user.received == b"hello")
            head = bed.sessions[0].head
            assert head.startswith(b"CONNECT server.example:8132 HTTP/1.1\r\n")
            assert b"\r\nProxy-Authorization: Basic bWU6cC93\r\n" in head
            end.abort(Ending.CANCELLED)

    run(main())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_over_ipv6_to_ipv6(files: Files, scheme: str) -> None:
    async def main() -> None:
        bed = Bed(files, scheme)
        async with await bed.serve(echo, "::1"):
            sock = await bed.connect(bed.proxy("[::1]"), HostPort("2001:db8::1", 443))
            bed.poller.close(sock)
            await bed.sessions[0].over.wait()
            await until(lambda: len(bed.poller) == 0)
        assert b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n" in (
            bed.sessions[0].head
        )
        bed.poller.shut_down()

    run(main())


def test_the_next_address_of_a_proxy_is_tried(files: Files) -> None:
    async def main() -> None:
        async with bed_of(files, "http", echo) as bed:
            bed.poller.close(await bed.connect(bed.proxy("two.example")))

    run(main())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_to_the_target_inside(files: Files, scheme: str, version: ssl.TLSVersion) -> None:
    """What links do: TLS with the target, whatever is around it, bulk and a half-close."""

    async def target(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size, digest = 0, hashlib.sha256()
        while size < 8 * len(BLOCK):
            data = await reader.read(65536)
            if not data:
                break
            writer.write(data)
            await writer.drain()
            digest.update(data)
            size += len(data)
        writer.write(digest.digest())
        writer.close()

    async def main() -> None:
        listener = await asyncio.start_server(
            target, "127.0.0.1", 0, ssl=server_context(files.server)
        )

        async def relay(session: Session) -> None:
            await session.read_head()
            port = listener.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await session.say(ESTABLISHED)

            async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()

            ways = [
                asyncio.create_task(copy(session.reader, writer)),
                asyncio.create_task(copy(reader, session.writer)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.transport.abort()

        async with listener, bed_of(files, scheme, relay) as bed:
            sock = await bed.connect()
            context = client_context(files.client)
            context.maximum_version = version
            user = MemoryEnd()
            end = TlsEnd(sock, bed.poller, context, server_hostname="server.example")
            end.begin()
            join(end, user)
            for _ in range(8):
                user.feed(BLOCK)
            digest = hashlib.sha256(BLOCK * 8).digest()
            await until(lambda: len(user.received) == 8 * len(BLOCK) + len(digest))
            assert user.received[: -len(digest)] == BLOCK * 8
            assert user.received[-len(digest) :] == digest
            await until(lambda: user.eofs)
            end.abort(Ending.CANCELLED)

    run(main())


REFUSALS = [
    (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "407 Proxy Auth"),
    (b"HTTP/1.1 502 Bad Gateway\r\n\r\nno such host", "502 Bad Gateway"),
    (b"HTTP/1.0 403\r\n\r\n", "answered HTTP/1.0 403 for server.example:8132"),
    (b"SSH-2.0-OpenSSH_9.9\r\n", "not an HTTP answer: 'SSH-2.0"),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20000, "larger than 16384"),
    (ESTABLISHED + b"early", "unexpected bytes after"),
    (b"HTTP/1.1 200 O", "closed the connection|broke"),
    (b"", "closed the connection|broke"),
]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("answer", "why"), REFUSALS, ids=[why[:12] for _, why in REFUSALS])
def test_another_answer(files: Files, scheme: str, answer: bytes, why: str) -> None:
    async def refuse(session: Session) -> None:
        await session.read_head()
        await session.say(answer)
        session.writer.close()
        await session.writer.wait_closed()

    async def main() -> None:
        async with bed_of(files, scheme, refuse) as bed:
            proxy = bed.proxy(userinfo="me:secret@")
            with pytest.raises(LinkError, match=why) as caught:
                await bed.connect(proxy)
            assert str(caught.value).startswith(f"proxy {proxy}: ")
            assert "secret" not in str(caught.value)

    run(main())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_wrong_password_and_the_right_one(files: Files, scheme: str) -> None:
    async def choosy(session: Session) -> None:
        await session.read_head()
        if b"\r\nProxy-Authorization: Basic bWU6cmlnaHQ=\r\n" in session.head:
            await session.say(ESTABLISHED)
            await session.reader.read()
        else:
            await session.say(b"HTTP/1.1 407 Who are you\r\n\r\n")

    async def main() -> None:
        async with bed_of(files, scheme, choosy) as bed:
            for userinfo in ("", "me:wrong@"):
                why = await bed.fail(bed.proxy(userinfo=userinfo))
                assert why == "answered HTTP/1.1 407 Who are you for server.example:8132"
            bed.poller.close(await bed.connect(bed.proxy(userinfo="me:right@")))

    run(main())


def test_byte_by_byte(files: Files) -> None:
    async def dribble(session: Session) -> None:
        await session.read_head()
        for byte in b"HTTP/1.1 100 Continue\r\n\r\n" + ESTABLISHED:
            await session.say(bytes([byte]))
            await asyncio.sleep(0)
        await session.reader.read()

    async def main() -> None:
        async with bed_of(files, "http", dribble) as bed:
            bed.poller.close(await bed.connect())

    run(main())


def test_nobody_is_there(files: Files) -> None:
    async def main() -> None:
        async with bed_of(files, "http", silent) as bed:
            with socket.create_server(("127.0.0.1", 0)) as sock:
                port = sock.getsockname()[1]
            proxy = ProxyAddress.parse(f"proxy.example:{port}")
            expected = f"connection refused: 127.0.0.1 port {port}: ECONNREFUSED"
            assert await bed.fail(proxy) == expected
            unknown = ProxyAddress.parse("proxy.invalid:3128")
            assert (await bed.fail(unknown)).startswith("name not resolved: ")

    run(main())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_never_answers(files: Files, scheme: str) -> None:
    async def main() -> None:
        async with bed_of(files, scheme, silent) as bed:
            why = await bed.fail(timeout_s=0.2)
            assert why == "no connection to server.example:8132 within 0.2 s"

    run(main())


def test_it_answers_too_slowly(files: Files) -> None:
    async def trickle(session: Session) -> None:
        await session.say(b"HTTP/1.1 200 OK\r\n")
        while not session.reader.at_eof() and not session.writer.is_closing():
            await session.say(b"X: x\r\n")
            await asyncio.sleep(0.01)

    async def main() -> None:
        async with bed_of(files, "http", trickle) as bed:
            assert "within 0.2 s" in await bed.fail(timeout_s=0.2)

    run(main())


def test_tls_is_never_begun(files: Files) -> None:
    async def main() -> None:
        async with bed_of(files, "http", silent) as bed:
            proxy = ProxyAddress.parse(f"https://proxy.example:{bed.port}")
            assert "within 0.2 s" in await bed.fail(proxy, timeout_s=0.2)

    run(main())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_resets(files: Files, scheme: str) -> None:
    async def reset(session: Session) -> None:
        await session.read_head()
        session.reset()

    async def main() -> None:
        async with bed_of(files, scheme, reset) as bed:
            assert await bed.fail() == "the connection broke before it answered"

    run(main())


def test_a_proxy_of_a_stranger(files: Files) -> None:
    async def main() -> None:
        async with bed_of(files, "https", silent) as bed:
            for context, place, why in (
                (client_context(files.strangers), "proxy.example", "self-signed|unable to get"),
                (client_context(files.client), "two.example", "mismatch"),
            ):
                bed.context = context
                with pytest.raises(LinkError, match=f"its certificate: .*({why})") as caught:
                    await bed.connect(bed.proxy(place))
                assert caught.value.stage is LinkStage.TLS

    run(main())


def test_a_plain_proxy_taken_for_a_tls_one_and_the_other_way_round(files: Files) -> None:
    async def grumble(session: Session) -> None:
        await session.reader.read(1)
        await session.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await session.reader.read()

    async def main() -> None:
        async with bed_of(files, "http", grumble) as bed:
            proxy = ProxyAddress.parse(f"https://proxy.example:{bed.port}")
            with pytest.raises(LinkError, match=": TLS: ") as caught:
                await bed.connect(proxy)
            assert caught.value.stage is LinkStage.TLS
        bed = Bed(files, "https")
        async with await bed.serve(silent):
            why = await bed.fail(ProxyAddress.parse(f"http://proxy.example:{bed.port}"))
            assert why.startswith(("not an HTTP answer: ", "closed", "the connection broke"))
            await until(lambda: len(bed.poller) == 0)
        bed.poller.shut_down()

    run(main())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cancelled_at_any_moment_nothing_is_left(files: Files, scheme: str) -> None:
    async def main() -> None:
        for turns in range(40):
            async with bed_of(files, scheme, echo) as bed:
                task = asyncio.create_task(bed.connect())
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    bed.poller.close(await task)

    run(main())


def test_cancelled_while_it_cannot_be_reached(files: Files) -> None:
    async def main() -> None:
        bed = Bed(files, "http")
        with (
            socket.create_server(("127.0.0.1", 0), backlog=0) as full,
            socket.create_connection(full.getsockname(), 10),
        ):
            bed.port = full.getsockname()[1]
            task = asyncio.create_task(bed.connect(timeout_s=1000))
            await until(lambda: len(bed.poller))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(bed.poller) == 0
        await asyncio.sleep(0)
        bed.poller.shut_down()

    run(main())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cancelled_when_the_answer_is_there_but_not_told(files: Files, scheme: str) -> None:
    async def main() -> None:
        async with bed_of(files, scheme, echo) as bed:
            task = asyncio.create_task(bed.connect())
            original = through_proxy._Question._take

            def take_and_cancel(self: through_proxy._Question, answer: object) -> None:
                original(self, answer)  # type: ignore[arg-type]
                task.cancel()

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(through_proxy._Question, "_take", take_and_cancel)
                with pytest.raises(asyncio.CancelledError):
                    await task

    run(main())


# What is special about the pair of sockets in front of a TLS proxy.


def test_a_user_who_leaves_takes_the_proxy_along_and_the_last_bytes_arrive(files: Files) -> None:
    got = bytearray()

    async def listen(session: Session) -> None:
        await session.read_head()
        await session.say(ESTABLISHED)
        while data := await session.reader.read(65536):
            got.extend(data)
        # Reads on as if it had not heard: what ends it is ours.
        with contextlib.suppress(OSError):
            while True:
                await session.say(b"x" * 65536)

    async def main() -> None:
        async with bed_of(files, "https", listen) as bed:
            sock = await bed.connect()
            assert sock.send(b"last words") == 10
            bed.poller.close(sock)
        assert got == b"last words"

    run(main())


def test_a_proxy_that_goes_on_after_the_users_end_is_left(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through_proxy, "LINGER_S", 1000.0)

    async def main() -> None:
        bed = Bed(files, "https")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            bed.port = listener.getsockname()[1]
            connecting = asyncio.create_task(bed.connect())
            accepted, _ = await bed.loop.sock_accept(listener)
        user, end = MemoryEnd(), TlsEnd(accepted, bed.poller, server_context(files.server))
        join(end, user)
        await until(lambda: user.received.endswith(b"\r\n\r\n"))
        user.feed(ESTABLISHED)
        sock = await connecting
        sock.send(b"last words")
        bed.poller.close(sock)
        await until(lambda: user.eofs)
        assert user.received.endswith(b"\r\n\r\nlast words")
        await until(lambda: len(bed.poller) == 1)  # the proxy's own, which is half open
        end.abort(Ending.CANCELLED)
        await until(lambda: len(bed.poller) == 0)
        bed.poller.shut_down()

    run(main())


def test_a_proxy_that_takes_nothing_does_not_keep_the_tunnel(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(through_proxy, "LINGER_S", 0.1)

    async def deaf(session: Session) -> None:
        await session.read_head()
        await session.say(ESTABLISHED)
        session.writer.transport.pause_reading()  # type: ignore[attr-defined]
        left.append(session)
        await gone.wait()

    left: list[Session] = []
    gone = asyncio.Event()

    async def main() -> None:
        async with bed_of(files, "https", deaf) as bed:
            sock = await bed.connect()
            await until(lambda: left)
            full_since = 0
            while full_since < 50:  # everything on the way is full
                try:
                    sock.send(BLOCK)
                    full_since = 0
                except BlockingIOError:
                    full_since += 1
                await asyncio.sleep(0.001)
            bed.poller.close(sock)
            await until(lambda: len(bed.poller) == 0)
            gone.set()

    run(main())


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_proxy_that_is_lost_is_the_end_for_the_user(files: Files, how: str) -> None:
    async def leave(session: Session) -> None:
        await session.read_head()
        await session.say(ESTABLISHED)
        await session.reader.readexactly(3)
        if how == "reset":
            session.reset()
        else:
            session.writer.close()
            await session.writer.wait_closed()

    async def main() -> None:
        async with bed_of(files, "https", leave) as bed:
            sock = await bed.connect()
            user, end = MemoryEnd(), SocketEnd(sock, bed.poller)
            join(end, user)
            end.read_again()
            user.feed(b"bye")
            await until(lambda: user.eofs or user.aborted)
            end.abort(Ending.CANCELLED)

    run(main())


def test_the_systems_authorities_are_trusted_by_default(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with bed_of(files, "https", echo) as bed:
            bed.context = None  # type: ignore[assignment]
            with pytest.raises(LinkError, match="its certificate: "):
                await bed.connect()
            monkeypatch.setenv("SSL_CERT_FILE", files.client.ca)
            bed.poller.close(await bed.connect())

    run(main())


def test_the_systems_cas_are_read_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[TlsFiles] = []

    def make(files: TlsFiles, **more: object) -> ssl.SSLContext:
        read.append(files)
        return ssl.create_default_context()

    monkeypatch.setattr(through_proxy, "client_context", make)
    cas = through_proxy.SystemCas()
    assert cas.kept() is None
    first = cas.read()
    assert cas.read() is first and cas.kept() is first and len(read) == 1
    monkeypatch.setattr(through_proxy, "SYSTEM_CAS_S", 0.0)
    assert cas.kept() is None and cas.read() is not first


def test_connections_through_an_https_proxy_share_the_systems_cas(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opens many connections does not keep the threads busy."""
    read: list[object] = []

    def make(files: TlsFiles, **more: object) -> ssl.SSLContext:
        read.append(files)
        return ssl.create_default_context()

    monkeypatch.setattr(through_proxy, "client_context", make)
    monkeypatch.setattr(through_proxy, "SYSTEM_CAS", through_proxy.SystemCas())

    async def main() -> None:
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        proxy = ProxyAddress(scheme="https", at=HostPort("127.0.0.1", port))
        for _ in range(10):
            with pytest.raises(LinkError):
                await connect_through(poller, Resolver(loop), proxy, HostPort("x.test", 1))
        poller.shut_down()

    asyncio.run(main())
    assert len(read) == 1
