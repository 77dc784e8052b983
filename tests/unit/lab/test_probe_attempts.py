"""Attempts at targets that behave in every way: each verb, each way to fail, always in time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from isthmus.dial.dialers.direct import DirectDialer
from isthmus.errors import DialFailure
from isthmus.lab import attempts
from isthmus.lab.attempts import (
    FAILING_OF_DIAL,
    MOST_KINDS,
    OTHER,
    AttemptMeans,
    BackgroundTraffic,
    PageUrl,
)
from isthmus.lab.probe import context
from isthmus.lab.probe_messages import AttemptOutcome, ProbeTlsFiles
from isthmus.lab.servers import WhoSocket
from isthmus.lab.topology import AttemptFailure, LabAttempt, Verb
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.tools.pki import making as pki
from isthmus.values import HostPort

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def no_tls() -> ssl.SSLContext:
    raise AssertionError("nobody asked for TLS")


class Bed:
    def __init__(self, trust: Callable[[], ssl.SSLContext] = no_tls, **more: bool) -> None:
        loop = asyncio.get_running_loop()
        self.poller = Poller(loop)
        dialer = DirectDialer(loop, self.poller, Resolver(loop))
        self.means = AttemptMeans(dialer=dialer, poller=self.poller, trust=trust, **more)

    async def attempt(self, verb: Verb, target: str, **more: object) -> AttemptOutcome:
        asked = {"source": "", "verb": verb, "target": target, "timeout_s": 10.0, **more}
        return await attempts.make(LabAttempt(**asked), self.means)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def serving(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    clients: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        clients.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    async with server:
        yield f"localhost:{server.sockets[0].getsockname()[1]}"
        # What was accepted last becomes a client within a few turns; of a server that is closed by
        # then asyncio makes half a transport, which nobody can close.
        for _ in range(10):
            await asyncio.sleep(0)
    for task in clients:
        task.cancel()
    if clients:
        await asyncio.wait(clients)
    # Not by their writers: a handshake that failed has none, nor one whose client left at once.
    transports = asyncio.get_running_loop()._transports  # type: ignore[attr-defined]
    async with asyncio.timeout(20):
        while left := [each for each in list(transports.values()) if each._sock is not None]:
            for each in left:
                each.abort()
            await asyncio.sleep(0)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(10)
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def speaks_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 ready\r\n")
    await reader.read()


async def source(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"s" * 65536)
        await writer.drain()


async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    size = 0
    while data := await reader.read(65536):
        size += len(data)
    writer.write(b"%d\n" % size)


def page(answer: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    return serve


OK_PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\nfrom pod\nsecond line\n\n"


def run(test: Callable[[Bed], Awaitable[None]], **more: bool) -> None:
    async def main() -> None:
        bed = Bed(**more)
        await test(bed)
        async with asyncio.timeout(20):
            while len(bed.poller):  # polite goodbyes take a moment
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        bed.poller.shut_down()

    asyncio.run(main())


# The tables.


def test_every_dial_failure_has_its_word() -> None:
    assert FAILING_OF_DIAL.keys() == set(DialFailure)


def test_every_verb_is_done() -> None:
    assert attempts._DO.keys() == set(Verb)


@pytest.mark.parametrize(
    ("error", "failing"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, ""), AttemptFailure.REFUSED),
        (ConnectionResetError("said without a number"), AttemptFailure.RESET),
        (BrokenPipeError(errno.EPIPE, ""), AttemptFailure.RESET),
        (OSError(errno.EHOSTUNREACH, ""), AttemptFailure.UNREACHABLE),
        (ssl.SSLError(1, "whose 1 is no EPERM"), AttemptFailure.OTHER),
        (OSError(errno.EMFILE, ""), AttemptFailure.OTHER),
    ],
)
def test_errors_of_the_system(error: OSError, failing: AttemptFailure) -> None:
    assert attempts._failing_of(error) is failing


# Verbs that work.


def test_ask() -> None:
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"pod saw ::1\nand more\n")

    async def test(bed: Bed) -> None:
        async with serving(says) as at:
            outcome = await bed.attempt(Verb.ASK, at)
            assert (outcome.worked, outcome.said, outcome.bytes) == (True, "pod saw ::1", 21)

    run(test)


def test_ask_by_udp() -> None:
    async def test(bed: Bed) -> None:
        socket_ = WhoSocket(asyncio.get_running_loop(), 0, lambda peer: b"pod saw it\n")
        try:
            outcome = await bed.attempt(Verb.ASK, f"udp://127.0.0.1:{socket_.port}")
        finally:
            socket_.stop()
        assert (outcome.worked, outcome.said) == (True, "pod saw it")
        outcome = await bed.attempt(Verb.ASK, f"udp://127.0.0.1:{socket_.port}")
        assert outcome.failing is AttemptFailure.REFUSED
        outcome = await bed.attempt(Verb.ASK, "udp://no port")
        assert outcome.failing is AttemptFailure.OTHER

    run(test)


@pytest.mark.parametrize("serve", [echo, silent, speaks_first, source])
def test_connect(serve: Serve) -> None:
    async def test(bed: Bed) -> None:
        async with serving(serve) as at:
            assert (await bed.attempt(Verb.CONNECT, at)).worked

    run(test)


@pytest.mark.parametrize("size", [0, 1, 100_000, 3_000_000])
def test_echo(size: int) -> None:
    async def test(bed: Bed) -> None:
        async with serving(echo) as at:
            outcome = await bed.attempt(Verb.ECHO, at, bytes=size)
        assert outcome.worked and outcome.bytes == size

    run(test)


def test_echo_without_a_half_close_counts() -> None:
    async def test(bed: Bed) -> None:
        async with serving(echo) as at:
            outcome = await bed.attempt(Verb.ECHO, at)
        assert outcome.worked and outcome.bytes == 100_000

    run(test, half_closes=False)


@pytest.mark.parametrize("target", ["{at}", "http://{at}", "http://{at}/some/path?x=1"])
def test_get(target: str) -> None:
    async def test(bed: Bed) -> None:
        async with serving(page(OK_PAGE)) as at:
            outcome = await bed.attempt(Verb.GET, target.format(at=at))
        assert outcome.worked and outcome.said == "from pod" and outcome.bytes == 21

    run(test)


def test_download_and_upload() -> None:
    async def test(bed: Bed) -> None:
        async with serving(source) as at:
            down = await bed.attempt(Verb.DOWNLOAD, at, seconds=0.2)
        assert down.worked and down.bytes > 65536
        async with serving(sink) as at:
            up = await bed.attempt(Verb.UPLOAD, at, seconds=0.2)
        assert up.worked and up.bytes > 65536
        assert up.said == f"{up.bytes} bytes sent"

    run(test)


def test_upload_to_who_reads_nothing_counts_what_buffers_took() -> None:
    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()

    async def test(bed: Bed) -> None:
        async with serving(stuck) as at:
            up = await bed.attempt(Verb.UPLOAD, at, seconds=0.2, timeout_s=0.4)
        assert up.worked and 0 < up.bytes < 50_000_000

    run(test)


# And that fail.


def test_connections_that_fail() -> None:
    async def test(bed: Bed) -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            free = sock.getsockname()[1]
        outcome = await bed.attempt(Verb.CONNECT, f"127.0.0.1:{free}")
        assert outcome.failing is AttemptFailure.REFUSED and "ECONNREFUSED" in outcome.said
        outcome = await bed.attempt(Verb.GET, "no-such-host.invalid:80")
        assert outcome.failing is AttemptFailure.UNRESOLVED
        outcome = await bed.attempt(Verb.CONNECT, "no port")
        assert outcome.failing is AttemptFailure.OTHER and "no port in" in outcome.said

    run(test)


@pytest.mark.parametrize("verb", [Verb.GET, Verb.ECHO, Verb.UPLOAD])
def test_a_reset_is_seen_as_one(verb: Verb) -> None:
    async def test(bed: Bed) -> None:
        async with serving(reset) as at:
            outcome = await bed.attempt(verb, at)
        assert outcome.failing is AttemptFailure.RESET, outcome

    run(test)


def test_a_reset_within_tls(tmp_path: Path) -> None:
    async def test(bed: Bed) -> None:
        async with serving(reset) as at:
            outcome = await bed.attempt(Verb.GET, f"https://{at}")
        assert outcome.failing is AttemptFailure.RESET

    async def main() -> None:
        bed = Bed(ssl.create_default_context)
        await test(bed)
        bed.poller.shut_down()

    asyncio.run(main())


@pytest.mark.parametrize("verb", [Verb.GET, Verb.ECHO, Verb.DOWNLOAD])
def test_silence_ends_in_time(verb: Verb) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await writer.wait_closed()

    async def test(bed: Bed) -> None:
        async with serving(never) as at:
            outcome = await bed.attempt(verb, at, timeout_s=0.1, seconds=0.05)
        assert outcome.failing is AttemptFailure.TIMEOUT

    run(test)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "HTTP status 503 Busy"),
        (b"SSH-2.0-x\r\n", "invalid HTTP response"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut", "invalid HTTP response"),
        (b"", "invalid HTTP response"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (attempts.MOST_PAGE_BYTES + 1), "larger than"),
    ],
)
def test_pages_that_are_none(answer: bytes, said: str) -> None:
    async def test(bed: Bed) -> None:
        async with serving(page(answer)) as at:
            outcome = await bed.attempt(Verb.GET, at)
        assert outcome.failing is AttemptFailure.OTHER
        assert said in outcome.said

    run(test)


@pytest.mark.parametrize("given", [b"other bytes", b"", b"y" * 20])
def test_an_echo_that_is_none(given: bytes) -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(given)

    async def test(bed: Bed) -> None:
        async with serving(lie) as at:
            outcome = await bed.attempt(Verb.ECHO, at, bytes=10)
        assert outcome.failing is AttemptFailure.OTHER
        assert "came back" in outcome.said

    run(test)


def test_an_attempt_that_is_cancelled_leaves_nothing() -> None:
    async def test(bed: Bed) -> None:
        async with serving(echo) as at:
            for turns in range(12):  # wherever it is by then
                task = asyncio.create_task(bed.attempt(Verb.ECHO, at, bytes=1_000_000))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    run(test)


# TLS.


def test_https_with_the_labs_own_ca(tmp_path: Path) -> None:
    files = pki.init(tmp_path / "pki", server_names=("localhost",))
    other = pki.init(tmp_path / "other", server_names=("localhost",))
    serving_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving_tls.load_cert_chain(files.server_cert, files.server_key)
    hellos: list[str | None] = []
    serving_tls.sni_callback = lambda _, name, __: hellos.append(name)

    def trust(made: pki.PkiFiles) -> Callable[[], ssl.SSLContext]:
        return partial(
            context,
            ProbeTlsFiles(
                ca_cert=str(made.ca_cert),
                client_cert=str(made.client_cert),
                client_key=str(made.client_key),
            ),
        )

    async def main() -> None:
        async with serving(page(OK_PAGE), serving_tls) as at:
            good = Bed(trust(files))
            outcome = await good.attempt(Verb.GET, f"https://{at}/")
            assert outcome.worked and outcome.said == "from pod"
            wrong = Bed(trust(other))
            outcome = await wrong.attempt(Verb.GET, f"https://{at}/")
            assert outcome.failing is AttemptFailure.OTHER and "certificate" in outcome.said.lower()
            by_address = at.replace("localhost", "127.0.0.1")
            outcome = await good.attempt(Verb.GET, f"https://{by_address}/")
            assert outcome.failing is AttemptFailure.OTHER  # another name
            async with asyncio.timeout(20):
                while len(hellos) < 3:  # a server that closes knows nothing of one it just accepted
                    await asyncio.sleep(0.001)
            for bed in (good, wrong):
                async with asyncio.timeout(20):
                    while len(bed.poller):
                        await asyncio.sleep(0.001)
                bed.poller.shut_down()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "at", "host", "path", "https"),
    [
        ("pod:8080", HostPort("pod", 8080), "pod:8080", "/", False),
        ("http://pod", HostPort("pod", 80), "pod", "/", False),
        ("https://pod/x?y", HostPort("pod", 443), "pod", "/x?y", True),
        ("https://[fd00::1]:8443", HostPort("fd00::1", 8443), "[fd00::1]:8443", "/", True),
    ],
)
def test_where_pages_are(text: str, at: HostPort, host: str, path: str, https: bool) -> None:
    assert PageUrl.parse(text) == PageUrl(at=at, host=host, path=path, https=https)


@pytest.mark.parametrize("text", ["pod", "ftp://pod/", "http:///x", "http://pod:x/"])
def test_what_is_no_page(text: str) -> None:
    with pytest.raises(ValueError):
        PageUrl.parse(text)


@pytest.mark.parametrize("path", ["/a b", "/\x01", "/a\r\nHost: b"])
def test_what_no_request_can_name_is_refused_before_it_is_sent(path: str) -> None:
    async def test(bed: Bed) -> None:
        async with serving(page(OK_PAGE)) as target:
            outcome = await bed.attempt(Verb.GET, f"http://{target}{path}")
            assert outcome.failing is AttemptFailure.OTHER
            assert outcome.said.startswith("a URL cannot contain")
            made = PageUrl(at=HostPort.parse(target), host=target, path=path, https=False)
            with pytest.raises(ValueError, match="cannot request"):
                await attempts.get(made, bed.means, timeout_s=10.0)

    run(test)


# Traffic.


def test_traffic_is_counted() -> None:
    async def test(bed: Bed) -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            free = sock.getsockname()[1]
        async with serving(page(OK_PAGE)) as at:
            good = LabAttempt(source="", verb=Verb.GET, target=at)
            bad = LabAttempt(source="", verb=Verb.CONNECT, target=f"127.0.0.1:{free}")
            made = [(good, bed.means), (bad, bed.means)]
            traffic = BackgroundTraffic(made, clients=2, pause_s=0.0)
            while traffic._worked < 5 or traffic._failed.total() < 5:
                await asyncio.sleep(0.001)
            count = await traffic.end()
        assert count.worked >= 5 and count.slowest_s > 0
        [(said, times)] = count.failed.items()
        assert times >= 5 and said.startswith("refused: ")

    run(test)


def test_kinds_of_failures_are_bounded() -> None:
    async def test(bed: Bed) -> None:
        never = LabAttempt(source="", verb=Verb.CONNECT, target="no port")
        traffic = BackgroundTraffic([(never, bed.means)], clients=1, pause_s=1000.0)
        for number in range(100):
            traffic.count(
                AttemptOutcome(failing=AttemptFailure.OTHER, said=f"{number}", took_s=1.0)
            )
        count = await traffic.end()
        assert len(count.failed) == MOST_KINDS + 1
        assert count.failed[OTHER] >= 100 - MOST_KINDS
        assert count.failures >= 100

    run(test)


def test_no_clients_are_no_traffic() -> None:
    for clients, asked in ((0, 1), (1, 0), (10_000, 1)):
        with pytest.raises(ValueError):
            BackgroundTraffic([None] * asked, clients=clients, pause_s=0.0)  # type: ignore[list-item]
