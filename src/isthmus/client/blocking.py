"""The library for code without an event loop: connections as ordinary blocking sockets.

The loop is in a thread of its own, which moves the bytes; it ends with ``close()`` or the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from isthmus.client.context import NetworkContext
from isthmus.client.dialer import DIAL_TIMEOUT_S
from isthmus.client.service import ConnectivityService, read_file
from isthmus.dial.rules_connectivity import ConnectivityConfig
from isthmus.values import HostPort

if TYPE_CHECKING:
    from isthmus.client.local_proxy import LocalProxy

#: A dial ends by its own deadline; this much later something is wrong with the loop.
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
        """Open a connection; a blocking socket without a timeout, and the caller's to close.

        Raises:
            UnknownNetworkError: the configuration has no such network.
            DialError: the target was not reached.
            ValueError: the address is none.
            RuntimeError: the service is closed, or belongs to the process before a fork.
        """
        future = self._submit(self._dial(context, address, timeout_s))
        try:
            sock = future.result(timeout_s + _SPARE_S)
        except CancelledError:
            raise RuntimeError(_CLOSED) from None  # by another thread, meanwhile
        except BaseException:
            future.cancel()
            future.add_done_callback(_close_unwanted)  # it may have come at the last moment
            raise
        sock.setblocking(True)
        return sock

    def proxy(self, context: NetworkContext | str) -> LocalProxy:
        """Open a proxy on loopback for a library that takes nothing else; it ends with the service.

        Each call opens one. Whatever goes through it goes to the network of the context.

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
        """Reset what is open, and end the thread."""
        if self._closed or os.getpid() != self._pid:
            return
        with self._submitting:
            self._closed = True
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(self._service.grace_s + _SPARE_S)

    # In the loop.

    async def _dial(
        self, context: NetworkContext | str, address: str | HostPort, timeout_s: float
    ) -> socket.socket:
        return await self._service.dialer(context).dial_socket(address, timeout_s=timeout_s)

    async def _open_proxy(self, context: NetworkContext | str) -> LocalProxy:
        from isthmus.client.local_proxy import ProxyPort

        port = ProxyPort(self._service, context)
        self._proxies.append(asyncio.create_task(port.serve(), name="isthmus-proxy-port"))
        return port.proxy

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if os.getpid() != self._pid:
            work.close()
            raise RuntimeError(
                "the service was made before a fork, and its thread is not in this process"
            )
        # What comes before close() is begun before the loop hears of the end, and none after it.
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
            self._failure = exc  # no more descriptors, as a rule
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
