"""The small servers of a lab, spoken to over real sockets, and the program that holds them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest

import isthmus
from isthmus.errors import ConfigError
from isthmus.lab.attempts import ask_by_udp
from isthmus.lab.servers import (
    HttpEnd,
    JoinedEnds,
    LabServers,
    PageAnswer,
    WhoSocket,
    command,
    main,
    plain,
    written,
)
from isthmus.lab.topology import LabHost, Serve, Serving
from isthmus.net.contexts import TlsFiles, server_context
from isthmus.testing.ends import MemoryEnd
from isthmus.tools.pki import making as pki
from isthmus.tunnel.end import Ending, join
from isthmus.values import HostPort

LIMIT_S = 20.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(isthmus.__file__).parent.parent)}
LOOPBACKS = ["127.0.0.1", "::1"] if socket.has_dualstack_ipv6() else ["127.0.0.1"]
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Bed:
    """Running servers, and clients of them that are closed at the end."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.servers = LabServers("pod", context=context)
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(
        self, port: int, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> Client:
        reader, writer = await asyncio.open_connection(
            host, port, ssl=tls, server_hostname="localhost" if tls else None
        )
        self._writers.append(writer)
        return reader, writer

    async def client(self, kind: Serving) -> Client:
        return await self.connect(self.servers.serve(Serve(kind=kind, port=0)))

    async def until(self, holds: Callable[[], object]) -> None:
        while not holds():
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await self.servers.stop()
        assert len(self.servers.connections) == 0


def run(test: Callable[[Bed], Awaitable[None]], context: ssl.SSLContext | None = None) -> None:
    async def main() -> None:
        bed = Bed(context)
        try:
            async with asyncio.timeout(LIMIT_S):
                await test(bed)
        finally:
            await bed.close()

    asyncio.run(main())


async def asked(client: Client, request: bytes) -> bytes:
    """Send a request byte by byte and read everything that is answered."""
    reader, writer = client
    for place in range(len(request)):
        writer.write(request[place : place + 1])
        await writer.drain()
    writer.write_eof()
    return await reader.read()


# HTTP.


@pytest.mark.parametrize("host", LOOPBACKS)
def test_a_page_says_who_where_and_by_whom(host: str) -> None:
    async def test(bed: Bed) -> None:
        port = bed.servers.serve(Serve(kind=Serving.HTTP, port=0))
        client = await bed.connect(port, host)
        answer = await asked(client, b"GET /any/path?x=1 HTTP/1.1\r\nHost: pod\r\n\r\n")
        head, _, body = answer.decode().partition("\r\n\r\n")
        own = written(client[1].get_extra_info("sockname"))
        there = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert "content-type: text/plain" in head.lower()
        assert body == f"from pod\nasked for: /any/path?x=1\nby: {own}\nat: {there}\n"

    run(test)


def test_requests_in_one_piece_are_answered_in_their_order() -> None:
    async def test(bed: Bed) -> None:
        reader, writer = await bed.client(Serving.HTTP)
        total = 3000  # their answers are more than a socket takes at once
        writer.write(b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % n for n in range(total)))
        writer.write_eof()
        lines = (await reader.read()).decode().splitlines()
        paths = [line for line in lines if line.startswith("asked for: ")]
        assert paths == [f"asked for: /{number}" for number in range(total)]

    run(test)


def test_a_client_that_does_not_read_its_answers_is_not_read_from() -> None:
    client = MemoryEnd()
    join(client, HttpEnd(lambda method, path: PageAnswer(200, "text/plain", path.encode())))
    client.fill()
    for path in (b"/1", b"/2"):
        client.feed(b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    assert client.paused
    assert client.received.endswith(b"\r\n\r\n/1")
    client.make_room()
    assert client.received.endswith(b"\r\n\r\n/2")


def test_a_source_waits_for_its_client_and_leaves_the_others_their_turn() -> None:
    async def test(bed: Bed) -> None:
        reader, _ = await bed.client(Serving.SOURCE)
        others, writer = await bed.client(Serving.ECHO)
        for _ in range(100):
            await reader.read(1 << 20)
            writer.write(b"x")
            assert await others.readexactly(1) == b"x"

    run(test)


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", 200, ""),
        (b"POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 200, "asked for: /p"),
        (b"GET /old HTTP/1.0\r\n\r\n", 200, "asked for: /old"),
        (b"GET /c HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 200, "asked for: /c"),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 405, "not a proxy"),
        (b"nonsense\r\n\r\n", 400, ""),
        (b"GET /cut HTTP/1.1\r\nHos", 400, ""),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000, 431, ""),
    ],
)
def test_other_requests(request_: bytes, status: int, body: str) -> None:
    async def test(bed: Bed) -> None:
        reader, writer = await bed.client(Serving.HTTP)
        writer.write(request_)
        writer.write_eof()
        head, _, rest = (await reader.read()).decode().partition("\r\n\r\n")
        assert int(head.split()[1]) == status
        assert body in rest
        assert bool(rest) == (b"HEAD" not in request_)

    run(test)


