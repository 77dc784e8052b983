"""KEP-1281 against google.golang.org/grpc: its client and our server, its server and our dialer."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clients import Target, echo_target, free_port
from gobuild import build
from konnpeers import GoPeer
from programs import Program, Programs

from isthmus.dial.dialers.through_grpc import PayloadDialer
from isthmus.dial.dialers.through_server import ServerPlace
from isthmus.errors import DialFailure
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.testing.ends import MemoryEnd
from isthmus.tools.pki.making import PkiFiles
from isthmus.tunnel.end import BaseEnd, Ending, join
from isthmus.values import HostPort

pytestmark = pytest.mark.interop

LIMIT_S = 30
MIB = 1024 * 1024


@pytest.fixture(scope="session")
def kep1281() -> Path:
    """The KEP's client and server, in Go."""
    return build("kep1281")


# Go's client, our server.


class Ours:
    """Our server with an agent, and how Go's client reaches it."""

    def __init__(self, binary: Path, programs: Programs, files: PkiFiles) -> None:
        self._binary = binary
        self.server: Program = programs.server("--mode=grpc")
        programs.agent(self.server)
        port = self.server.port("frontend_port")
        self.ways = {
            "uds": [f"--uds={programs.uds}"],
            "tls": [
                f"--address=localhost:{port}",
                f"--ca={files.ca_cert}",
                f"--cert={files.client_cert}",
                f"--key={files.client_key}",
            ],
        }

    def check(self, name: str, target: str, *flags: str, way: str = "uds") -> dict[str, Any]:
        """Run a check to its end; what it found. It must have succeeded."""
        done = self.start(name, target, *flags, way=way)
        out, err = done.communicate(timeout=LIMIT_S + 10)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        assert done.returncode == 0 and found["ok"] is True, f"{found}\n{err[-2000:]}"
        return found

    def start(self, name: str, target: str, *flags: str, way: str = "uds") -> subprocess.Popen[str]:
        """Start a check."""
        command = [str(self._binary), name, *self.ways[way], f"--target={target}", *flags]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture(scope="module")
def ours(
    kep1281: Path, certificates: PkiFiles, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ours]:
    """For all tests of this module."""
    with Programs(certificates, tmp_path_factory.mktemp("programs")) as programs:
        yield Ours(kep1281, programs, certificates)


ways = pytest.mark.parametrize("way", ["uds", "tls"])


@ways
def test_go_echo(ours: Ours, way: str) -> None:
    with echo_target() as target:
        found = ours.check("echo", target.name, f"--bytes={MIB}", way=way)
    assert found["bytes"] == MIB
    [connection_id] = found["header"]["isthmus-connection-id"]
    assert connection_id


@pytest.mark.parametrize("encoding", ["std", "url", "rawstd", "rawurl"])
def test_go_every_base64(ours: Ours, encoding: str) -> None:
    with echo_target() as target:
        ours.check("echo", target.name, "--bytes=10", f"--encoding={encoding}")


@ways
def test_go_half_closes_and_gets_the_reply(ours: Ours, way: str) -> None:
    with Target() as target:
        client = ours.start("reply", target.name, way=way)
        with target.accept() as far:
            assert far.read_to_end() == b"question"
            far.send(b"answer")
        out, err = client.communicate(timeout=LIMIT_S)
    assert json.loads(out)["answer"] == "answer", err


def test_go_reads_a_target_that_ends_first(ours: Ours) -> None:
    with Target() as target:
        client = ours.start("read", target.name)
        with target.accept() as far:
            far.send(b"z" * 300_000)
            far.half_close()
            out, err = client.communicate(timeout=LIMIT_S)
            assert far.read_to_end() == b""  # its RST_STREAM(NO_ERROR) is the end, no reset
    assert json.loads(out) == {"ok": True, "bytes": 300_000, "code": "OK", "message": ""}, err


def test_go_sees_a_reset_as_an_error(ours: Ours) -> None:
    with Target() as target:
        client = ours.start("read", target.name)
        far = target.accept()
        far.send(b"some")
        far.reset()
        out, _ = client.communicate(timeout=LIMIT_S)
    # Unavailable: it may have come before the agent had joined anything to the target.
    assert json.loads(out)["code"] in ("Aborted", "Unavailable")


