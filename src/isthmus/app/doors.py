"""A server's doors for clients: which protocol listens where, opened and closed together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial

from isthmus.config.server import GRPC, HTTP_CONNECT, ServerSettings
from isthmus.frontends.backend import Backend
from isthmus.frontends.grpc_proxy import GrpcFrontend
from isthmus.frontends.http_connect import ConnectFrontend
from isthmus.net.listen import Listener, bind_tcp, bind_uds
from isthmus.net.poller import Poller
from isthmus.observe.logs import OncePer
from isthmus.tunnel.packets import Packets


class Doors:
    """The frontends of a server and their listeners."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        backend: Backend,
        settings: ServerSettings,
        *,
        once: OncePer,
        context: Callable[[str], ssl.SSLContext],
    ) -> None:
        """Make the frontends; ``context`` gives the one of a mode, for each new connection."""
        self._loop = loop
        self._poller = poller
        self._settings = settings
        self._listeners: list[Listener] = []
        self._bound: list[tuple[socket.socket, Callable[[socket.socket], None]]] = []
        #: The TCP ports by mode.
        self.ports: dict[str, int] = {}
        self._grpc: GrpcFrontend | None = None
        self._connect: ConnectFrontend | None = None
        if GRPC in settings.modes:
            self._grpc = GrpcFrontend(
                loop,
                poller,
                backend,
                once=once,
                compat=settings.compat,
                context=partial(context, GRPC),
                keepalive_s=settings.frontend_keepalive_time_s,
            )
        if HTTP_CONNECT in settings.modes:
            self._connect = ConnectFrontend(
                loop,
                poller,
                backend,
                compat=settings.compat,
                once=once,
                context=partial(context, HTTP_CONNECT),
            )

    @property
    def listeners(self) -> Sequence[Listener]:
        """What was opened, stopped or not."""
        return self._listeners

    @property
    def grpc_calls(self) -> int:
        """How many gRPC calls of clients are open."""
        return self._grpc.calls if self._grpc is not None else 0

    @property
    def unsent(self) -> bool:
        """Something that a target said has not reached a gRPC client."""
        return self._grpc is not None and self._grpc.unsent

    @property
    def packets(self) -> Packets:
        """The packets from and to gRPC clients."""
        return self._grpc.packets if self._grpc is not None else Packets()

    def bind(self) -> None:
        """Bind every port and socket, and accept nothing yet.

        Raises:
            ConfigError: one cannot be bound; ``close`` gives back the others.
        """
        settings = self._settings
        for mode, port, port_flag, uds, uds_flag in settings.doors:
            frontend = self._grpc if mode == GRPC else self._connect
            assert frontend is not None
            if port is not None:
                for sock in bind_tcp(settings.server_bind_address, port, flag=f"--{port_flag}"):
                    self._bound.append((sock, frontend.accept_tls))
                    self.ports[mode] = sock.getsockname()[1]
            if uds:
                bound = bind_uds(
                    uds,
                    delete_existing=settings.delete_existing_uds_file,
                    flag=f"--{uds_flag}",
                )
                self._bound.append((bound, frontend.accept))

    def open(self) -> None:
        """Accept from now on."""
        bound, self._bound = self._bound, []
        for sock, accept in bound:
            self._listeners.append(Listener(self._loop, self._poller, sock, accept))

    def drain(self) -> None:
        """Accept nothing more; what is open goes on."""
        for listener in self._listeners:
            listener.stop()
        if self._grpc is not None:
            self._grpc.drain()

    def close(self) -> None:
        """Close everything that is no tunnel."""
        for sock, _ in self._bound:
            if sock.family == socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    os.unlink(sock.getsockname())
            sock.close()
        self._bound.clear()
        for listener in self._listeners:
            listener.stop()
        for frontend in (self._connect, self._grpc):
            if frontend is not None:
                frontend.close()
