"""What forwarders do with every connection that they accept: its address, its keepalive."""

from __future__ import annotations

import socket

from isthmus.text.addresses import plain_address
from isthmus.wire.proxy_protocol import IpPort

_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


def endpoint(address: tuple[object, ...]) -> IpPort:
    """An address of the kernel's as a value: without its zone, IPv4 also on dual-stack sockets."""
    return IpPort(plain_address(str(address[0])), int(str(address[1])))


def stay_awake(sock: socket.socket) -> None:
    """Notice a peer that has gone without a word, and keep the ways of quiet watches open."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