@ways
def test_go_sees_why_a_target_is_not_reached(ours: Ours, way: str) -> None:
    target = f"127.0.0.1:{free_port()}"
    found = ours.check("dial", target, way=way)
    assert found["code"] == "Unavailable"
    assert found["message"].startswith(f"cannot dial {target}: connection refused")
    found = ours.check("dial", "no-such-host.invalid:443", way=way)
    assert found["code"] == "NotFound"


def test_go_bad_metadata(ours: Ours) -> None:
    found = ours.check("dial", "x:1", "--metadata=***")
    assert found["code"] == "InvalidArgument"
    assert found["message"] == "metadata x-kube-net-proxy: not base64"


def test_go_cancels(ours: Ours) -> None:
    with Target() as target:
        client = ours.start("cancel", target.name)
        with target.accept() as far:
            assert far.sock.recv(1) == b"x"
            far.send(b"y")
            with pytest.raises(ConnectionResetError):
                far.read_to_end()
        out, _ = client.communicate(timeout=LIMIT_S)
    assert json.loads(out)["code"] == "Canceled"


def test_go_large_messages(ours: Ours) -> None:
    with echo_target() as target:
        found = ours.check("big", target.name, f"--bytes={4 * MIB - 100}")
        assert found["code"] == "OK" and found["bytes"] == 4 * MIB - 100
        found = ours.check("big", target.name, f"--bytes={4 * MIB + 100}")
        assert found["code"] == "ResourceExhausted"


# Our dialer, Go's server.


class Bed:
    """A Go server, our dialer, and what its dials said."""

    def __init__(self, go: GoPeer, place: ServerPlace, *, answers_dials: bool) -> None:
        loop = asyncio.get_running_loop()
        self.go = go
        self.poller = Poller(loop)
        self.dialer = PayloadDialer(
            loop, self.poller, Resolver(loop), place, answers_dials=answers_dials
        )
        self.ends: list[BaseEnd] = []
        self.failures: list[tuple[DialFailure, str]] = []

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
        assert not self.failures, self.failures
        end, client = self.ends.pop(), MemoryEnd()
        join(client, end)
        return client, end


class Theirs:
    """Runs tests against a Go server."""

    def __init__(self, binary: Path, files: PkiFiles, directory: Path) -> None:
        self._binary = binary
        self._files = files
        self._dir = directory

    def run(
        self,
        test: Callable[[Bed], Awaitable[None]],
        *flags: str,
        way: str = "uds",
        lazy: bool = False,
    ) -> None:
        """Start a server with these flags, run the test, and end both."""
        files = self._files
        tls = [f"--ca={files.ca_cert}", f"--cert={files.server_cert}", f"--key={files.server_key}"]
        where = f"--uds={self._dir}/go.sock" if way == "uds" else "--address=localhost:0"
        more = ["--lazy"] if lazy else []
        go = GoPeer([str(self._binary), "server", where, *tls, *more, *flags], self._dir / "go.log")
        try:
            address = go.wait("serving")["address"]
            if way == "uds":
                place = ServerPlace(uds=address)
            else:
                port = int(address.rpartition(":")[2])
                place = ServerPlace(tcp=HostPort("localhost", port), context=self._context)
            asyncio.run(self._main(test, go, place, answers_dials=not lazy))
        finally:
            go.end()

    def _context(self) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(self._files.ca_cert))
        made.load_cert_chain(self._files.client_cert, self._files.client_key)
        made.set_alpn_protocols(["h2"])
        return made

    async def _main(
        self,
        test: Callable[[Bed], Awaitable[None]],
        go: GoPeer,
        place: ServerPlace,
        *,
        answers_dials: bool,
    ) -> None:
        bed = Bed(go, place, answers_dials=answers_dials)
        try:
            await test(bed)
        finally:
            bed.dialer.close()
        await bed.until(lambda: len(bed.poller) == 0)
        bed.poller.shut_down()


@pytest.fixture
def theirs(kep1281: Path, certificates: PkiFiles, tmp_path: Path) -> Theirs:
    return Theirs(kep1281, certificates, tmp_path)


