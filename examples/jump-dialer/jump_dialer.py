"""A custom dialer for Isthmus: reaches targets through a jump host that speaks SOCKS5.

A small, complete example. Options: ``host`` and ``port`` of the jump host.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from ipaddress import ip_address

from isthmus.errors import DialError, DialFailure
from isthmus.values import HostPort, is_address

# RFC 1928 §6: the server's error codes, as Isthmus' failures.
FAILURES = {
    2: DialFailure.DENIED,
    3: DialFailure.UNREACHABLE,
    4: DialFailure.UNREACHABLE,
    5: DialFailure.REFUSED,
    6: DialFailure.TIMED_OUT,
}
ADDRESS_BYTES = {1: 4, 4: 16}  # IPv4, IPv6; a name (3) is preceded by its length


class JumpDialer:
    """Opens connections through the jump host."""

    async def open(
        self, target: HostPort, *, timeout_s: float, options: Mapping[str, str]
    ) -> socket.socket:
        """Connect to the jump host and let it connect to the target.

        Isthmus cancels this call after ``timeout_s``: no timer is needed here, but everything that
        was opened has to be closed.
        """
        loop = asyncio.get_running_loop()
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await loop.sock_connect(sock, (options["host"], int(options["port"])))
            await self._ask(sock, target)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _ask(self, sock: socket.socket, target: HostPort) -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, b"\x05\x01\x00")  # version 5, one method: no password
        if await read(sock, 2) != b"\x05\x00":
            raise DialError(DialFailure.DENIED, target, "the jump host wants a password")
        await loop.sock_sendall(sock, b"\x05\x01\x00" + address_bytes(target))
        _, reply, _, kind = await read(sock, 4)
        if reply:
            failure = FAILURES.get(reply, DialFailure.INTERNAL)
            raise DialError(failure, target, f"the jump host says {reply}")
        size = ADDRESS_BYTES[kind] if kind in ADDRESS_BYTES else (await read(sock, 1))[0]
        await read(sock, size + 2)  # where it connects from; not of interest


def address_bytes(target: HostPort) -> bytes:
    """Write a target as SOCKS5 does (RFC 1928 §5)."""
    port = target.port.to_bytes(2, "big")
    if is_address(target.host):
        packed = ip_address(target.host).packed
        return (b"\x01" if len(packed) == 4 else b"\x04") + packed + port
    name = target.host.encode("ascii")
    return b"\x03" + bytes([len(name)]) + name + port


async def read(sock: socket.socket, size: int) -> bytes:
    """Read so many bytes, and not one more: what follows belongs to the target."""
    loop = asyncio.get_running_loop()
    got = b""
    while len(got) < size:
        data = await loop.sock_recv(sock, size - len(got))
        if not data:
            raise ConnectionError("the jump host closed the connection")
        got += data
    return got
