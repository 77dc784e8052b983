"""What is special about TLS: handshakes, records, close_notify; the contract is in conformance."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import shutil
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
import uvloop

from isthmus.net.contexts import TlsFiles, client_context, server_context
from isthmus.net.poller import Poller
from isthmus.net.tls import TlsEnd, TlsSocket
from isthmus.testing import MemoryEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import Ending, join

DEADLINE_S = 20.0
BLOCK = bytes(range(256)) * 4096  # 1 MiB
ROLES = ["server", "client"]
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@dataclass(frozen=True)
class Files:
    server: TlsFiles
    client: TlsFiles
    nobody: TlsFiles  # a client without a certificate


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    made = pki.init(tmp_path_factory.mktemp("tls") / "pki", one_ca=True)
    ca = str(made.ca_cert)
    return Files(
        TlsFiles(str(made.server_cert), str(made.server_key), ca),
        TlsFiles(str(made.client_cert), str(made.client_key), ca),
        TlsFiles("", "", ca),
    )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def ends_with(sink: MemoryEnd, data: bytes) -> None:
    await until(lambda: sink.received.endswith(data))


class End(TlsEnd):
    """An end that writes down how its handshake went."""

    __slots__ = ("failures", "handshakes")

    failures: list[ssl.SSLError]
    handshakes: int

    def handshake_done(self) -> None:
        self.handshakes += 1

    def handshake_failed(self, error: ssl.SSLError) -> None:
        self.failures.append(error)


class Peer:
    """OpenSSL by hand at the other side, so that a test decides what goes into which segment."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str | None) -> None:
        self.sock = sock
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.incoming, self.outgoing, server_side=name is None, server_hostname=name
        )
        self.loop = asyncio.get_running_loop()

    async def push(self, data: bytes | None = None) -> None:
        await self.loop.sock_sendall(self.sock, self.outgoing.read() if data is None else data)

    async def pull(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            data = await self.loop.sock_recv(self.sock, 65536)
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()

    async def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.push()
                await self.pull()
            else:
                return await self.push()

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.tls.write(view) :]

    def close_notify(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()

    async def read(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            try:
                data = self.tls.read(65536)
            except ssl.SSLZeroReturnError:
                data = b""
            except ssl.SSLWantReadError:
                await self.pull()
                continue
            if not data:
                break
            got += data
        return bytes(got)

    async def read_all(self) -> bytes:
        return await self.read(1 << 40)


@dataclass
class Bed:
    end: End
    sink: MemoryEnd
    peer: Peer

    async def shake_hands(self) -> None:
        self.begin()
        await self.peer.shake_hands()
        await until(lambda: self.end.secured)

    def begin(self) -> None:
        if not self.end.tls.server_side:
            self.end.begin()


def run(
    files: Files,
    test: Callable[[Bed], Awaitable[None]],
    *,
    role: str = "server",
    peer_files: TlsFiles | None = None,
    name: str = "localhost",
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> None:
    """Join an end in this role to one in memory, with a peer in the other role."""

    async def main() -> None:
        poller = Poller(asyncio.get_running_loop())
        near, far = connect()
        server, client = server_context(files.server), client_context(peer_files or files.client)
        client.maximum_version = version
        if role == "server":
            peer = Peer(far, client, name)
            end = End(near, poller, server)
        else:
            peer = Peer(far, server, None)
            end = End(near, poller, client, server_hostname=name)
        end.failures, end.handshakes = [], 0
        sink = MemoryEnd()
        join(end, sink)
        try:
            await test(Bed(end, sink, peer))
        finally:
            far.close()
            end.abort(Ending.CANCELLED)
            poller.shut_down()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def connect() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    near.setblocking(False)
    far.setblocking(False)
    far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


# Handshakes.


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_without_certificate_gets_the_alert(files: Files, version: ssl.TLSVersion) -> None:
    async def test(bed: Bed) -> None:
        with pytest.raises(ssl.SSLError) as caught:
            await bed.peer.shake_hands()
            await bed.peer.read(1)  # in TLS 1.3 the client is done before the server looked
        assert "ALERT" in (caught.value.reason or "")
        await until(lambda: bed.end.sock.fileno() == -1)
        # FIN, not RST: a reset may overtake the alert where the way is longer than here.
        assert await bed.peer.loop.sock_recv(bed.peer.sock, 1) == b""
        assert bed.end.ending is Ending.RESET
        assert bed.sink.aborted is Ending.RESET
        assert len(bed.end.failures) == 1
        assert not bed.end.handshakes

    run(files, test, peer_files=files.nobody, version=version)


def test_a_client_end_refuses_a_wrong_name_with_an_alert(files: Files) -> None:
    async def test(bed: Bed) -> None:
        bed.begin()
        with pytest.raises(ssl.SSLError) as caught:
            await bed.peer.shake_hands()
            await bed.peer.read(1)
        assert "ALERT" in (caught.value.reason or "")
        await until(lambda: bed.end.ending)
        assert isinstance(bed.end.failures[0], ssl.SSLCertVerificationError)

    run(files, test, role="client", name="somebody.else")


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x00", b"\x16\x03\x01\xff\xff" + bytes(70_000), BLOCK],
    ids=["http", "one byte", "a huge record", "a megabyte"],
)
@pytest.mark.parametrize("role", ROLES)
def test_garbage_instead_of_a_handshake(files: Files, role: str, garbage: bytes) -> None:
    async def test(bed: Bed) -> None:
        bed.begin()
        with contextlib.suppress(ConnectionError):
            await bed.peer.push(garbage)
            bed.peer.sock.shutdown(socket.SHUT_WR)
        await until(lambda: bed.end.sock.fileno() == -1)
        assert bed.end.ending is Ending.RESET
        assert bed.sink.aborted is Ending.RESET
        assert not bed.sink.received
        assert len(bed.end.failures) == 1

    run(files, test, role=role)


@pytest.mark.parametrize("role", ROLES)
def test_end_of_file_within_the_handshake(files: Files, role: str) -> None:
    async def test(bed: Bed) -> None:
        bed.begin()
        bed.peer.sock.shutdown(socket.SHUT_WR)
        await until(lambda: bed.end.ending)
        assert bed.end.ending is Ending.RESET
        assert bed.sink.aborted is Ending.RESET

    run(files, test, role=role)


def test_a_handshake_byte_by_byte(files: Files) -> None:
    async def test(bed: Bed) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            bed.peer.tls.do_handshake()
        for byte in bed.peer.outgoing.read():
            await bed.peer.push(bytes((byte,)))
        await bed.shake_hands()
        assert bed.end.handshakes == 1

    run(files, test)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("role", ROLES)
def test_what_is_written_before_the_handshake_is_kept(
    files: Files, role: str, version: ssl.TLSVersion
) -> None:
    """An end may be joined before hands are shaken: its bytes and its half-close come after."""

    async def test(bed: Bed) -> None:
        bed.sink.feed(b"early ")
        assert bed.sink.paused  # full until there are keys
        bed.end.write(b"bird")
        bed.sink.feed_eof()
        await bed.shake_hands()
        assert await bed.peer.read_all() == b"early bird"
        assert bed.sink.resumes
        bed.peer.write(b"late")
        bed.peer.close_notify()
        await bed.peer.push()
        await until(lambda: bed.end.ending)
        assert bed.sink.received == b"late"
        assert bed.end.ending is Ending.CLEAN

    run(files, test, role=role, version=version)


def test_an_early_writer_goes_on_after_the_handshake(files: Files) -> None:
    async def test(bed: Bed) -> None:
        bed.sink.feed(b"one ")
        bed.sink.feed(b"two")
        await bed.shake_hands()
        assert await bed.peer.read(7) == b"one two"
        bed.sink.feed(b"!")
        assert await bed.peer.read(1) == b"!"

    run(files, test)


# Ends and cuts.


@pytest.mark.parametrize("said", [b"", b"half an answer"])
@pytest.mark.parametrize("role", ROLES)
def test_tcp_end_of_file_without_close_notify_is_an_abort(
    files: Files, role: str, said: bytes
) -> None:
    async def test(bed: Bed) -> None:
        await bed.shake_hands()
        bed.peer.write(said)
        await bed.peer.push()
        bed.peer.sock.shutdown(socket.SHUT_WR)
        await until(lambda: bed.end.ending)
        assert bed.sink.received == said
        assert bed.sink.eofs == 0
        assert bed.sink.aborted is bed.end.ending is Ending.RESET

    run(files, test, role=role)


def test_a_cut_within_a_record_is_an_abort(files: Files) -> None:
    async def test(bed: Bed) -> None:
        await bed.shake_hands()
        bed.peer.write(bytes(5000))
        await bed.peer.push(bed.peer.outgoing.read()[:-1])
        bed.peer.sock.shutdown(socket.SHUT_WR)
        await until(lambda: bed.end.ending)
        assert bed.sink.aborted is Ending.RESET
        assert not bed.sink.received

    run(files, test)


def test_a_changed_record_is_an_abort(files: Files) -> None:
    async def test(bed: Bed) -> None:
        await bed.shake_hands()
        bed.peer.write(b"good")
        await bed.peer.push()
        bed.peer.write(b"evil")
        record = bytearray(bed.peer.outgoing.read())
        record[-1] ^= 1
        await bed.peer.push(bytes(record))
        await until(lambda: bed.end.ending)
        assert bed.sink.received == b"good"
        assert bed.sink.aborted is Ending.RESET

    run(files, test)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ours_first", [False, True])
def test_close_notify_with_fin_ends_only_that_direction(
    files: Files, version: ssl.TLSVersion, ours_first: bool
) -> None:
    """Once ours is sent OpenSSL raises SSLZeroReturnError, before it says b"": both are the end."""

    async def test(bed: Bed) -> None:
        await bed.shake_hands()
        if ours_first:
            bed.end.write_eof()
            assert await bed.peer.read_all() == b""
        bed.peer.write(b"last words")
        bed.peer.close_notify()
        await bed.peer.push()
        bed.peer.sock.shutdown(socket.SHUT_WR)
        await until(lambda: bed.sink.eofs)
        assert bed.sink.received == b"last words"
        if not ours_first:
            await until(lambda: bed.end.peer_shut)
            bed.sink.feed(BLOCK)
            bed.sink.feed_eof()
            assert await bed.peer.read_all() == BLOCK
        await until(lambda: bed.end.ending)
        assert bed.end.ending is Ending.CLEAN
        assert bed.sink.eofs == 1

    run(files, test, version=version)


def test_what_follows_close_notify_is_ignored(files: Files) -> None:
    async def test(bed: Bed) -> None:
        await bed.shake_hands()
        bed.peer.write(b"before")
        bed.peer.close_notify()
        await bed.peer.push(bed.peer.outgoing.read() + b"\x17\x03\x03\x00\x05after")
        await until(lambda: bed.sink.eofs)
        bed.sink.feed(b"reply")
        assert await bed.peer.read(5) == b"reply"
        assert bed.sink.received == b"before"
        assert bed.sink.eofs == 1
        assert bed.end.ending is None

    run(files, test)


def test_an_abort_says_no_close_notify(files: Files) -> None:
    async def test(bed: Bed) -> None:
        await bed.shake_hands()
        bed.sink.feed(b"half")
        assert await bed.peer.read(4) == b"half"
        bed.end.abort(Ending.ADMIN)
        with pytest.raises(ConnectionResetError):
            await bed.peer.read_all()

    run(files, test)


# Records.


def test_one_big_write(files: Files) -> None:
    async def test(bed: Bed) -> None:
        await bed.shake_hands()
        assert bed.end.write(BLOCK * 16) is False
        assert await bed.peer.read(16 * len(BLOCK)) == BLOCK * 16
        await until(lambda: not bed.end.out_bytes)
        assert bed.end.bytes_written == 16 * len(BLOCK)

    run(files, test)


def test_records_of_one_byte_are_gathered(files: Files) -> None:
    async def test(bed: Bed) -> None:
        await bed.shake_hands()
        pieces: list[bytes] = []
        bed.sink.on_write = pieces.append
        for byte in BLOCK[:2000]:
            bed.peer.write(bytes((byte,)))
        await bed.peer.push()
        await until(lambda: len(bed.sink.received) == 2000)
        assert bed.sink.received == BLOCK[:2000]
        assert len(pieces) < 100

    run(files, test)


def test_a_record_that_is_too_long_is_an_abort_by_its_header(files: Files) -> None:
    async def test(bed: Bed) -> None:
        await bed.shake_hands()
        await asyncio.get_running_loop().sock_sendall(bed.peer.sock, b"\x17\x03\x03\xff\xff")
        await until(lambda: bed.end.closed)
        assert bed.sink.aborted

    run(files, test)


class MallInfo(ctypes.Structure):
    """What mallinfo2(3) gives back: ten sizes."""

    _fields_ = (("sizes", ctypes.c_size_t * 10),)


def in_use_bytes() -> int:
    """What the C library has given out, OpenSSL's buffers among it."""
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = MallInfo
    sizes = library.mallinfo2().sizes
    return int(sizes[4] + sizes[7])  # hblkhd, mapped one by one, and uordblks, of the heap


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc's mallinfo2")
def test_a_connection_that_carried_much_keeps_little(files: Files) -> None:
    """OpenSSL's buffers never shrink: each way keeps a record of 16 KiB and a third more."""

    async def test(bed: Bed) -> None:
        await bed.shake_hands()
        before = in_use_bytes()
        for _ in range(4):
            bed.end.write(BLOCK)
            assert await bed.peer.read(len(BLOCK)) == BLOCK
            bed.peer.write(BLOCK)
            await bed.peer.push()
            await until(lambda: len(bed.sink.received) == len(BLOCK))
            bed.sink.received.clear()
        # The peer's own buffers, which had a whole block each.
        del bed.peer.tls, bed.peer.incoming, bed.peer.outgoing
        assert in_use_bytes() - before < 64 * 1024

    run(files, test)


class Reader(TlsSocket):
    """Takes what it is given, by very small reads."""

    __slots__ = ("got", "over")

    got: bytearray
    over: bool

    def deliver(self, plain: memoryview) -> bool:
        self.got += plain
        return True

    def ended(self) -> None:
        self.over = True

    def drained(self) -> None:
        pass

    def broken(self) -> None:
        self.close()


@pytest.mark.parametrize("read_bytes", [1, 4, 5, 6, 7, 1000, 16_406, 64 * 1024])
def test_reads_that_split_records(files: Files, read_bytes: int) -> None:
    async def main() -> None:
        poller = Poller(asyncio.get_running_loop())
        near, far = connect()
        reader = Reader(near, poller, server_context(files.server), read_bytes=read_bytes)
        reader.got, reader.over = bytearray(), False
        peer = Peer(far, client_context(files.client), "localhost")
        await peer.shake_hands()
        for size in (1, 2, 100, 17_000):
            peer.write(BLOCK[:size])
        peer.close_notify()
        await peer.push()
        await until(lambda: reader.over)
        assert reader.got == BLOCK[:1] + BLOCK[:2] + BLOCK[:100] + BLOCK[:17_000]
        reader.close()
        far.close()
        await until(lambda: near.fileno() == -1)
        poller.shut_down()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_key_update(files: Files) -> None:
    """Python cannot ask for new keys; openssl's client does when it reads a line ``K``."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        poller = Poller(loop)
        sink = MemoryEnd()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setblocking(False)
            port = listener.getsockname()[1]
            client = await asyncio.create_subprocess_exec(
                *("openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_3"),
                *("-cert", files.client.cert, "-key", files.client.key, "-CAfile", files.client.ca),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            assert client.stdin is not None and client.stdout is not None
            near, _ = await asyncio.wait_for(loop.sock_accept(listener), DEADLINE_S)
        end = TlsEnd(near, poller, server_context(files.server))
        join(end, sink)
        try:
            await until(lambda: end.secured)
            for turn in range(3):
                client.stdin.write(b"before %d\n" % turn)
                await ends_with(sink, b"before %d\n" % turn)
                client.stdin.write(b"K\n")
                await asyncio.wait_for(client.stdout.readuntil(b"KEYUPDATE"), DEADLINE_S)
                client.stdin.write(b"after %d\n" % turn)
                await ends_with(sink, b"after %d\n" % turn)
                sink.feed(b"answer %d\n" % turn)
                await asyncio.wait_for(client.stdout.readuntil(b"answer %d" % turn), DEADLINE_S)
        finally:
            client.stdin.close()
            with contextlib.suppress(ProcessLookupError):
                client.kill()
            await client.communicate()
            end.abort(Ending.CANCELLED)
            poller.shut_down()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
