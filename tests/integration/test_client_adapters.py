"""Each adapter against a real HTTP and HTTPS server, through a real server and agent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import http.server
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import aiohttp
import httpx
import kubernetes
import kubernetes_asyncio
import pytest
import requests
import urllib3
from client_bed import KINDS, all_doors, config, opened, run
from clients import LIMIT_S, Target, echo_target, free_port, full_target
from stack import Stack

from isthmus.client import DialError, DialFailure, NetworkContext, UnknownNetworkError
from isthmus.client.aiohttp import Connector
from isthmus.client.blocking import BlockingService
from isthmus.client.httpx import AsyncTransport
from isthmus.client.kubernetes import use, use_async
from isthmus.client.urllib3 import PoolManager, requests_adapter
from isthmus.tools.pki.making import PkiFiles

PAGE = b"page " * 50_000


@pytest.fixture(scope="module")
def running(certificates: PkiFiles) -> Iterator[Stack]:
    with all_doors(certificates) as stack:
        yield stack


class Handler(http.server.BaseHTTPRequestHandler):
    """A few pages, and what the Kubernetes API says to a list of namespaces."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path in ("/cut", "/short"):
            self.send_response(200)
            if self.path == "/cut":  # an answer that ends where the connection does
                self.send_header("Connection", "close")
            else:
                self.send_header("Content-Length", "8")
            self.end_headers()
            self.wfile.write(b"half")
            self.wfile.flush()
            linger = b"\x01\0\0\0\0\0\0\0"
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            # Its makefile() counts as a user, too: only a real close() resets.
            os.dup2(os.open(os.devnull, os.O_RDWR), self.connection.fileno())
            self.close_connection = True
        elif self.path.startswith("/api/v1/namespaces"):
            names = [{"metadata": {"name": name}} for name in ("default", "kube-system")]
            kinds = {"kind": "NamespaceList", "apiVersion": "v1", "metadata": {}, "items": names}
            self._answer(json.dumps(kinds).encode(), "application/json")
        else:
            self._answer(PAGE, "text/plain")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])), "text/plain")

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Port", str(self.client_address[1]))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Web(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: Any) -> None:
        pass  # a client that does not want it


@contextlib.contextmanager
def serving(files: PkiFiles, scheme: str) -> Iterator[str]:
    server = Web(("127.0.0.1", 0), Handler)
    if scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.server_cert, files.server_key)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"{scheme}://localhost:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(LIMIT_S)


@pytest.fixture(scope="module", params=["http", "https"])
def web(request: pytest.FixtureRequest, certificates: PkiFiles) -> Iterator[str]:
    with serving(certificates, request.param) as url:
        yield url


@pytest.fixture(params=["connect-uds", "packet-tls", "payload-tls", "direct"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def trust(certificates: PkiFiles) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.ca_cert))


@pytest.fixture
def blocking(stack: Stack) -> Iterator[BlockingService]:
    with BlockingService(config(stack)) as service:
        yield service


# httpx.


def test_httpx(stack: Stack, web: str, kind: str, trust: ssl.SSLContext) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            transport = AsyncTransport(service.dialer(kind), verify=trust)
            async with httpx.AsyncClient(transport=transport) as client:
                first = await client.get(f"{web}/page")
                assert first.content == PAGE
                again = await client.post(f"{web}/echo", content=b"x" * 500_000)
                assert again.content == b"x" * 500_000
                assert again.headers["X-Port"] == first.headers["X-Port"]  # the same connection
                pages = await asyncio.gather(*(client.get(f"{web}/{n}") for n in range(5)))
                assert all(page.content == PAGE for page in pages)
                with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                    await client.get(f"{web}/cut")
                async with client.stream("GET", f"{web}/page") as partly:
                    assert partly.status_code == 200

    run(test)


