"""An apiserver proxy in this process, on the event loop of a thread of its own, and upstreams."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

import uvloop
from clients import LIMIT_S, Client
from lifecycles import StartedProxy
from stack import wait_until

from isthmus.programs.apiserver_proxy.metrics import ProxyRefusal
from isthmus.programs.apiserver_proxy.settings import ApiserverProxySettings
from isthmus.settings.options import compose
from isthmus.tools.pki import making as pki

T = TypeVar("T")


class Upstream:
    """A TLS server that answers a check with ``status``, or hangs, and echoes what follows ``!``.

    What comes before TLS, a PROXY header, is kept in ``heads`` when ``head_bytes`` says how much.
    """

    def __init__(self, files: pki.PkiFiles, *, port: int = 0, head_bytes: int = 0) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(files.server_cert, files.server_key)
        self.status = 200
        self.hangs = False
        self._killed = False
        self.requests: list[bytes] = []
        self.heads: list[bytes] = []
        self._head_bytes = head_bytes
        self._listener = socket.create_server(("127.0.0.1", port), backlog=1024)
        self.port = int(self._listener.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def open(self) -> int:
        """How many connections are open."""
        with self._lock:
            return len(self._open)

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        sock.settimeout(LIMIT_S)
        with self._lock:
            self._open.add(sock)
        try:
            with contextlib.suppress(OSError):
                if self._head_bytes:
                    self.heads.append(sock.recv(self._head_bytes, socket.MSG_WAITALL))
                first = sock.recv(1, socket.MSG_PEEK)
                if first == b"!":
                    self._echo(sock)
                elif first:
                    self._speak_http(sock)
        finally:
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _echo(self, sock: socket.socket) -> None:
        while data := sock.recv(65536):
            sock.sendall(data)
        if not self._killed:
            sock.shutdown(socket.SHUT_WR)

    def _speak_http(self, plain: socket.socket) -> None:
        with self.context.wrap_socket(plain, server_side=True) as sock:
            request = b""
            while b"\r\n\r\n" not in request:
                data = sock.recv(65536)
                if not data:
                    return
                request += data
            self.requests.append(request)
            if self.hangs:
                sock.recv(1)
                return
            sock.sendall(f"HTTP/1.1 {self.status} X\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            sock.recv(1)

    def kill(self) -> None:
        """Stop listening, and reset whatever is open."""
        self._killed = True
        with contextlib.suppress(OSError):  # a thread that accepts does not hear close()
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(LIMIT_S)
        with self._lock:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                    sock.shutdown(socket.SHUT_RD)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Bed:
    """A proxy that is started on demand, with short times."""

    def __init__(self, directory: Path, files: pki.PkiFiles) -> None:
        self.files = files
        self.config = directory / "proxy.yaml"
        self.loop = uvloop.new_event_loop()
        self.unhandled: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.unhandled.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxy", daemon=True)
        self._started: StartedProxy | None = None
        self._watching: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._started is not None:
                self.run(self._stop())
                assert not len(self._started.connections)
                assert not len(self._started.connections.places)
                assert not len(self._started.connections.poller)
            left = self.do(lambda: [t for t in asyncio.all_tasks(self.loop) if not t.done()])
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(LIMIT_S)
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
        assert not self.unhandled, self.unhandled
        assert len(left) <= 1, left  # the task that asked is one of them

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LIMIT_S)

    def do(self, work: Callable[[], T]) -> T:
        """Call a function in the loop and wait for it."""

        async def call() -> T:
            return work()

        return self.run(call())

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds, asked in the loop."""
        wait_until(lambda: self.do(holds), what)

    def start(self, *upstreams: str, **settings: Any) -> StartedProxy:
        """Start the proxy on free ports; checks are quick, and by TLS."""
        usual: dict[str, Any] = {} if "config" in settings else {
            "listen": ("127.0.0.1:0",),
            "upstream": upstreams,
            "ca_cert": str(self.files.ca_cert),
            "health_check_interval_s": 0.05,
            "health_check_timeout_s": 5.0,
            "health_check_fall": 2,
            "health_check_rise": 2,
        }  # fmt: skip
        given = compose(
            ApiserverProxySettings, **{"health_port": 0, "admin_port": 0, **usual, **settings}
        )
        given.validate()

        async def start() -> StartedProxy:
            proxy = StartedProxy(given)
            await proxy.start()
            self._watching = asyncio.create_task(proxy.watch())
            return proxy

        self._started = self.run(start())
        return self._started

    async def _stop(self) -> None:
        assert self._started is not None and self._watching is not None
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching
        await self._started.stop()

    @property
    def proxy(self) -> StartedProxy:
        """The one that was started."""
        assert self._started is not None
        return self._started

    def is_up(self, upstream: str) -> bool:
        """Whether the checks say that an upstream is well; asked from the test."""
        return self.do(lambda: self.states()[upstream])

    def states(self) -> dict[str, bool]:
        """Every upstream's health; asked in the loop."""
        return {str(it.at): it.health.is_up for it in self.proxy.connections.upstreams}

    def said(self) -> list[str]:
        """What the last checks said."""
        return self.do(lambda: [it.health.said for it in self.proxy.connections.upstreams])

    def wait_checked(self, checks: int = 1) -> None:
        """Wait until each upstream was checked so often."""
        self.wait(
            lambda: all(it.health.checks >= checks for it in self.proxy.connections.upstreams),
            "checks",
        )

    def refusals(self) -> dict[ProxyRefusal, int]:
        """What was refused so far, without what was not."""
        found = self.do(lambda: dict(self.proxy.metrics.refusals))
        return {why: count for why, count in found.items() if count}

    def connect(self) -> Client:
        """Connect to the proxy."""
        port = self.proxy.listeners[0].port
        return Client(socket.create_connection(("127.0.0.1", port), LIMIT_S))

    def echo(self) -> Client:
        """A connection that has been through to an upstream and back."""
        client = self.connect()
        try:
            client.send(b"!hello")
            assert client.read_exactly(6) == b"!hello"
        except BaseException:
            client.close()
            raise
        return client

    def is_reset(self) -> bool:
        """Whether a new connection is reset, which may be seen as early as by connect()."""
        try:
            with self.connect() as client:
                return client.recv() == b"there is nothing"
        except ConnectionError:
            return True
