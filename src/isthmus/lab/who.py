"""The server that says who asks: the address that it sees, by TCP and by UDP at the same port.

What translates addresses on the way is seen in no other way than from the far side.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable

from isthmus.errors import ConfigError
from isthmus.tunnel.end import Early

_MOST_BYTES = 2048
#: Datagrams that are answered in one turn: the other servers want theirs.
_PER_TURN = 64
_PORT_TAKEN = "already in use"


class WhoEnd(Early):
    """Says one line, and that it says no more."""

    __slots__ = ("_line",)

    def __init__(self, line: bytes) -> None:
        super().__init__()
        self._line = line

    def start(self) -> None:
        """Say it; see End."""
        self.peer.write(self._line)
        self.peer.write_eof()

    def write(self, data: bytes) -> bool:
        """Nobody is interested in what the client says."""
        return True


class WhoSocket:
    """Answers every datagram with what ``answer`` makes of its sender, ADDRESS:PORT."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, port: int, answer: Callable[[str], bytes]
    ) -> None:
        """Bind the port, and serve from now on.

        Raises:
            ConfigError: it cannot be bound.
        """
        self._loop = loop
        self._answer = answer
        self._socket = _bound(port)
        self.port: int = self._socket.getsockname()[1]
        loop.add_reader(self._socket.fileno(), self._read)

    def stop(self) -> None:
        """Close it."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _read(self) -> None:
        # An error is one of a datagram of before, which came to nobody.
        with contextlib.suppress(OSError):
            for _ in range(_PER_TURN):
                _, sender = self._socket.recvfrom(_MOST_BYTES)
                seen = f"{sender[0].removeprefix('::ffff:')}:{sender[1]}"
                self._socket.sendto(self._answer(seen), sender)


def _bound(port: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        if dual:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::" if dual else "0.0.0.0", port))
    except OSError as exc:
        sock.close()
        why = _PORT_TAKEN if exc.errno == errno.EADDRINUSE else exc.strerror or str(exc)
        raise ConfigError(f"who: cannot listen on UDP port {port}: {why}") from exc
    return sock