def test_httpx_errors_are_its_own(stack: Stack) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            transport = AsyncTransport(service.dialer("connect-uds"))
            async with httpx.AsyncClient(transport=transport) as client:
                with pytest.raises(httpx.ConnectError, match="connection refused"):
                    await client.get(f"http://127.0.0.1:{free_port()}/")
                with full_target() as target, pytest.raises(httpx.ConnectTimeout):
                    await client.get(f"http://{target.name}/", timeout=0.2)
                with Target() as silent, pytest.raises(httpx.ReadTimeout):
                    await client.get(f"http://{silent.name}/", timeout=0.2)
                with echo_target() as echo, pytest.raises(httpx.ConnectError):
                    await client.get(f"https://{echo.name}/")

    run(test)


# aiohttp.


def test_aiohttp(stack: Stack, web: str, kind: str, trust: ssl.SSLContext) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            connector = Connector(service.dialer(kind), ssl=trust)
            async with aiohttp.ClientSession(connector=connector) as session:
                async with session.get(f"{web}/page") as first:
                    assert await first.read() == PAGE
                async with session.post(f"{web}/echo", data=b"x" * 500_000) as again:
                    assert await again.read() == b"x" * 500_000
                assert again.headers["X-Port"] == first.headers["X-Port"]
                # Not /cut: there aiohttp takes a reset for the end, without us, too.
                with pytest.raises(aiohttp.ClientError):
                    async with session.get(f"{web}/short") as cut:
                        await cut.read()
            await asyncio.sleep(0.05)  # aiohttp closes TLS in the background

    run(test)


def test_aiohttp_errors_are_its_own(stack: Stack, certificates: PkiFiles) -> None:
    async def test() -> None:
        async with opened(config(stack)) as service:
            connector = Connector(service.dialer("connect-uds"))
            async with aiohttp.ClientSession(connector=connector) as session:
                with pytest.raises(aiohttp.ClientConnectorError) as refused:
                    await session.get(f"http://127.0.0.1:{free_port()}/")
                assert refused.value.errno == errno.ECONNREFUSED
                limit = aiohttp.ClientTimeout(sock_connect=0.2)
                with full_target() as target, pytest.raises(aiohttp.ConnectionTimeoutError):
                    await session.get(f"http://{target.name}/", timeout=limit)
                with serving(certificates, "https") as url:
                    with pytest.raises(aiohttp.ClientConnectorCertificateError):
                        await session.get(url)
                    async with session.get(url, ssl=False) as unverified:
                        assert unverified.status == 200
                    with pytest.raises(aiohttp.ServerFingerprintMismatch):
                        await session.get(url, ssl=aiohttp.Fingerprint(bytes(32)))
                with pytest.raises(aiohttp.ClientError, match="exclude each other"):
                    await session.get("http://127.0.0.1:1/", proxy="http://127.0.0.1:2")
            await asyncio.sleep(0.05)

    run(test)


# Blocking sockets, urllib3, requests.


@pytest.mark.parametrize("kind", KINDS)
def test_a_blocking_socket(stack: Stack, blocking: BlockingService, kind: str) -> None:
    with Target() as target:
        with blocking.connect(kind, target.name) as sock, target.accept() as far:
            sock.sendall(b"question")
            sock.shutdown(socket.SHUT_WR)
            assert far.read_to_end() == b"question"
            far.send(b"answer")
            far.half_close()
            assert sock.recv(100) == b"answer"
            assert sock.recv(100) == b""
        with blocking.connect(kind, target.name) as sock:
            far = target.accept()
            far.send(b"half")
            assert sock.recv(100) == b"half"
            far.reset()
            with pytest.raises(ConnectionResetError):
                sock.recv(100)


def test_blocking_failures(stack: Stack, blocking: BlockingService) -> None:
    with pytest.raises(UnknownNetworkError, match="Unknown network 'nowhere'"):
        blocking.connect("nowhere", "127.0.0.1:1")
    with pytest.raises(DialError) as failed:
        blocking.connect(NetworkContext("direct"), f"127.0.0.1:{free_port()}")
    assert failed.value.reason is DialFailure.REFUSED
    with full_target() as target, pytest.raises(DialError) as late:
        blocking.connect("connect-uds", target.name, 0.2)
    assert late.value.reason is DialFailure.TIMED_OUT
    blocking.close()
    with pytest.raises(RuntimeError, match="closed"):
        blocking.connect("direct", "127.0.0.1:1")


