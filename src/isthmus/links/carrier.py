"""The carrier of a link: TLS over TCP, set up so that the queue stays with us."""

from __future__ import annotations

import socket
import ssl

from isthmus.net.carriers import CarrierOwner, TlsCarrier
from isthmus.net.poller import Poller

#: Leave the queue with us, where streams take turns, and not in the kernel, where they cannot.
NOTSENT_LOWAT_BYTES = 128 * 1024
_TCP_NOTSENT_LOWAT = 25


def keep_queue_short(sock: socket.socket) -> None:
    """Let the kernel hold little that is unsent."""
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, NOTSENT_LOWAT_BYTES)


class LinkSocket(TlsCarrier):
    """One link's connection."""

    always_out = True
    __slots__ = ()

    def __init__(
        self,
        owner: CarrierOwner,
        sock: socket.socket,
        poller: Poller,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None,
    ) -> None:
        if sock.family != socket.AF_UNIX:  # one is, behind an https proxy
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_queue_short(sock)
        super().__init__(owner, sock, poller, context, server_hostname=server_hostname)
