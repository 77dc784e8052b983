"""Both sidecars in front of a real server and agent, a guest API and DNS, and an origin server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from clients import LIMIT_S, Client
from lifecycles import StartedSidecar
from sidecar_bed import DNS, FakeServices, StubDns, Zone
from stack import Stack

from isthmus.programs.https_proxy import PROGRAM as HTTPS_PROXY
from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.sidecar.metrics import Unserved
from isthmus.programs.socks5_proxy import PROGRAM as SOCKS5_PROXY
from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings
from isthmus.settings.options import compose
from isthmus.wire import socks5

#: A name of the guest cluster, which leads to loopback as the agent sees it.
NAME = "origin.guest.example"


class ProxiesBed:
    """A guest cluster, and sidecars that are started on demand."""

    def __init__(self, stack: Stack, directory: Path) -> None:
        self.stack = stack
        self.directory = directory
        self.zone = Zone()
        self.zone.put(NAME, "A", "127.0.0.1")
        self._started: list[tuple[StartedSidecar, asyncio.Task[None]]] = []

    def __enter__(self) -> Self:
        self.stack.run(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for sidecar, task in self._started:
                self.stack.run(self._stop(sidecar, task))
        finally:
            self.stack.run(self._close())

    async def _open(self) -> None:
        self.api = FakeServices(self.directory)
        self.dns = StubDns(self.zone.reply)
        await self.api.start()
        await self.dns.start()
        port = self.dns.at.port
        ports = [{"name": "dns", "port": port, "protocol": "UDP"}, {"name": "tcp", "port": port}]
        self.api.put(DNS, "127.0.0.1", ports=ports)

    async def _close(self) -> None:
        await self.dns.stop()
        await self.api.close()

    @staticmethod
    async def _stop(sidecar: StartedSidecar, task: asyncio.Task[None]) -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await sidecar.stop()
        assert not len(sidecar.connections)
        assert not len(sidecar.connections.places)

    @property
    def _flags(self) -> dict[str, Any]:
        return {
            "konnectivity_uds": self.stack.server.settings.uds_name,
            "serving_port": 0,
            "health_bind_address": "127.0.0.1",
            "health_port": 0,
            "admin_port": 0,
            "kubeconfig": self.api.kubeconfig(),
            "dial_timeout_s": LIMIT_S,
        }

    @property
    def tls_flags(self) -> dict[str, Any]:
        """How the server is reached by TLS instead."""
        files = self.stack.files
        return {
            "konnectivity_uds": "",
            "konnectivity_hostname": "localhost",
            "konnectivity_port": self.stack.server.doors.ports["http-connect"],
            "ca_cert_path": str(files.ca_cert),
            "tls_cert_path": str(files.client_cert),
            "tls_key_path": str(files.client_key),
        }

    def socks5(self, **settings: Any) -> StartedSidecar:
        """Start a SOCKS5 sidecar on free ports; it resolves by the guest's DNS."""
        given = {**self._flags, "resolve_from_guest_cluster_dns": True, **settings}
        made = compose(Socks5ProxySettings, **given)
        made.validate()
        return self._start(self.stack.do(lambda: StartedSidecar(SOCKS5_PROXY, made)))

    def https(self, **settings: Any) -> StartedSidecar:
        """Start an HTTP proxy sidecar on free ports."""
        made = compose(HttpsProxySettings, **{**self._flags, **settings})
        made.validate()
        return self._start(self.stack.do(lambda: StartedSidecar(HTTPS_PROXY, made)))

    def _start(self, sidecar: StartedSidecar) -> StartedSidecar:
        async def start() -> asyncio.Task[None]:
            await sidecar.start()
            return asyncio.create_task(sidecar.watch())

        self._started.append((sidecar, self.stack.run(start())))
        return sidecar

    # Asking.

    def unserved(self, sidecar: StartedSidecar) -> dict[Unserved, int]:
        """Who was not served so far."""
        found = self.stack.do(lambda: dict(sidecar.metrics.unserved))
        return {why: count for why, count in found.items() if count}

    def wait_unserved(self, sidecar: StartedSidecar, why: Unserved, count: int = 1) -> None:
        """Wait until so many were not served for this reason, and none for another."""
        self.stack.wait(lambda: sidecar.metrics.unserved[why] >= count, why.value)
        assert self.unserved(sidecar) == {why: count}

    def wait_empty(self, sidecar: StartedSidecar) -> None:
        """Wait until nobody is connected."""
        self.stack.wait(lambda: not len(sidecar.connections), "nobody is connected")


def port_of(sidecar: StartedSidecar) -> int:
    """Where a sidecar listens."""
    return sidecar.listeners[0].port


def connect(sidecar: StartedSidecar) -> Client:
    """Connect to a sidecar, and say nothing yet."""
    return Client(socket.create_connection(("127.0.0.1", port_of(sidecar)), LIMIT_S))


def greet(client: Client, methods: bytes = b"\0") -> socks5.Choice:
    """Greet as SOCKS5 does."""
    client.send(socks5.Greeting(methods).to_bytes())
    choice = socks5.take_choice(bytearray(client.read_exactly(2)))
    assert choice is not None
    return choice


def ask(client: Client, host: str, port: int, command: int = 1) -> socks5.Reply:
    """Ask for a target; the reply."""
    client.send(socks5.Request(command, host, port).to_bytes())
    return read_reply(client)


def read_reply(client: Client) -> socks5.Reply:
    """Read a reply, and nothing of what follows it."""
    buffer = bytearray()
    while True:
        buffer += client.read_exactly(1)
        reply = socks5.take_reply(buffer)
        if reply is not None:
            return reply


def open_socks5(sidecar: StartedSidecar, host: str, port: int) -> Client:
    """A tunnel by SOCKS5."""
    client = connect(sidecar)
    try:
        assert greet(client).method == 0
        reply = ask(client, host, port)
        assert reply.code == 0, reply
    except BaseException:
        client.close()
        raise
    return client


def curl(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run curl; its exit code, what it printed, and what it said."""
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "20", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S + 5,
        env={"PATH": "/usr/bin:/bin", **(env or {})},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Origin

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline() not in (b"\r\n", b""):
                continue
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _answer(self) -> None:
        body = self._body()
        said = {
            "method": self.command,
            "path": self.path,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": hashlib.sha256(body).hexdigest(),
            "size": len(body),
        }
        if self.path.startswith("/chunked"):
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for _ in range(3):
                self.wfile.write(b"5\r\nhello\r\n")
            self.wfile.write(b"0\r\n\r\n")
            return
        text = json.dumps(said).encode()
        if self.path.startswith("/big/"):
            text = bytes(int(self.path.removeprefix("/big/")))
        self.send_response(200)
        self.send_header("X-Origin", "yes")
        self.send_header("Keep-Alive", "timeout=5")
        if self.path.startswith("/until-close"):
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)
        if self.path.startswith("/last"):  # without having said so
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_HEAD = do_OPTIONS = do_DELETE = _answer


class Origin(ThreadingHTTPServer):
    """An HTTP server that tells what it was asked."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.connections = 0
        self.port = self.server_address[1]

    def handle_error(self, *_: object) -> None:
        """Clients may leave."""


@contextlib.contextmanager
def origin_server() -> Iterator[Origin]:
    """A running one."""
    with Origin() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(LIMIT_S)
