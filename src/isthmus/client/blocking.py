"""The library for code without an event loop: connections as blocking sockets.

The event loop runs in its own thread, which moves the bytes; it ends with ``close()`` or the
process. For libraries that accept only a proxy there is one on loopback: it speaks HTTP CONNECT,
serves one context, and requires a password that only its caller gets, since every user of this
machine can reach its port.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from isthmus.client.context import NetworkContext
from isthmus.client.dialer import DIAL_TIMEOUT_S
from isthmus.client.service import ConnectivityService, read_file
from isthmus.dial.frontends.statuses import explain, status_for
from isthmus.dial.rules_connectivity import ConnectivityConfig
from isthmus.errors import DialError, IsthmusError
from isthmus.values import HostPort
from isthmus.wire.http_connect import BadRequest, ConnectRequest, HeadReader, established, reply

HEAD_S = 10.0
DIAL_S = 30.0
GOODBYE_S = 2.0
#: Connections that have no tunnel yet; beyond that, new ones wait to be accepted.
MOST_ASKING = 64
_READ_BYTES = 64 * 1024
_USER = "isthmus"
#: How long to wait when there are no free descriptors.
_ACCEPT_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProxy:
    """The proxy's address and its password, which ``url`` does not contain."""

    host: str
    port: int
    password: str

    @property
    def url(self) -> str:
        """The proxy as a URL."""
        return f"http://{self.host}:{self.port}"

    @property
    def authorization(self) -> str:
        """The value of Proxy-Authorization (RFC 7617)."""
        return f"Basic {base64.b64encode(f'{_USER}:{self.password}'.encode()).decode()}"

    def __repr__(self) -> str:
        return f"<LocalProxy {self.url}>"


class ProxyPort:
    """The listening side: run it as a task of the service's loop, and cancel the task to stop."""

    def __init__(self, service: ConnectivityService, context: NetworkContext | str) -> None:
        service.dialer(context)  # an unknown network is an error now
        self._service = service
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=MOST_ASKING)
        self._listener.setblocking(False)
        host, port = self._listener.getsockname()
        self.proxy = LocalProxy(host=host, port=port, password=secrets.token_urlsafe(32))
        self._room = asyncio.Semaphore(MOST_ASKING)

    async def serve(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        with self._listener:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._room.acquire()
                    try:
                        sock, _ = await loop.sock_accept(self._listener)
                    except OSError:  # no more descriptors, or the client has left
                        self._room.release()
                        await asyncio.sleep(_ACCEPT_AGAIN_S)
                        continue
                    tasks.create_task(self._take(sock), name="isthmus-proxy")

    async def _take(self, sock: socket.socket) -> None:
        joined = False
        try:
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # TimeoutError, too: a silent or closed client
                refusal = await self._connect(sock)
                joined = not refusal
                if refusal:
                    async with asyncio.timeout(GOODBYE_S):
                        await _refuse(sock, refusal)
        finally:
            self._room.release()
            if not joined:
                sock.close()

    async def _connect(self, sock: socket.socket) -> bytes:
        """Join the client to its target; or return the error answer."""
        buffer = bytearray()
        try:
            async with asyncio.timeout(HEAD_S):
                request = await _read_head(sock, buffer)
        except BadRequest as exc:
            return exc.to_bytes()
        if not secrets.compare_digest(
            request.header(b"proxy-authorization") or b"", self.proxy.authorization.encode()
        ):
            asks = [("Proxy-Authenticate", 'Basic realm="isthmus"')]
            return reply(407, "the proxy requires its password", headers=asks)
        try:
            await self._service.dialer(self._context).join_socket(
                sock, request.target, answer=established(), early=bytes(buffer), timeout_s=DIAL_S
            )
        except DialError as exc:
            said = explain(exc.reason, exc.target, exc.detail)
            return reply(status_for(exc.reason), said)
        except (IsthmusError, RuntimeError) as exc:
            return reply(502, str(exc))
        return b""


async def _refuse(sock: socket.socket, refusal: bytes) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, refusal)
    sock.shutdown(socket.SHUT_WR)
    while await loop.sock_recv(sock, _READ_BYTES):
        continue  # unread bytes would turn the answer into a reset


