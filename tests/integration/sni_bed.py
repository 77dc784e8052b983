"""An SNI router in this process, on the event loop of a thread of its own, and TLS backends for it.

Each tenant has a certificate authority of its own: whoever verifies a certificate has proved which
backend was reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import uvloop
from clients import LIMIT_S
from stack import wait_until

from isthmus.frame.lifecycle import Lifecycle
from isthmus.frame.listening import Listening
from isthmus.programs.sni_router import PROGRAM
from isthmus.programs.sni_router.connections import SniConnections
from isthmus.programs.sni_router.metrics import SniRefusal
from isthmus.programs.sni_router.settings import SniRouterSettings
from isthmus.settings.options import compose
from isthmus.tools.pki import making as pki

T = TypeVar("T")
HEAD = "apiVersion: isthmus.dev/v1alpha1\nkind: SNIRoutes\n"


class Tenant:
    """A control plane: a TLS server that greets with its name and what it was asked for."""

    def __init__(self, name: str, directory: Path, *, alpn: tuple[str, ...] = ()) -> None:
        self.name = name
        self.host = f"api.{name}.example"
        self.files = pki.init(directory / name, server_names=(self.host, f"*.{name}.example"))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.files.server_cert, self.files.server_key)
        self.context.sni_callback = self._asked_for
        if alpn:
            self.context.set_alpn_protocols(alpn)
        self._names: dict[ssl.SSLSocket, str] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.accepted = 0
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _asked_for(self, sock: Any, name: str | None, _: ssl.SSLContext) -> None:
        self._names[sock] = name or "-"

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._greet, args=(sock,), daemon=True).start()

    def _greet(self, plain: socket.socket) -> None:
        plain.settimeout(LIMIT_S)
        wrap = self.context.wrap_socket
        with contextlib.suppress(OSError), plain, wrap(plain, server_side=True) as sock:
            name, alpn = self._names.pop(sock, "-"), sock.selected_alpn_protocol() or "-"
            sock.sendall(f"{self.name} {name} {alpn}\n".encode())
            while data := sock.recv(65536):
                sock.sendall(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # a thread that accepts does not hear close()
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(LIMIT_S)


class Bed:
    """A file with routes to some tenants, and a router that is started on demand."""

    def __init__(self, directory: Path, tenants: Mapping[str, Tenant]) -> None:
        self.tenants = dict(tenants)
        self.config = directory / "routes.yaml"
        self.loop = uvloop.new_event_loop()
        self.unhandled: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.unhandled.append(context))
        self._thread = threading.Thread(target=self.loop.run_forever, name="router", daemon=True)
        self._started: Lifecycle | None = None
        self._watching: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._started is not None:
                self.run(self._stop())
                assert not len(self.connections)
                assert not self.connections.by_route
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(LIMIT_S)
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
        assert not self.unhandled, self.unhandled

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

    def write(self, routes: str = "", more: str = "") -> None:
        """Write the file with routes; without any, one for each tenant and all its names."""
        if not routes:
            routes = "".join(
                f"- name: {it.name}\n  hosts: [{it.host}, '*.{it.name}.example']\n"
                f"  backends: [{it.address}]\n"
                for it in self.tenants.values()
            )
        new = self.config.with_suffix(".new")
        new.write_text(f"{HEAD}routes:\n{routes}{more}")
        new.rename(self.config)

    def start(self, **settings: Any) -> Lifecycle:
        """Start the router on free ports."""
        if not self.config.exists():
            self.write()
        given = compose(
            SniRouterSettings,
            **{
                "config": str(self.config),
                "listen": ("127.0.0.1:0",),
                "health_bind_address": "127.0.0.1",
                "health_port": 0,
                "admin_port": 0,
                **settings,
            },
        )
        given.validate()

        async def start() -> Lifecycle:
            router = Lifecycle(PROGRAM, given)
            await router.start()
            self._watching = asyncio.create_task(router.watch())
            return router

        self._started = self.run(start())
        return self._started

    async def _stop(self) -> None:
        assert self._started is not None and self._watching is not None
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching
        await self._started.stop()

    @property
    def router(self) -> Lifecycle:
        """The one that was started."""
        assert self._started is not None
        return self._started

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.router.part(Listening).open_ones[0].port

    @property
    def connections(self) -> SniConnections:
        """Those of the router."""
        return self.router.part(SniConnections)

    def refusals(self) -> dict[SniRefusal, int]:
        """What was refused so far, without what was not."""
        found = self.do(lambda: dict(self.router.metrics.refusals))
        return {why: count for why, count in found.items() if count}

    def wait_refused(self, why: SniRefusal, count: int = 1) -> None:
        """Wait until so many were refused for this reason, and none for another."""
        self.wait(lambda: self.router.metrics.refusals[why] >= count, why.value)
        assert self.refusals() == {why: count}

    # Clients.

    def connect(self, port: int = 0, source: str = "127.0.0.1") -> socket.socket:
        """Connect, and say nothing yet."""
        at = "127.0.0.1", port or self.port
        return socket.create_connection(at, LIMIT_S, source_address=(source, 0))

    def tls(
        self,
        tenant: str,
        name: str = "",
        *,
        alpn: tuple[str, ...] = (),
        port: int = 0,
        source: str = "127.0.0.1",
    ) -> ssl.SSLSocket:
        """Connect to a tenant as its clients do, with its certificate verified."""
        known = self.tenants[tenant]
        context = ssl.create_default_context(cafile=str(known.files.ca_cert))
        if alpn:
            context.set_alpn_protocols(alpn)
        sock = self.connect(port, source)
        return context.wrap_socket(sock, server_hostname=name or known.host)

    def greeting(self, *args: Any, **more: Any) -> str:
        """What a tenant says first; see ``tls``."""
        with self.tls(*args, **more) as sock, sock.makefile() as lines:
            return lines.readline().strip()


def hello_bytes(name: str | None, *, alpn: tuple[str, ...] = (), tls12: bool = False) -> bytes:
    """The ClientHello of Python's own TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if tls12:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if alpn:
        context.set_alpn_protocols(alpn)
    written = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), written, server_hostname=name).do_handshake()
    return written.read()
