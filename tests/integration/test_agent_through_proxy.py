"""Agents behind an HTTP proxy: HTTPS_PROXY and NO_PROXY, with real programs and a small proxy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from clients import LIMIT_S, MIB, Client, echo_target, free_port, receive_all, send_all, tunnel
from programs import ENVIRONMENT, Program, Programs
from stack import wait_until

from isthmus.tools.pki import making as pki

# RFC 6761 §6.4: this name never resolves. The proxy knows it, the agent does not.
NAME = "server.invalid"
USER, PASSWORD = "agent-7", "pass word/7:!"
ENCODED = "pass%20word%2F7%3A!"
VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy")


class Proxy:
    """An HTTP proxy that wants a password, on an event loop of its own."""

    def __init__(self, files: pki.PkiFiles, scheme: str) -> None:
        self.scheme = scheme
        self.asked: list[str] = []
        self.refused = 0
        self.carried = 0
        self._tls: ssl.SSLContext | None = None
        if scheme == "https":
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(files.server_cert, files.server_key)
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(LIMIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(LIMIT_S)

    def url(self, password: str = ENCODED) -> str:
        return f"{self.scheme}://{USER}:{password}@localhost:{self.port}"

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._accept,
            "127.0.0.1",
            0,
            ssl=self._tls,
            ssl_handshake_timeout=LIMIT_S if self._tls else None,
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        # Handshakes under way end by themselves: one that is cancelled before it began would leave
        # its socket open.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._serving:
                task.cancel()
            await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        for writer in self._writers:
            writer.transport.abort()  # a close over TLS waits for an answer, beyond this loop

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self._serving.add(self._loop.create_task(self._serve_one(reader, writer)))

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._answer(reader, writer)
        writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, *fields = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pair = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if f"proxy-authorization: basic {pair}".lower() not in map(str.lower, fields):
            self.refused += 1
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            return
        method, target, _ = request.split(" ")
        assert method == "CONNECT"
        self.asked.append(target)
        host, _, port = target.rpartition(":")
        assert host == NAME
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._copy(reader, far_writer))
            tasks.create_task(self._copy(far_reader, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    self.carried += len(data)
                    writer.write(data)
                    await writer.drain()
            writer.close()
        except asyncio.CancelledError:
            writer.transport.abort()  # the loop ends: nothing would flush what is left
            raise


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> pki.PkiFiles:
    """A server, and a proxy, with names of their own."""
    names = (NAME, "localhost", "127.0.0.1")
    return pki.init(tmp_path_factory.mktemp("pki"), server_names=names)


@pytest.fixture
def behind(files: pki.PkiFiles, tmp_path: Path) -> Iterator[Programs]:
    with Programs(files, tmp_path) as started:
        yield started


@pytest.fixture
def setenv(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Set a variable of the programs; they have no proxy until then."""
    for name in VARIABLES:
        monkeypatch.delitem(ENVIRONMENT, name, raising=False)

    def setenv(name: str, value: str) -> None:
        monkeypatch.setitem(ENVIRONMENT, name, value)

    return setenv


Setenv = Callable[[str, str], None]


def start(programs: Programs, server: Program, *more: str, host: str = NAME) -> Program:
    """Start an agent of a server that it knows by name."""
    flags = programs.agent_flags(server.port("agent_port"))
    return programs.start("agent", *flags, f"--proxy-server-host={host}", *more)


def lines(program: Program, text: str) -> list[str]:
    return [line for line in program.log.splitlines() if text in line]


def shows_no_secret(program: Program) -> None:
    pair = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    for secret in (PASSWORD, ENCODED, pair, "wrong-word"):
        assert secret not in program.log


def carries(programs: Programs, size: int = 5) -> None:
    with echo_target() as target, tunnel(programs.connect_uds(), target.name) as client:
        client.send(b"hello")
        assert client.read_exactly(5) == b"hello"
        moves(client, size)


def moves(client: Client, size: int) -> None:
    """Send so much, and have it back."""
    sums: list[str] = []
    sending = threading.Thread(target=lambda: sums.append(send_all(client, 7, size)))
    sending.start()
    got, checksum = receive_all(client)
    sending.join(LIMIT_S)
    assert got == size and sums == [checksum]