async def _read_head(sock: socket.socket, buffer: bytearray) -> ConnectRequest:
    loop, head = asyncio.get_running_loop(), HeadReader()
    while True:
        data = await loop.sock_recv(sock, _READ_BYTES)
        if not data:
            raise ConnectionError("the client has left")
        buffer += data
        request = head.take(buffer)
        if request is not None:
            return request


#: A dial ends by its own deadline; if it takes this much longer, the loop is broken.
_SPARE_S = 10.0
_CLOSED = "the service is closed"

T = TypeVar("T")


class BlockingService:
    """A ConnectivityService for threads: any of them may call any method.

    Raises:
        ConfigError: the file cannot be read, or something in it is wrong.
    """

    def __init__(self, config: ConnectivityConfig | str | Path) -> None:
        if not isinstance(config, ConnectivityConfig):
            config = read_file(config)
        self._service = ConnectivityService(config)
        self._pid = os.getpid()
        self._closed = False
        self._submitting = threading.Lock()
        self._started = threading.Event()
        self._over: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=self._run, name="isthmus-client", daemon=True)
        self._failure: BaseException | None = None
        self._proxies: list[asyncio.Task[None]] = []
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<BlockingService {', '.join(self.networks)}>"

    @property
    def networks(self) -> tuple[str, ...]:
        """The names of the networks, in order."""
        return self._service.networks

    def connect(
        self,
        context: NetworkContext | str,
        address: str | HostPort,
        timeout_s: float = DIAL_TIMEOUT_S,
    ) -> socket.socket:
        """Open a connection; a blocking socket without a timeout, which the caller closes.

        Raises:
            UnknownNetworkError: the configuration has no such network.
            DialError: the target was not reached.
            ValueError: the address is invalid.
            RuntimeError: the service is closed, or belongs to the process before a fork.
        """
        future = self._submit(self._dial(context, address, timeout_s))
        try:
            sock = future.result(timeout_s + _SPARE_S)
        except CancelledError:
            raise RuntimeError(_CLOSED) from None  # another thread has closed it meanwhile
        except BaseException:
            future.cancel()
            future.add_done_callback(_close_unwanted)  # it may have connected just now
            raise
        sock.setblocking(True)
        return sock

    def proxy(self, context: NetworkContext | str) -> LocalProxy:
        """Open a proxy on loopback for a library that accepts only that; it ends with the service.

        Each call opens another proxy. All its connections go to the network of the context.

        Raises:
            UnknownNetworkError: the configuration has no such network.
            OSError: there are no more descriptors, or there is no loopback.
            RuntimeError: the service is closed, or belongs to the process before a fork.
        """
        return self._submit(self._open_proxy(context)).result(_SPARE_S)

    def context_for(self, address: str | HostPort) -> NetworkContext:
        """Derive the context of a destination; see ConnectivityService."""
        return self._service.context_for(address)

    def close(self) -> None:
        """Reset the open connections, and end the thread."""
        if self._closed or os.getpid() != self._pid:
            return
        with self._submitting:
            self._closed = True
            with contextlib.suppress(RuntimeError):  # the loop has already ended
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(self._service.grace_s + _SPARE_S)

    # Runs in the loop's thread.

    async def _dial(
        self, context: NetworkContext | str, address: str | HostPort, timeout_s: float
    ) -> socket.socket:
        return await self._service.dialer(context).dial_socket(address, timeout_s=timeout_s)

    async def _open_proxy(self, context: NetworkContext | str) -> LocalProxy:
        from isthmus.client.blocking import ProxyPort

        port = ProxyPort(self._service, context)
        self._proxies.append(asyncio.create_task(port.serve(), name="isthmus-proxy-port"))
        return port.proxy

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if os.getpid() != self._pid:
            work.close()
            raise RuntimeError(
                "the service was made before a fork, and its thread is not in this process"
            )
        # Under the lock, so that work is submitted before close() stops the loop or not at all.
        with self._submitting:
            if self._closed or not self._thread.is_alive():
                work.close()
                raise RuntimeError(_CLOSED)
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self) -> None:
        import uvloop

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as exc:
            if self._started.is_set():
                raise
            self._failure = exc  # usually no more descriptors
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        async with self._service:
            self._started.set()
            await self._over.wait()
            for task in self._proxies:
                task.cancel()
            await asyncio.gather(*self._proxies, return_exceptions=True)


def _close_unwanted(future: Future[socket.socket]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()
