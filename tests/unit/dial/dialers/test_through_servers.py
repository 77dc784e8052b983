"""Dialing through a server that answers in every way, by hand: both dialers over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from isthmus.dial.dialers.http2_pool import PooledDialer
from isthmus.dial.dialers.through_connect import FAILURE_OF_STATUS, ConnectDialer
from isthmus.dial.dialers.through_grpc import GrpcDialer
from isthmus.dial.dialers.through_server import ServerDial, ServerDialer, ServerPlace, failure_said
from isthmus.dial.frontends.statuses import explain
from isthmus.errors import DialFailure
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.testing.ends import MemoryEnd
from isthmus.tunnel.end import BaseEnd, Ending, join
from isthmus.values import HostPort
from isthmus.wire.http2 import PREFACE, settings
from isthmus.wire.http_connect import established, reply

TARGET = HostPort("pod.example", 8080)
OK = b"HTTP/1.1 200 Connection Established\r\n\r\n"


class Bed:
    """A UNIX socket whose connections the test answers, and a dialer that knows it."""

    def __init__(self, kind: type[ServerDialer], path: Path, keeps_half_close: bool | None) -> None:
        loop = asyncio.get_running_loop()
        self.poller = Poller(loop)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(1)
        self.listener.setblocking(False)
        place = ServerPlace(uds=str(path), keeps_half_close=keeps_half_close)
        self.dialer = kind(loop, self.poller, Resolver(loop), place)
        self.ends: list[BaseEnd] = []
        self.endings: list[Ending] = []
        self.failures: list[tuple[DialFailure, str]] = []

    def dial(self, timeout_s: float = 20.0) -> ServerDial:
        return self.dialer.dial(
            TARGET,
            timeout_s=timeout_s,
            reached=self._reached,
            failed=lambda *why: self.failures.append(why),
        )

    def _reached(self, end: BaseEnd) -> None:
        end.on_done = lambda _, ending: self.endings.append(ending)
        self.ends.append(end)

    async def accept(self) -> socket.socket:
        async with asyncio.timeout(20):
            sock, _ = await asyncio.get_running_loop().sock_accept(self.listener)
        return sock

    async def asked(self) -> socket.socket:
        """A connection whose CONNECT has been read."""
        sock = await self.accept()
        async with asyncio.timeout(20):
            assert (await asyncio.get_running_loop().sock_recv(sock, 4096)).endswith(b"\r\n\r\n")
        return sock

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.001)

    async def failure(self) -> tuple[DialFailure, str]:
        await self.until(lambda: self.failures or self.ends)
        assert not self.ends
        return self.failures.pop()


@contextlib.asynccontextmanager
async def bed_of(
    kind: type[ServerDialer], path: Path, keeps_half_close: bool | None = None
) -> AsyncIterator[Bed]:
    bed = Bed(kind, path, keeps_half_close)
    yield bed
    for end in bed.ends:
        end.abort(Ending.CANCELLED)
    if isinstance(bed.dialer, PooledDialer):
        bed.dialer.close()
    bed.listener.close()
    await bed.until(lambda: len(bed.poller) == 0)
    await asyncio.sleep(0)
    bed.poller.shut_down()
    assert not bed.failures


def run(
    tmp_path: Path,
    test: Callable[[Bed], Awaitable[None]],
    kind: type[ServerDialer] = ConnectDialer,
    keeps_half_close: bool | None = None,
) -> None:
    async def main() -> None:
        async with bed_of(kind, tmp_path / "s", keeps_half_close) as bed:
            await test(bed)

    asyncio.run(main())


# What refusals say.


@pytest.mark.parametrize("failure", DialFailure)
@pytest.mark.parametrize("detail", ["", "a detail: with colons"])
def test_every_failure_of_ours_is_read_back(failure: DialFailure, detail: str) -> None:
    assert failure_said(explain(failure, TARGET, detail)) == (failure, detail)


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("dial tcp 10.0.0.1:80: connect: connection refused", DialFailure.REFUSED),
        ("dial tcp 10.0.0.1:80: i/o timeout", DialFailure.TIMED_OUT),
        ("dial tcp: lookup x: no such host", DialFailure.UNRESOLVED),
        ("No agent available", DialFailure.NO_AGENT),
        ("currently no tunnels available: No agent available", DialFailure.NO_AGENT),
        ("cannot dial x:1: something new: connection refused", DialFailure.REFUSED),
        ("?", DialFailure.INTERNAL),
    ],
)
def test_what_others_say(text: str, failure: DialFailure) -> None:
    assert failure_said(text) == (failure, text)


@pytest.mark.parametrize(
    ("answer", "failure", "detail"),
    [
        (reply(403, explain(DialFailure.DENIED, TARGET, "rule 3")), DialFailure.DENIED, "rule 3"),
        (reply(503, explain(DialFailure.TOO_MANY, TARGET)), DialFailure.TOO_MANY, ""),
        (b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", DialFailure.DENIED, "HTTP/1.1 403 No"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", DialFailure.NO_AGENT, "HTTP/1.1 503 No"),
        (b"HTTP/1.1 504 No\r\nContent-Length: 0\r\n\r\n", DialFailure.TIMED_OUT, "HTTP/1.1 504 No"),
        # As konnectivity's server: no length, the connection closes.
        (
            b"HTTP/1.1 502 Bad Gateway\r\n\r\ndial tcp 1.2.3.4:5: connect: connection refused",
            DialFailure.REFUSED,
            "HTTP/1.1 502 Bad Gateway: dial tcp 1.2.3.4:5: connect: connection refused",
        ),
        (b"HTTP/1.1 418 x\r\n\r\n\x1b[31m", DialFailure.INTERNAL, "HTTP/1.1 418 x: \\x1b[31m"),
    ],
)
@pytest.mark.parametrize("piecewise", [False, True])
def test_refusals(
    tmp_path: Path, answer: bytes, failure: DialFailure, detail: str, piecewise: bool
) -> None:
    async def test(bed: Bed) -> None:
        bed.dial()
        with await bed.asked() as server:
            for at in range(0, len(answer), 1 if piecewise else len(answer)):
                server.sendall(answer[at : at + (1 if piecewise else len(answer))])
                if piecewise:
                    await asyncio.sleep(0)
        assert await bed.failure() == (failure, detail)

    run(tmp_path, test)


def test_a_refusal_without_an_end_is_one_at_the_deadline(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        bed.dial(timeout_s=0.1)
        with await bed.asked() as server:
            server.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 100\r\n\r\nnot all")
            failure, detail = await bed.failure()
        assert failure is DialFailure.DENIED
        assert "403" in detail

    run(tmp_path, test)


def test_a_refusal_is_read_up_to_its_bound(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        bed.dial()
        with await bed.asked() as server:
            server.setblocking(False)
            loop = asyncio.get_running_loop()
            endless = loop.create_task(
                loop.sock_sendall(server, b"HTTP/1.1 502 x\r\n\r\n" + b"y" * 4_000_000)
            )
            failure, detail = await bed.failure()
            assert failure is DialFailure.INTERNAL
            assert len(detail) < 1000
            with pytest.raises(OSError):
                await endless

    run(tmp_path, test)


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 4000]
)
def test_no_answer_of_a_server(tmp_path: Path, answer: bytes) -> None:
    async def test(bed: Bed) -> None:
        bed.dial()
        with await bed.asked() as server:
            server.sendall(answer)
        failure, detail = await bed.failure()
        assert failure is DialFailure.INTERNAL
        assert f"connectivity server {bed.dialer.place}" in detail

    run(tmp_path, test)


def test_the_statuses_are_those_that_need_no_words() -> None:
    assert FAILURE_OF_STATUS == {
        403: DialFailure.DENIED,
        503: DialFailure.NO_AGENT,
        504: DialFailure.TIMED_OUT,
    }


# Early bytes.


@pytest.mark.parametrize("size", [1, 20_000, 60_000])
def test_early_bytes_come_with_the_answer(tmp_path: Path, size: int) -> None:
    async def test(bed: Bed) -> None:
        bed.dial()
        with await bed.asked() as server:
            server.sendall(OK + b"e" * size)
            await bed.until(lambda: bed.ends)
            client = MemoryEnd()
            join(client, bed.ends[0])
            server.sendall(b"!")
            await bed.until(lambda: client.received.endswith(b"!"))
            assert client.received == b"e" * size + b"!"

    run(tmp_path, test)


def test_early_bytes_are_bounded_until_somebody_takes_them(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        bed.dial()
        with await bed.asked() as server:
            server.setblocking(False)
            total = server.send(OK + b"e" * 1000) - len(OK)
            await bed.until(lambda: bed.ends)
            stuck = 0
            while stuck < 100:
                try:
                    total += server.send(b"e" * 65536)
                    stuck = 0
                except BlockingIOError:
                    stuck += 1
                await asyncio.sleep(0)
            assert total < 2_000_000
            client = MemoryEnd()
            join(client, bed.ends[0])
            await bed.until(lambda: len(client.received) == total)

    run(tmp_path, test)


# How a UNIX socket ends.


@pytest.mark.parametrize(
    ("keeps_half_close", "answer", "ending"),
    [
        (True, OK, Ending.RESET),
        (False, OK, Ending.CLEAN),
        # Asked, konnectivity's says nothing, and ours what it does.
        (None, OK, Ending.CLEAN),
        (None, established("1-1", keeps_half_close=True), Ending.RESET),
    ],
)
def test_a_server_that_closes_has_reset_or_ended(
    tmp_path: Path, keeps_half_close: bool | None, answer: bytes, ending: Ending
) -> None:
    async def test(bed: Bed) -> None:
        bed.dial()
        client = MemoryEnd()
        with await bed.asked() as server:
            server.sendall(answer)
            await bed.until(lambda: bed.ends)
            join(client, bed.ends[0])
            server.sendall(b"last")
        await bed.until(lambda: client.eofs or client.aborted)
        assert client.received == b"last"
        client.feed_eof()
        await bed.until(lambda: bed.endings)
        assert bed.endings == [ending]

    run(tmp_path, test, keeps_half_close=keeps_half_close)


def test_a_close_after_our_end_is_clean(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        bed.dial()
        client = MemoryEnd()
        with await bed.asked() as server:
            server.sendall(OK)
            await bed.until(lambda: bed.ends)
            join(client, bed.ends[0])
            client.feed_eof()
        await bed.until(lambda: bed.endings == [Ending.CLEAN])

    run(tmp_path, test)


# Reaching the server.


@pytest.mark.parametrize("kind", [ConnectDialer, GrpcDialer])
def test_a_full_queue_is_waited_for(tmp_path: Path, kind: type[ServerDialer]) -> None:
    async def test(bed: Bed) -> None:
        bed.listener.listen(0)
        with socket.socket(socket.AF_UNIX) as first:
            first.connect(str(tmp_path / "s"))
            dial = bed.dial()
            await asyncio.sleep(0.02)  # it cannot get in, however long
            assert not bed.failures
            (await bed.accept()).close()
            with await bed.accept() as server:
                assert await asyncio.get_running_loop().sock_recv(server, 4096)
                dial.cancel()

    run(tmp_path, test, kind)


@pytest.mark.parametrize("kind", [ConnectDialer, GrpcDialer])
def test_a_silent_server(tmp_path: Path, kind: type[ServerDialer]) -> None:
    async def test(bed: Bed) -> None:
        bed.dial(timeout_s=0.05)
        failure, detail = await bed.failure()
        assert failure is DialFailure.TIMED_OUT
        assert str(bed.dialer.place) in detail

    run(tmp_path, test, kind)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/no/such/socket", DialFailure.UNREACHABLE),
        ("x" * 200, DialFailure.INTERNAL),
        ("nul\0", DialFailure.UNREACHABLE),
    ],
)
@pytest.mark.parametrize("kind", [ConnectDialer, GrpcDialer])
def test_no_server(
    tmp_path: Path, kind: type[ServerDialer], path: str, wanted: DialFailure
) -> None:
    async def test(bed: Bed) -> None:
        bed.dialer.place = ServerPlace(uds=path)
        bed.dial()
        failure, detail = bed.failures.pop()  # at once
        assert failure is wanted
        assert f"connectivity server {path} cannot be reached: " in detail

    run(tmp_path, test, kind)


@pytest.mark.parametrize("kind", [ConnectDialer, GrpcDialer])
def test_a_context_that_cannot_be_made(tmp_path: Path, kind: type[ServerDialer]) -> None:
    def context() -> object:
        raise FileNotFoundError("ca.crt")

    async def test(bed: Bed) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            at = HostPort("127.0.0.1", server.getsockname()[1])
            bed.dialer.place = ServerPlace(tcp=at, context=context)  # type: ignore[arg-type]
            bed.dial()
            failure, detail = await bed.failure()
        assert failure is DialFailure.INTERNAL
        assert "ca.crt" in detail

    run(tmp_path, test, kind)


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", settings() + b"\0\0\0\x01\x05\0\0\0\x01" * 2, b""]
)
def test_no_http2(tmp_path: Path, said: bytes) -> None:
    async def test(bed: Bed) -> None:
        bed.dial()
        with await bed.accept() as server:
            first = await asyncio.get_running_loop().sock_recv(server, 4096)
            assert first.startswith(PREFACE)
            server.sendall(said)
        assert (await bed.failure())[0] is DialFailure.INTERNAL

    run(tmp_path, test, GrpcDialer)


@pytest.mark.parametrize(
    "wrong", [{}, {"uds": "/x", "tcp": TARGET}, {"uds": "/x", "context": print}]
)
def test_a_place_is_one_or_the_other(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        ServerPlace(**wrong)  # type: ignore[arg-type]


class Caller:
    """Keeps its dial, as whoever may cancel it does."""

    def __init__(self, bed: Bed) -> None:
        self.dial = bed.dialer.dial(
            TARGET, timeout_s=20.0, reached=self.reached, failed=self.failed
        )

    def reached(self, end: BaseEnd) -> None:
        pytest.fail("reached")

    def failed(self, failure: DialFailure, detail: str) -> None:
        pytest.fail("failed")


@pytest.mark.parametrize("kind", [ConnectDialer, GrpcDialer])
def test_cancelled_it_keeps_nobody(tmp_path: Path, kind: type[ServerDialer]) -> None:
    async def test(bed: Bed) -> None:
        gc.collect()
        gc.disable()
        try:
            caller = Caller(bed)
            with await bed.accept():
                caller.dial.cancel()
                kept = weakref.ref(caller)
                del caller
                await bed.until(lambda: kept() is None)
        finally:
            gc.enable()

    run(tmp_path, test, kind)
