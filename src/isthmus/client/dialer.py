"""The dialer of a network context: opens connections in its network."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from isthmus.client.context import NetworkContext
from isthmus.client.sockets import bridge, given
from isthmus.client.stream import Connection
from isthmus.client.ways import DialResources, ServiceRoute
from isthmus.net.connect import Dialing, Failed, Reached, reach
from isthmus.tunnel.end import BaseEnd
from isthmus.values import HostPort

DIAL_TIMEOUT_S = 30.0


class Dialer:
    """Opens connections for one NetworkContext; made by ConnectivityService.dialer()."""

    def __init__(
        self,
        context: NetworkContext,
        way: ServiceRoute,
        ground: DialResources,
        opened: Callable[[BaseEnd], None],
    ) -> None:
        self.context = context
        self._way = way
        self._ground = ground
        self._opened = opened

    def __repr__(self) -> str:
        return f"<Dialer of {self.context.name!r}, {self._way}>"

    @property
    def how(self) -> str:
        """How the network is reached, for people."""
        return str(self._way)

    async def dial(
        self, network: str, address: str | HostPort, *, timeout_s: float = DIAL_TIMEOUT_S
    ) -> Connection:
        """Open a connection; ``network`` is "tcp", ``address`` is host:port, IPv6 in brackets.

        Raises:
            DialError: the target was not reached; ``reason`` says why, as data.
            ValueError: the address is none, or the network is not tcp.
            RuntimeError: the service is closed, or belongs to another event loop.
        """
        if network != "tcp":
            raise ValueError(f"unknown kind of connection {network!r}: only tcp is carried")
        target = _target(address)
        end = await self._reach(target, timeout_s)
        info: dict[str, object] = {
            "target": target,
            "network": self.context.name,
            "peername": (target.host, target.port),
        }
        return Connection(end, info)

    async def dial_socket(
        self, address: str | HostPort, *, timeout_s: float = DIAL_TIMEOUT_S
    ) -> socket.socket:
        """Open a connection as a real, non-blocking socket, for libraries that want one.

        A reset reads as a reset and a half-close as a half-close. The caller closes it. Bytes go
        through this service's event loop, which has to run as long as the socket is used.

        Raises:
            DialError: the target was not reached.
            ValueError: the address is none.
            OSError: there are no more descriptors.
        """
        end = await self._reach(_target(address), timeout_s)
        return bridge(end, self._ground.poller, self._opened)

    async def join_socket(
        self,
        sock: socket.socket,
        address: str | HostPort,
        *,
        answer: bytes = b"",
        early: bytes = b"",
        timeout_s: float = DIAL_TIMEOUT_S,
    ) -> None:
        """Open a connection and join a client's non-blocking socket to it, which is ours then.

        ``answer`` is for the client, before anything else; ``early`` is what it said already.

        Raises:
            DialError: the target was not reached; the socket is still the caller's.
        """
        end = await self._reach(_target(address), timeout_s)
        given(end, sock, self._ground.poller, self._opened, answer=answer, early=early)

    async def _reach(self, target: HostPort, timeout_s: float) -> BaseEnd:
        ground = self._ground
        if asyncio.get_running_loop() is not ground.loop:
            raise RuntimeError("the service belongs to another event loop")
        if ground.closed:
            raise RuntimeError("the service is closed")
        asking = self.context.asking()

        def start(timeout_s: float, reached: Reached, failed: Failed) -> Dialing:
            return self._way.dial(
                target, timeout_s=timeout_s, reached=reached, failed=failed, asking=asking
            )

        end = await reach(start, target, timeout_s, ground.under_way)
        self._opened(end)
        return end


def _target(address: str | HostPort) -> HostPort:
    return address if isinstance(address, HostPort) else HostPort.parse(address)
