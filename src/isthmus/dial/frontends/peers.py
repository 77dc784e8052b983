"""Who is at the other end of a UNIX socket."""

from __future__ import annotations

import socket
from functools import lru_cache
from typing import Protocol

from isthmus.net.connection_gate import uid_at
from isthmus.values import ANONYMOUS, Identity

# socket.socket.family makes an enum of the number each time, which costs 1.4 µs (timeit).
_family_of = socket.SocketType.family.__get__


def uds_identity(sock: socket.socket) -> Identity:
    """Whose it is, as the kernel says."""
    try:
        return _user(uid_at(sock))
    except OSError:
        return Identity("unknown", kind="uid")


@lru_cache(maxsize=1024)
def _user(uid: int) -> Identity:
    return Identity(str(uid), kind="uid")


class Client(Protocol):
    """Somebody who came from somewhere."""

    @property
    def client_address(self) -> str:
        """Where the client is; empty on a UNIX socket."""


def payer_of(identity: Identity, client: Client) -> Identity | str:
    """Whose account pays: who somebody proved to be, else the address they come from."""
    return client.client_address.rpartition(":")[0] if identity is ANONYMOUS else identity


def peer_address(sock: socket.socket) -> str:
    """The other side of a TCP connection, as it is shown; empty when it has none."""
    if _family_of(sock) == socket.AF_UNIX:
        return ""
    try:
        host, port = sock.getpeername()[:2]
    except OSError:
        return ""
    host = str(host).removeprefix("::ffff:")  # an IPv4 peer of a dual-stack listener
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
