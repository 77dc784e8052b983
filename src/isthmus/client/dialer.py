"""The dialer of a network context: opens connections in its network, as streams or sockets.

For libraries that need a real socket the tunnel's end is joined to one of a pair. The pair is TCP
over loopback, not socketpair(): a UNIX socket cannot be reset, and a reset that reads as an end of
file makes a partial answer look complete. Without loopback (a network namespace whose ``lo`` is
down) a UNIX pair is used instead.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from isthmus.client.context import NetworkContext
from isthmus.client.stream import Connection
from isthmus.client.ways import DialResources, ServiceRoute
from isthmus.net.connect import Dialing, Failed, Reached, reach
from isthmus.net.poller import Poller
from isthmus.net.socket_end import SocketEnd
from isthmus.tunnel.end import BaseEnd, Early, Ending, join
from isthmus.values import HostPort

_LOOPBACK = "127.0.0.1"
_PAIRING_S = 5.0
_MOST_STRANGERS = 64
# Closing a socket half-closes it first, and TCP does not distinguish the two. Once the kernel has
# dropped the closed socket (tcp_fin_timeout, 60 s) it answers a probe with a reset, which ends the
# tunnel to a target that never closes its side.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


def bridge(end: BaseEnd, poller: Poller, opened: Callable[[BaseEnd], None]) -> socket.socket:
    """Make a socket that leads to the same target as the end; non-blocking, closed by the caller.

    ``opened`` gets the end in between; code that resets the other end has to reset it as well.

    Raises:
        OSError: there are no more descriptors; the end is reset.
    """
    try:
        given, kept = socket_pair()
    except OSError:
        end.abort(Ending.CANCELLED)
        raise
    inside = SocketEnd(kept, poller)
    opened(inside)
    join(end, inside)
    return given


def given(
    end: BaseEnd,
    sock: socket.socket,
    poller: Poller,
    opened: Callable[[BaseEnd], None],
    *,
    answer: bytes,
    early: bytes,
) -> None:
    """Join an end to a given socket; see Dialer.join_socket."""
    kept = Early()
    kept.buffer += early
    inside = SocketEnd(sock, poller, kept)
    inside.write(answer)
    opened(inside)
    join(end, inside)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Make two connected non-blocking sockets, the second of which can be reset."""
    try:
        given, kept = _over_loopback()
    except OSError:
        given, kept = socket.socketpair()
    given.setblocking(False)
    kept.setblocking(False)
    return given, kept


def _over_loopback() -> tuple[socket.socket, socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((_LOOPBACK, 0))
        listener.listen(_MOST_STRANGERS)
        listener.settimeout(_PAIRING_S)
        given = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            given.settimeout(_PAIRING_S)
            given.connect(listener.getsockname())
            kept = _accept_own(listener, given.getsockname())
        except BaseException:
            given.close()
            raise
    for sock in (given, kept):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        kept.setsockopt(socket.IPPROTO_TCP, option, value)
    return given, kept


def _accept_own(listener: socket.socket, own: object) -> socket.socket:
    """Accept our own connection; another program on this machine may connect first."""
    for _ in range(_MOST_STRANGERS):
        kept, peer = listener.accept()
        if peer == own:
            return kept
        kept.close()
    raise ConnectionError("other programs keep connecting to ports of this machine")


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
            DialError: the target was not reached; ``reason`` is the reason as data.
            ValueError: the address is invalid, or the network is not tcp.
            RuntimeError: the service is closed, or belongs to another event loop.
        """
        if network != "tcp":
            raise ValueError(f"unknown kind of connection {network!r}: only tcp is supported")
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
        """Open a connection as a real, non-blocking socket, for libraries that need one.

        A reset reads as a reset and a half-close as a half-close. The caller closes it. Bytes go
        through this service's event loop, which has to run as long as the socket is used.

        Raises:
            DialError: the target was not reached.
            ValueError: the address is invalid.
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
        """Open a connection and join a client's non-blocking socket to it; takes over the socket.

        ``answer`` is sent to the client first; ``early`` is what the client sent already.

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
