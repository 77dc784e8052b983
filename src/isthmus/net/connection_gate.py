"""The gate behind a listening socket, which counts connections until they are closed.

The owner of the port refuses surplus connections in its own protocol, or resets them, so the
kernel's queue never fills with connections that will not be served. rules_slots.py counts.
Forwarders also find here the common handling of accepted connections.
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
#: Sends the reason without blocking; the socket is closed afterwards.
Refuse = Callable[[socket.socket, AdmissionRefusal, str], None]


class AcceptedSocket(socket.socket):
    """An accepted connection; once admitted it holds a slot until it is closed."""

    __slots__ = ("_places", "source", "uid")

    def __init__(self, family: int, fd: int) -> None:
        """Own the descriptor of a stream."""
        super().__init__(family, socket.SOCK_STREAM, 0, fd)
        self._places: ConnectionSlots | None = None
        self.source = ""
        self.uid: int | None = None  # see uid_at

    def let_in(self, places: ConnectionSlots, source: str) -> None:
        """Take a slot."""
        self._places = places
        self.source = source
        places.enter(source)

    def close(self) -> None:
        """Close, and release the slot, once."""
        places, self._places = self._places, None
        if places is not None:
            places.leave(self.source)
        super().close()


class ConnectionGate:
    """Admits connections while there are slots; wraps ``accept``."""

    def __init__(self, places: ConnectionSlots, accept: Accept, refuse: Refuse) -> None:
        self._places = places
        self._accept = accept
        self._refuse = refuse

    def __call__(self, sock: socket.socket) -> None:
        try:
            source = source_at(sock)
        except OSError:  # the peer has already left
            sock.close()
            return
        guest = admitted(sock, self._places, source, self._refuse)
        if guest is not None:
            self._accept(guest)


def admitted(
    sock: socket.socket, places: ConnectionSlots, source: str, refuse: Refuse
) -> AcceptedSocket | None:
    """Admit a connection of this source; None if it was refused and closed."""
    full = places.refusal(source)
    if full is None:
        # A listener creates AcceptedSockets; a worker receives plain sockets.
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
    """The source of a connection as recorded by the gate; empty without a gate."""
    return sock.source if isinstance(sock, AcceptedSocket) else ""


def reset(sock: socket.socket) -> None:
    """Make the following close a reset, if the protocol has one."""
    if _family_of(sock) != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)


def source_at(sock: socket.socket) -> str:
    """The source of a connection: an address, a /64 of IPv6, or a user of this machine.

    Raises:
        OSError: the peer has already left.
    """
    if _family_of(sock) != socket.AF_UNIX:
        return source_named(str(sock.getpeername()[0]))
    return f"uid {uid_at(sock)}"


def uid_at(sock: socket.socket) -> int:
    """The user at the other end of a UNIX socket; the kernel is asked once per AcceptedSocket.

    Identified by uid: a pid belongs to a namespace that may not be ours.

    Raises:
        OSError: the peer has already left.
    """
    if isinstance(sock, AcceptedSocket) and sock.uid is not None:
        return sock.uid
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    uid = int(_UCRED.unpack(packed)[1])
    if isinstance(sock, AcceptedSocket):
        sock.uid = uid
    return uid


def source_elsewhere(sock: socket.socket) -> str:
    """Like ``source_at``, but all connections from this machine are HERE.

    For ports that mostly serve their own machine: those clients have one address, and a limit per
    source would limit all of them together.

    Raises:
        OSError: the peer has already left.
    """
    if _family_of(sock) == socket.AF_UNIX:
        return HERE
    host = str(sock.getpeername()[0])
    source = source_named(host)
    if source.startswith("127.") or host == "::1":
        return HERE
    # A machine connects to its own address from that same address.
    return HERE if host == sock.getsockname()[0] else source


@lru_cache(maxsize=1024)
def source_named(host: str) -> str:
    """The source that an address belongs to: the address, or its /64 of IPv6."""
    if ":" not in host:
        return host
    address = plain_address(host)
    if isinstance(address, IPv4Address):
        return str(address)
    # A host with one address of a /64 usually has all of them.
    return f"{IPv6Address(int(address) >> 64 << 64)}/64"


def endpoint(address: tuple[object, ...]) -> IpPort:
    """A kernel address as a value: without its zone, as IPv4 also on dual-stack sockets."""
    return IpPort(plain_address(str(address[0])), int(str(address[1])))


def stay_awake(sock: socket.socket) -> None:
    """Enable keepalive, to detect silent peers and to keep NAT state of idle watches."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