def test_a_client_that_waits_before_its_body_is_told_to_go_on() -> None:
    async def test(bed: Bed) -> None:
        reader, writer = await bed.client(Serving.HTTP)
        writer.write(
            b"POST /w HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(b"b")
        writer.write_eof()
        assert b"asked for: /w\n" in await reader.read()

    run(test)


def test_https_shows_its_certificate(tmp_path: Path) -> None:
    files = pki.init(tmp_path, server_names=("localhost",))
    context = server_context(TlsFiles(str(files.server_cert), str(files.server_key), ""))
    trusting = ssl.create_default_context(cafile=str(files.ca_cert))

    async def test(bed: Bed) -> None:
        port = bed.servers.serve(Serve(kind=Serving.HTTPS, port=0))
        reader, writer = await bed.connect(port, tls=trusting)
        writer.write(b"GET /safe HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
        assert b"from pod\nasked for: /safe\n" in await reader.read()

    run(test, context)


# The others.


def test_an_echo_gives_everything_back_and_ends_when_the_client_does() -> None:
    async def test(bed: Bed) -> None:
        reader, writer = await bed.client(Serving.ECHO)
        data = bytes(range(251)) * 20_000
        reading = asyncio.create_task(reader.read())
        writer.write(data)
        await writer.drain()
        writer.write_eof()
        assert await reading == data
        await bed.until(lambda: len(bed.servers.connections) == 0)

    run(test)


def test_a_source_sends_until_the_client_is_done() -> None:
    async def test(bed: Bed) -> None:
        reader, writer = await bed.client(Serving.SOURCE)
        await reader.readexactly(20_000_000)
        writer.write_eof()
        while await reader.read(1 << 20):
            pass
        await bed.until(lambda: len(bed.servers.connections) == 0)

    run(test)


def test_a_source_stops_when_its_client_resets() -> None:
    async def test(bed: Bed) -> None:
        reader, writer = await bed.client(Serving.SOURCE)
        await reader.readexactly(1_000_000)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await bed.until(lambda: len(bed.servers.connections) == 0)

    run(test)


@pytest.mark.parametrize("host", LOOPBACKS)
def test_who_says_whom_it_sees_by_tcp_and_udp(host: str) -> None:
    async def test(bed: Bed) -> None:
        port = bed.servers.serve(Serve(kind=Serving.WHO, port=0))
        reader, _ = await bed.connect(port, host)
        assert await reader.read() == f"pod saw {host}\n".encode()
        assert await ask_by_udp(HostPort(host, port)) == f"pod saw {host}\n".encode()

    run(test)


def test_who_needs_the_port_of_both() -> None:
    async def test(bed: Bed) -> None:
        port = bed.servers.serve(Serve(kind=Serving.WHO, port=0))
        loop = asyncio.get_running_loop()
        with pytest.raises(ConfigError, match=f"^who: cannot listen on UDP port {port}: already"):
            WhoSocket(loop, port, str.encode)

    run(test)


def test_a_sink_says_how_much_it_was() -> None:
    async def test(bed: Bed) -> None:
        reader, writer = await bed.client(Serving.SINK)
        for _ in range(3):
            writer.write(b"z" * 1_000_001)
            await writer.drain()
        writer.write_eof()
        assert await reader.read() == b"3000003\n"

    run(test)


# Bounds.


def test_one_connection_too_many_is_reset_and_the_others_stay() -> None:
    async def test(bed: Bed) -> None:
        bed.servers.connections = JoinedEnds(asyncio.get_running_loop(), at_most=1)
        port = bed.servers.serve(Serve(kind=Serving.ECHO, port=0))
        reader, writer = await bed.connect(port)
        await bed.until(lambda: bed.servers.connections.full)
        with pytest.raises(ConnectionResetError):
            late, _ = await bed.connect(port)
            await late.read()
        writer.write(b"still")
        assert await reader.readexactly(5) == b"still"

    run(test)


def test_a_silent_client_is_reset() -> None:
    async def test(bed: Bed) -> None:
        bed.servers.connections = JoinedEnds(asyncio.get_running_loop(), idle_s=0.01)
        with pytest.raises(ConnectionResetError):
            reader, _ = await bed.client(Serving.SINK)
            await reader.read()

    run(test)


class HandLoop:
    """The clock and the one timer of a loop, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self._call: Callable[[], None] | None = None
        self._due = 0.0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> HandLoop:
        self._call, self._due = call, self.now + delay
        return self

    def advance(self, seconds: float) -> None:
        self.now += seconds
        if self._call is not None and self._due <= self.now:
            call, self._call = self._call, None
            call()


def test_only_a_connection_without_a_byte_in_between_is_idle() -> None:
    loop = HandLoop()
    connections = JoinedEnds(cast(asyncio.AbstractEventLoop, loop), idle_s=600.0)
    moving, quiet = (MemoryEnd(), MemoryEnd()), (MemoryEnd(), MemoryEnd())
    over: list[str] = []
    connections.join(*moving, lambda: over.append("moving"))
    connections.join(*quiet, lambda: over.append("quiet"))
    for turn in range(3):
        moving[turn % 2].feed(b"x")
        loop.advance(601.0)
    assert over == ["quiet"]
    assert (quiet[0].aborted, quiet[1].aborted) == (Ending.TIMED_OUT, Ending.TIMED_OUT)
    assert moving[0].ending is None
    assert len(connections) == 1


# The command.


def test_nothing_to_serve_is_no_command() -> None:
    assert command(LabHost(name="empty", attachments=()), cert="c", key="k") == []


@pytest.mark.parametrize(("kind", "tls"), [(Serving.SINK, False), (Serving.HTTPS, True)])
def test_the_command_of_a_host(kind: Serving, tls: bool) -> None:
    serves = (Serve(kind=Serving.HTTP, port=80), Serve(kind=kind, port=99))
    argv = command(LabHost(name="pod", attachments=(), serves=serves), cert="c.crt", key="c.key")
    files = ["--cert", "c.crt", "--key", "c.key"] if tls else []
    assert argv == [
        *(sys.executable, "-P", "-m", "isthmus.lab.servers", "--name", "pod"),
        *files,
        *("http=80", f"{kind.value}=99"),
    ]


def test_the_program_says_when_it_is_ready_and_ends_when_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    host = LabHost(name="pod", attachments=(), serves=(Serve(kind=Serving.ECHO, port=port),))
    argv = command(host, cert="", key="")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=ENVIRONMENT) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == b"servers: ready\n"
            with socket.create_connection(("127.0.0.1", port), LIMIT_S) as client:
                client.sendall(b"hello")
                assert client.recv(5, socket.MSG_WAITALL) == b"hello"
                program.send_signal(signal.SIGTERM)
                assert program.wait(LIMIT_S) == 0
        finally:
            program.kill()


def test_a_port_in_use_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--name", "pod", f"echo={port}"]) == 2
    assert capfd.readouterr() == (
        "",
        f"servers: echo: cannot listen on port {port}: already in use\n",
    )


def test_https_without_a_certificate_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--name", "pod", "https=8443"]) == 2
    assert capfd.readouterr().err == "servers: https needs --cert and --key\n"


@pytest.mark.parametrize("what", ["gopher=70", "http", "http=", "http=0", "http=65536", "http=x"])
def test_what_it_cannot_serve(what: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--name", "pod", what])
    assert ended.value.code == 2
    assert f"{what!r} is not KIND=PORT" in capfd.readouterr().err


def test_addresses_are_written_as_people_know_them() -> None:
    assert written(("::ffff:10.0.0.1", 80, 0, 0)) == "10.0.0.1:80"
    assert written(("fd00::1", 80, 0, 0)) == "[fd00::1]:80"
    assert plain("::ffff:0:1") == "::ffff:0:1"