def test_many_threads(stack: Stack, blocking: BlockingService) -> None:
    failures: list[BaseException] = []

    def talk(name: str, number: int) -> None:
        try:
            word = bytes([number]) * 300_000
            with blocking.connect("connect-tls", name) as sock:
                sender = threading.Thread(target=sock.sendall, args=(word,))
                sender.start()
                got = bytearray()
                while len(got) < len(word):
                    got += sock.recv(65536)
                sender.join(LIMIT_S)
            assert got == word
        except BaseException as exc:
            failures.append(exc)

    with echo_target() as target:
        threads = [threading.Thread(target=talk, args=(target.name, n)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
    assert not failures


def test_urllib3(
    stack: Stack, blocking: BlockingService, web: str, kind: str, certificates: PkiFiles
) -> None:
    with PoolManager(blocking, kind, ca_certs=str(certificates.ca_cert), retries=False) as manager:
        first = manager.request("GET", f"{web}/page")
        assert first.data == PAGE
        again = manager.request("POST", f"{web}/echo", body=b"x" * 500_000)
        assert again.data == b"x" * 500_000
        assert again.headers["X-Port"] == first.headers["X-Port"]
        with pytest.raises(urllib3.exceptions.NewConnectionError, match="connection refused"):
            manager.request("GET", f"http://127.0.0.1:{free_port()}/")
        with full_target() as target, pytest.raises(urllib3.exceptions.ConnectTimeoutError):
            manager.request("GET", f"http://{target.name}/", timeout=0.2)
        if web.startswith("http:"):  # SSLSocket takes a cut for an end: Python's choice
            with pytest.raises(urllib3.exceptions.HTTPError):
                manager.request("GET", f"{web}/cut")


def test_requests(
    stack: Stack,
    blocking: BlockingService,
    web: str,
    kind: str,
    certificates: PkiFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    with requests.Session() as session:
        for scheme in ("http://", "https://"):
            session.mount(scheme, requests_adapter(blocking, kind))
        session.verify = str(certificates.ca_cert)
        assert session.get(f"{web}/page").content == PAGE
        assert session.post(f"{web}/echo", data=b"y" * 100_000).content == b"y" * 100_000
        with pytest.raises(requests.exceptions.ConnectionError, match="connection refused"):
            session.get(f"http://127.0.0.1:{free_port()}/")


# Kubernetes.


def test_the_official_kubernetes_client(
    stack: Stack, blocking: BlockingService, web: str, kind: str, certificates: PkiFiles
) -> None:
    configuration = kubernetes.client.Configuration(host=web)
    configuration.ssl_ca_cert = str(certificates.ca_cert)
    with kubernetes.client.ApiClient(configuration) as client:
        use(client, blocking, NetworkContext(kind, user="alice"))
        found = kubernetes.client.CoreV1Api(client).list_namespace()
        assert [item.metadata.name for item in found.items] == ["default", "kube-system"]


def test_kubernetes_asyncio(stack: Stack, web: str, kind: str, certificates: PkiFiles) -> None:
    async def test() -> None:
        configuration = kubernetes_asyncio.client.Configuration(host=web)
        configuration.ssl_ca_cert = str(certificates.ca_cert)
        async with opened(config(stack)) as service:
            async with kubernetes_asyncio.client.ApiClient(configuration) as client:
                await use_async(client, service.dialer(kind))
                api = kubernetes_asyncio.client.CoreV1Api(client)
                found = await api.list_namespace()
                assert [item.metadata.name for item in found.items] == ["default", "kube-system"]
            await asyncio.sleep(0.05)

    run(test)
