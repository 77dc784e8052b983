"""The gate behind a listening socket: who comes in is counted until its socket is closed.

Whoever finds no place is told so in its own protocol by the owner of the port, or reset; the
kernel's queue never fills with those that nobody will serve. The counting is rules_slots.py.
Forwarders find here what they do with every connection that they accept, too.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address

from isthmus.net.rules_slots import HERE, AdmissionRefusal, ConnectionSlots
from isthmus.text.addresses import plain_address
from isthmus.wire.proxy_protocol import IpPort

_UCRED = struct.Struct("3i")
# socket.socket.family makes an enum of the number each time, which costs 1.4 µs (timeit).
_family_of = socket.SocketType.family.__get__
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))

Accept = Callable[[socket.socket], None]
#: Says why, within a send that does not wait; the socket is closed afterwards.
Refuse = Callable[[socket.socket, AdmissionRefusal, str], None]


class AcceptedSocket(socket.socket):
    """An accepted connection; once it is let in it has a place, until it is closed."""

    __slots__ = ("_places", "source", "uid")

    def __init__(self, family: int, fd: int) -> None:
        """Own the descriptor of a stream."""
        super().__init__(family, socket.SOCK_STREAM, 0, fd)
        self._places: ConnectionSlots | None = None
        self.source = ""
        self.uid: int | None = None  # see uid_at

    def let_in(self, places: ConnectionSlots, source: str) -> None:
        """Take a place."""
        self._places = places
        self.source = source
        places.enter(source)

    def close(self) -> None:
        """Close, and give the place back, once."""
        places, self._places = self._places, None
        if places is not None:
            places.leave(self.source)
        super().close()


class ConnectionGate:
    """Lets connections in while there are places; stands for the ``accept`` behind it."""

    def __init__(self, places: ConnectionSlots, accept: Accept, refuse: Refuse) -> None:
        self._places = places
        self._accept = accept
        self._refuse = refuse

    def __call__(self, sock: socket.socket) -> None:
        """Take an accepted connection."""
        try:
            source = source_at(sock)
        except OSError:  # it has left already
            sock.close()
            return
        guest = admitted(sock, self._places, source, self._refuse)
        if guest is not None:
            self._accept(guest)


def admitted(
    sock: socket.socket, places: ConnectionSlots, source: str, refuse: Refuse
) -> AcceptedSocket | None:
    """Give a connection of this source a place; None when it was refused, and is closed."""
    full = places.refusal(source)
    if full is None:
        # A listener accepts guests; a worker is handed sockets.
        guest = (
            sock
            if isinstance(sock, AcceptedSocket)
            else AcceptedSocket(_family_of(sock), sock.detach())
        )
        guest.let_in(places, source)
        return guest
    with contextlib.suppress(OSError), sock:
        refuse(sock, full, source)
    return None


def source_of(sock: socket.socket) -> str:
    """Where a connection comes from, as the gate saw it; empty when it came by none."""
    return sock.source if isinstance(sock, AcceptedSocket) else ""


def reset(sock: socket.socket) -> None:
    """Let the close that follows be a reset, where there is one: nothing waits in the kernel."""
    if _family_of(sock) != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)


def source_at(sock: socket.socket) -> str:
    """Where the other end of a connection is: an address, a /64 of IPv6, a user of this machine.

    Raises:
        OSError: it has left already.
    """
    if _family_of(sock) != socket.AF_UNIX:
        return source_named(str(sock.getpeername()[0]))
    return f"uid {uid_at(sock)}"


def uid_at(sock: socket.socket) -> int:
    """Whose the other end of a UNIX socket is; the kernel is asked once about a guest.

    By uid: a pid is a number in a namespace that may not be ours.

    Raises:
        OSError: it has left already.
    """
    if isinstance(sock, AcceptedSocket) and sock.uid is not None:
        return sock.uid
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    uid = int(_UCRED.unpack(packed)[1])
    if isinstance(sock, AcceptedSocket):
        sock.uid = uid
    return uid


def source_elsewhere(sock: socket.socket) -> str:
    """As ``source_at``, but everybody on this machine is HERE.

    For ports whose clients are mostly its own: they come from one address, and one bound for all
    of them together would be none by source.

    Raises:
        OSError: it has left already.
    """
    if _family_of(sock) == socket.AF_UNIX:
        return HERE
    host = str(sock.getpeername()[0])
    source = source_named(host)
    if source.startswith("127.") or host == "::1":
        return HERE
    # To an address of its own a machine connects from that address.
    return HERE if host == sock.getsockname()[0] else source


@lru_cache(maxsize=1024)
def source_named(host: str) -> str:
    """The source that an address belongs to: itself, or a /64 of IPv6."""
    if ":" not in host:
        return host
    address = plain_address(host)
    if isinstance(address, IPv4Address):
        return str(address)
    # Whoever has one address of a /64 has all of them.
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


def endpoint(address: tuple[object, ...]) -> IpPort:
    """An address of the kernel's as a value: without its zone, IPv4 also on dual-stack sockets."""
    return IpPort(plain_address(str(address[0])), int(str(address[1])))


def stay_awake(sock: socket.socket) -> None:
    """Notice a peer that has gone without a word, and keep the ways of quiet watches open."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
