"""WebSockets of Kubernetes clients (exec, port-forward) through the service, and their proxy."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import kubernetes
import kubernetes_asyncio
import kubernetes_asyncio.stream
import pytest
from aiohttp import web
from client_bed import all_doors, config, opened, run
from clients import LIMIT_S, Target, free_port
from kubernetes.stream import portforward, stream
from stack import Stack, wait_until

from isthmus.client import UnknownNetworkError
from isthmus.client.blocking import BlockingService
from isthmus.client.kubernetes import use, use_async
from isthmus.tools.pki.making import PkiFiles

EXEC = "/api/v1/namespaces/default/pods/web/exec"
FORWARD = "/api/v1/namespaces/default/pods/web/portforward"


@pytest.fixture(scope="module")
def running(certificates: PkiFiles) -> Iterator[Stack]:
    with all_doors(certificates) as stack:
        yield stack


@pytest.fixture
def blocking(stack: Stack) -> Iterator[BlockingService]:
    with BlockingService(config(stack)) as service:
        yield service


async def exec_(request: web.Request) -> web.WebSocketResponse:
    """A command that echoes its input once: stdout is channel 1, its result channel 3."""
    answer = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
    await answer.prepare(request)
    said = " ".join(request.query.getall("command"))
    await answer.send_bytes(b"\x01" + said.encode())
    if request.query["stdin"].lower() == "true":
        message = await answer.receive()
        data = message.data if isinstance(message.data, bytes) else message.data.encode()
        await answer.send_bytes(b"\x01" + data[1:].upper())
    await answer.send_bytes(b'\x03{"status": "Success"}')
    await answer.close()
    return answer


async def forward(request: web.Request) -> web.WebSocketResponse:
    """One port, whose channels begin with its number; what comes is sent back."""
    answer = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
    await answer.prepare(request)
    port = int(request.query["ports"]).to_bytes(2, "little")
    await answer.send_bytes(b"\x00" + port)
    await answer.send_bytes(b"\x01" + port)
    async for message in answer:
        await answer.send_bytes(bytes(message.data))
    return answer


@contextlib.contextmanager
def api(files: PkiFiles) -> Iterator[str]:
    """An API server that only executes and forwards."""
    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_get(EXEC, exec_)
    app.router.add_get(FORWARD, forward)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server_cert, files.server_key)
    port = free_port()

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()

    async def stop() -> None:
        await runner.cleanup()
        while len(asyncio.all_tasks()) > 1:  # aiohttp closes TLS in the background
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(start(), loop).result(LIMIT_S)
        yield f"https://localhost:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT_S)
        loop.close()


def targets(stack: Stack) -> list[str]:
    return [it["target"] for it in stack.snapshot(stack.server)["tunnels"]]


def configured(module: Any, url: str, files: PkiFiles) -> Any:
    configuration = module.client.Configuration(host=url)
    configuration.ssl_ca_cert = str(files.ca_cert)
    return configuration


# kubernetes.stream leaves the sockets of finished commands to the collector.
@pytest.mark.filterwarnings("ignore:unclosed <s:ResourceWarning")
@pytest.mark.parametrize("kind", ["connect-uds", "payload-tls"])
def test_the_official_clients_streams(
    stack: Stack,
    blocking: BlockingService,
    kind: str,
    certificates: PkiFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_PROXY", "localhost")
    configuration = configured(kubernetes, "", certificates)
    with api(certificates) as url, kubernetes.client.ApiClient(configuration) as client:
        configuration.host = url
        use(client, blocking, kind)
        assert not configuration.proxy  # another client's may be the same
        pods: Any = kubernetes.client.CoreV1Api(client)
        said = stream(
            pods.connect_get_namespaced_pod_exec, "web", "default", command=["echo", "hi"],
            stderr=True, stdin=False, stdout=True, tty=False,
        )  # fmt: skip
        assert "hi" in said
        shell = stream(
            pods.connect_get_namespaced_pod_exec, "web", "default", command=["cat"],
            stderr=True, stdin=True, stdout=True, tty=False, _preload_content=False,
        )  # fmt: skip
        assert url.removeprefix("https://") in targets(stack)
        shell.write_stdin("quiet")
        shell.run_forever(timeout=LIMIT_S)
        assert "QUIET" in shell.read_stdout()
        assert shell.returncode == 0
        shell.close()
        ports = portforward(
            pods.connect_get_namespaced_pod_portforward, "web", "default", ports="80"
        )
        sock = ports.socket(80)
        sock.settimeout(LIMIT_S)
        sock.sendall(b"through")
        assert sock.recv(100) == b"through"
        sock.close()
        del said, shell, ports, sock
        gc.collect()


def test_kubernetes_asyncios_streams(stack: Stack, certificates: PkiFiles) -> None:
    async def test() -> None:
        with api(certificates) as url:
            configuration = configured(kubernetes_asyncio, url, certificates)
            async with opened(config(stack)) as service:
                made = kubernetes_asyncio.stream.WsApiClient(configuration)
                async with made as client:
                    await use_async(client, service.dialer("connect-tls"))
                    pods: Any = kubernetes_asyncio.client.CoreV1Api(client)
                    said = await pods.connect_get_namespaced_pod_exec(
                        "web", "default", command=["echo", "hi"],
                        stderr=True, stdin=False, stdout=True, tty=False,
                    )  # fmt: skip
                    assert said == "echo hi"
                    shell = await pods.connect_get_namespaced_pod_exec(
                        "web", "default", command="cat", stderr=True, stdin=True, stdout=True,
                        tty=False, _preload_content=False,
                    )  # fmt: skip
                    async with shell as socket_:
                        names = await asyncio.to_thread(targets, stack)
                        assert url.removeprefix("https://") in names
                        await socket_.send_bytes(b"\0quiet")
                        await socket_.receive()
                        assert (await socket_.receive()).data == b"\x01QUIET"
                await asyncio.sleep(0.05)  # aiohttp closes TLS in the background

    run(test)


# The proxy by itself.


def ask(proxy: Any, target: str, *lines: str, more: bytes = b"") -> tuple[socket.socket, bytes]:
    """Send a CONNECT; the connection and the head of the answer."""
    sock = socket.create_connection((proxy.host, proxy.port), LIMIT_S)
    head = "".join(f"{line}\r\n" for line in (f"CONNECT {target} HTTP/1.1", "Host: x", *lines))
    sock.sendall(head.encode() + b"\r\n" + more)
    got = b""
    while b"\r\n\r\n" not in got:
        data = sock.recv(65536)
        if not data:
            break
        got += data
    return sock, got


@pytest.mark.parametrize("kind", ["direct", "connect-tls"])
def test_a_proxy(stack: Stack, blocking: BlockingService, kind: str) -> None:
    proxy = blocking.proxy(kind)
    password = f"Proxy-Authorization: {proxy.authorization}"
    assert proxy.password not in repr(proxy)
    with Target() as target:
        for wrong in ((), ("Proxy-Authorization: Basic Og==",), ("Proxy-Authorization: é",)):
            sock, said = ask(proxy, target.name, *wrong)
            with sock:
                assert said.startswith((b"HTTP/1.1 407 ", b"HTTP/1.1 400 ")), said
        sock, said = ask(proxy, target.name, password, more=b"early")
        with sock, target.accept() as far:
            assert said == b"HTTP/1.1 200 Connection Established\r\n\r\n"
            sock.shutdown(socket.SHUT_WR)
            assert far.read_to_end() == b"early"
            far.send(b"answer")
            far.half_close()
            assert sock.recv(100) == b"answer"
            assert sock.recv(100) == b""
        sock, _ = ask(proxy, target.name, password)
        with sock:
            target.accept().reset()
            with pytest.raises(ConnectionResetError):
                sock.recv(100)
        sock, said = ask(proxy, f"127.0.0.1:{free_port()}", password)
        with sock:
            assert said.startswith(b"HTTP/1.1 502 ") and b"connection refused" in said
        sock, said = ask(proxy, "nonsense", password)
        with sock:
            assert said.startswith(b"HTTP/1.1 400 ")
        left = socket.create_connection((proxy.host, proxy.port), LIMIT_S)
        left.close()
        open_one, _ = ask(proxy, target.name, password)
        with open_one, target.accept():
            blocking.close()
            with pytest.raises(ConnectionResetError):
                open_one.recv(100)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((proxy.host, proxy.port), LIMIT_S)
    with pytest.raises(RuntimeError, match="closed"):
        blocking.proxy(kind)
    wait_until(lambda: not targets(stack), "every tunnel ends")


def test_a_proxy_of_no_network(blocking: BlockingService) -> None:
    with pytest.raises(UnknownNetworkError):
        blocking.proxy("nowhere")