@pytest.mark.parametrize("kind", ["mux", "grpc"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_agent_links_through_its_proxy(
    behind: Programs, files: pki.PkiFiles, setenv: Setenv, scheme: str, kind: str
) -> None:
    with pytest.raises(socket.gaierror):
        socket.getaddrinfo(NAME, 1)
    with Proxy(files, scheme) as proxy:
        setenv("HTTPS_PROXY", proxy.url())
        setenv("SSL_CERT_FILE", str(files.ca_cert))  # whom to trust for the proxy itself
        server = behind.server()
        agent = start(behind, server, f"--link={kind}")
        agent.wait_log("] linked")
        carries(behind, 8 * MIB)
        assert proxy.asked == [f"{NAME}:{server.port('agent_port')}"]
        assert proxy.carried > 16 * MIB and not proxy.refused
        agent.process.terminate()
        assert agent.wait_exit() == 0
        shows_no_secret(agent)


def test_no_proxy_is_for_who_is_reached_directly(
    behind: Programs, files: pki.PkiFiles, setenv: Setenv
) -> None:
    with Proxy(files, "http") as proxy:
        setenv("HTTPS_PROXY", proxy.url())
        setenv("NO_PROXY", "elsewhere.example, .invalid")
        server = behind.server()
        alias = f"--host-alias={NAME}=127.0.0.1"
        start(behind, server, alias).wait_log("] linked")
        carries(behind)
        assert not proxy.asked and not proxy.refused


def test_loopback_needs_no_exception(behind: Programs, files: pki.PkiFiles, setenv: Setenv) -> None:
    with Proxy(files, "http") as proxy:
        setenv("HTTPS_PROXY", proxy.url())
        server = behind.server()
        start(behind, server, host="127.0.0.1").wait_log("] linked")
        assert not proxy.asked and not proxy.refused


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_wrong_password_is_one_line_without_it(
    behind: Programs, files: pki.PkiFiles, setenv: Setenv, scheme: str
) -> None:
    with Proxy(files, scheme) as proxy:
        setenv("HTTPS_PROXY", proxy.url("wrong-word"))
        setenv("SSL_CERT_FILE", str(files.ca_cert))
        server = behind.server()
        agent = start(behind, server)
        wait_until(lambda: proxy.refused > 2, "it tries again")
        (line,) = lines(agent, "cannot link to the server")
        assert f"proxy {scheme}://localhost:{proxy.port}: answered HTTP/1.1 407 Proxy" in line
        assert f'server="{NAME}:{server.port("agent_port")}"' in line
        assert agent.process.poll() is None and not proxy.asked
        shows_no_secret(agent)


def test_a_proxy_that_nobody_trusts(behind: Programs, files: pki.PkiFiles, setenv: Setenv) -> None:
    with Proxy(files, "https") as proxy:
        setenv("HTTPS_PROXY", proxy.url())
        setenv("SSL_CERT_FILE", str(files.agent_cert))
        agent = start(behind, behind.server())
        agent.wait_log("cannot link to the server")
        (line,) = lines(agent, "cannot link to the server")
        assert f"proxy https://localhost:{proxy.port}: its certificate: " in line
        assert not proxy.asked and not proxy.refused
        shows_no_secret(agent)


def test_a_proxy_that_is_not_there(behind: Programs, setenv: Setenv) -> None:
    port = free_port()
    setenv("HTTPS_PROXY", f"localhost:{port}")
    agent = start(behind, behind.server())
    agent.wait_log("cannot link to the server")
    (line,) = lines(agent, "cannot link to the server")
    assert f"proxy http://localhost:{port}: connection refused" in line


def test_an_address_that_is_none_is_no_start(behind: Programs, setenv: Setenv) -> None:
    setenv("HTTPS_PROXY", f"socks5://{USER}:{ENCODED}@localhost:1080")
    agent = behind.start("agent", *behind.agent_flags(1))
    assert agent.wait_exit() == 2
    (line,) = agent.log.splitlines()
    assert line == "isthmus: HTTPS_PROXY: the scheme of a proxy must be http or https"