@ways
def test_our_dialer_echo_in_one_connection(theirs: Theirs, way: str) -> None:
    async def test(bed: Bed) -> None:
        with echo_target() as target:
            tunnels = [await bed.reach(target.name) for _ in range(10)]
            for number, (client, _) in enumerate(tunnels):
                client.feed(b"%d" % number * 100_000)
                client.feed_eof()
            await bed.until(lambda: all(end.ending is Ending.CLEAN for _, end in tunnels))
            for number, (client, _) in enumerate(tunnels):
                assert client.received == b"%d" % number * 100_000 and client.eofs == 1
        assert bed.go.count("connection") == 1 and bed.go.count("call") == 10

    theirs.run(test, way=way)


def test_our_dialer_half_closes(theirs: Theirs) -> None:
    async def test(bed: Bed) -> None:
        with Target() as target:
            client, end = await bed.reach(target.name)
            with await asyncio.to_thread(target.accept) as far:
                client.feed(b"question")
                client.feed_eof()
                assert await asyncio.to_thread(far.read_to_end) == b"question"
                assert not client.eofs
                far.send(b"answer")
                far.half_close()
                await bed.until(lambda: end.ending is Ending.CLEAN)
                assert client.received == b"answer"

    theirs.run(test)


def test_our_dialer_and_a_target_that_ends_first(theirs: Theirs) -> None:
    async def test(bed: Bed) -> None:
        with Target() as target:
            client, end = await bed.reach(target.name)
            with await asyncio.to_thread(target.accept) as far:
                far.send(b"bye")
                far.half_close()
                await bed.until(lambda: client.eofs)
                assert client.received == b"bye" and end.ending is None
                client.feed(b"too late")  # there is no half-close that this server could say
                assert client.aborted is Ending.RESET

    theirs.run(test)


def test_our_dialer_and_failures(theirs: Theirs) -> None:
    async def test(bed: Bed) -> None:
        bed.dial(f"127.0.0.1:{free_port()}")
        await bed.until(lambda: bed.failures)
        failure, detail = bed.failures.pop()
        assert failure is DialFailure.REFUSED and "connection refused" in detail
        with Target() as target:
            client, _ = await bed.reach(target.name)
            far = await asyncio.to_thread(target.accept)
            far.send(b"x")
            await bed.until(lambda: client.received)
            far.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            far.sock.close()
            await bed.until(lambda: client.aborted)
            assert not client.eofs

    theirs.run(test)


def test_our_dialer_cancels(theirs: Theirs) -> None:
    async def test(bed: Bed) -> None:
        with Target() as target:
            _, end = await bed.reach(target.name)
            with await asyncio.to_thread(target.accept) as far:
                end.abort(Ending.CANCELLED)
                with pytest.raises(ConnectionResetError):
                    await asyncio.to_thread(far.read_to_end)
        gone = await asyncio.to_thread(bed.go.wait, "gone")
        assert gone["code"] == "Canceled"

    theirs.run(test)


def test_our_dialer_and_gos_limit_of_streams(theirs: Theirs) -> None:
    async def test(bed: Bed) -> None:
        with echo_target() as target:
            tunnels = [await bed.reach(target.name) for _ in range(5)]
            for client, _ in tunnels:
                client.feed(b"here")
            await bed.until(lambda: all(client.received == b"here" for client, _ in tunnels))
            assert bed.go.count("connection") == 3
            for client, end in tunnels:
                client.feed_eof()
                await bed.until(lambda end=end: end.ending is Ending.CLEAN)  # type: ignore[misc]

    theirs.run(test, "--max-streams=2")


def test_our_dialer_and_a_go_server_that_drains(theirs: Theirs) -> None:
    async def test(bed: Bed) -> None:
        with echo_target() as target:
            client, end = await bed.reach(target.name)
            assert bed.go.process.stdin is not None
            bed.go.process.stdin.write("drain\n")
            bed.go.process.stdin.flush()
            await bed.until(lambda: bed.dialer.pool.connections[0].leaving)
            client.feed(b"goes on")
            await bed.until(lambda: client.received == b"goes on")
            client.feed_eof()
            await bed.until(lambda: end.ending is Ending.CLEAN)
            await bed.until(lambda: not bed.dialer.pool.connections)

    theirs.run(test)


def test_our_dialer_and_a_server_that_says_nothing_first(theirs: Theirs) -> None:
    async def test(bed: Bed) -> None:
        with echo_target() as target:
            client, end = await bed.reach(target.name)
            client.feed(b"hello")
            client.feed_eof()
            await bed.until(lambda: end.ending is Ending.CLEAN)
            assert client.received == b"hello"

    theirs.run(test, lazy=True)
