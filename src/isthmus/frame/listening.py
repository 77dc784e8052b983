"""The sources of connections: ports of this process, or in a worker those its parent hands over."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from typing_extensions import override

from isthmus.frame.part import BoundSocket, Ground, Part
from isthmus.net.listen import Accepted, Listener, bind_tcp


class Listening(Part):
    """Accepts at every socket that ``bind`` returns, by the flag of the socket.

    ``bound`` is called with the bound addresses, also in a worker, which binds none itself. As the
    last part of a program it is opened last and drained first.
    """

    def __init__(
        self,
        ground: Ground[Any, Any],
        bind: Callable[[], Iterable[BoundSocket]],
        accept: Mapping[str, Accepted],
        *,
        bound: Callable[[str, int], None] | None = None,
    ) -> None:
        self._ground = ground
        self._bind = bind
        self._accept = accept
        self._hear = bound
        self._waiting: list[BoundSocket] = []
        self.open_ones: list[Listener] = []

    @override
    async def open(self) -> None:
        if self._ground.handed is not None:
            return
        for one in self._bind():
            self._waiting.append(one)
            if self._hear is not None and one.sock.family != socket.AF_UNIX:
                host, port = one.sock.getsockname()[:2]
                self._hear(str(host), int(port))

    @override
    def start(self) -> None:
        ground = self._ground
        if ground.handed is not None:
            for flag, accept in self._accept.items():
                ground.handed.open(flag, accept, bound=self._hear)
        waiting, self._waiting = self._waiting, []
        for flag, sock, _ in waiting:
            listener = Listener(ground.loop, ground.poller, sock, self._accept[flag])
            self.open_ones.append(listener)

    @override
    def drain(self) -> None:
        for listener in self.open_ones:
            listener.stop()

    @override
    def close(self) -> None:
        self.drain()
        waiting, self._waiting = self._waiting, []
        for _, sock, _ in waiting:
            sock.close()

    @override
    def listeners(self) -> Iterable[Listener]:
        return self.open_ones

    @override
    def serving(self) -> dict[str, Any]:
        return {
            "listen": ",".join(it.name for it in self.open_ones),
            "port": self.open_ones[0].port,
        }


def tcp_sockets(flag: str, addresses: Iterable[tuple[str, int]]) -> Iterator[BoundSocket]:
    """Bind these addresses and ports, one after another.

    Raises:
        ConfigError: one cannot be bound; the previous ones stay bound.
    """
    for host, port in addresses:
        for sock in bind_tcp(host, port, flag=flag):
            yield BoundSocket(flag, sock)
