"""Who is at the far side of an end: plain sockets, OpenSSL by hand, and memory.

None of them shares code with the ends under test. A user's ``recv`` gives ``b""`` at the end of
file and raises OSError (ssl.SSLError is one) when the connection was cut or reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Protocol

from isthmus.testing import MemoryEnd
from isthmus.tunnel.end import Early, Ending

DEADLINE_S = 20.0
FULL = 64 * 1024


class User(Protocol):
    """What a test does at a far side."""

    async def send(self, data: bytes) -> None:
        """Send all of it."""

    async def recv(self) -> bytes:
        """Receive some bytes; none at the end of file."""

    async def send_eof(self) -> None:
        """Half-close."""

    async def waiting(self) -> None:
        """Wait until something has arrived here, without receiving it."""

    def reset(self) -> None:
        """End so that the end sees a reset. On a UNIX socket that takes unread bytes here."""

    def close(self) -> None:
        """Let go of everything."""


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; fails after the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def read_all(user: User) -> bytes:
    """Receive until the end of file."""
    got = bytearray()
    async with asyncio.timeout(DEADLINE_S):
        while data := await user.recv():
            got += data
    return bytes(got)


async def read_exactly(user: User, size: int) -> bytes:
    """Receive at least this many bytes, or what came before the end of file."""
    got = bytearray()
    async with asyncio.timeout(DEADLINE_S):
        while len(got) < size and (data := await user.recv()):
            got += data
    return bytes(got)


class SocketUser:
    """A plain TCP or UNIX socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.sock, data)

    async def recv(self) -> bytes:
        return await self.loop.sock_recv(self.sock, FULL)

    async def send_eof(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    async def waiting(self) -> None:
        await until(self._peek)

    def _peek(self) -> bool:
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    def reset(self) -> None:
        if self.sock.family != socket.AF_UNIX:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close(self) -> None:
        self.sock.close()


class TlsUser(SocketUser):
    """TLS by OpenSSL's memory buffers over a socket that this class reads and writes itself."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str | None) -> None:
        super().__init__(sock)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self.incoming, self.outgoing, server_side=name is None, server_hostname=name
        )
        self._sending = asyncio.Lock()

    async def shake_hands(self) -> None:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.push()
                await self._pull()
            else:
                return await self.push()

    async def push(self) -> None:
        """Send what OpenSSL wants sent, in its order."""
        async with self._sending:
            if self.outgoing.pending:
                await self.loop.sock_sendall(self.sock, self.outgoing.read())

    async def _pull(self) -> None:
        data = await self.loop.sock_recv(self.sock, FULL)
        if data:
            self.incoming.write(data)
        else:
            self.incoming.write_eof()

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.tls.write(view) :]
            await self.push()

    async def recv(self) -> bytes:
        while True:
            try:
                return self.tls.read(FULL)
            except ssl.SSLWantReadError:
                await self._pull()
            except ssl.SSLZeroReturnError:  # the same as b"", once our own close_notify went
                return b""

    async def send_eof(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):  # the peer's is still to come
            self.tls.unwrap()
        await self.push()


class MemoryUser(MemoryEnd):
    """An end in memory that is also its own user: full above 64 KiB, like a socket's."""

    def __init__(self, early: Early | None = None) -> None:
        super().__init__(early=early)
        self._changed = asyncio.Event()

    # The end.

    @property
    def out_bytes(self) -> int:
        """What was written here and not received yet: a full sink says how much that is."""
        return len(self.received)

    def took(self, data: bytes) -> None:
        super().took(data)
        self.full = len(self.received) > FULL
        self._changed.set()

    def write_eof(self) -> None:
        super().write_eof()
        self._changed.set()

    def abort(self, reason: Ending) -> None:
        super().abort(reason)
        self._changed.set()

    def resume_reading(self) -> None:
        super().resume_reading()
        self._changed.set()

    # The user.

    async def send(self, data: bytes) -> None:
        for at in range(0, len(data), FULL):
            while self.paused and self.ending is None:
                await self._change()
            if self.ending is not None:
                raise ConnectionResetError
            self.feed(data[at : at + FULL])

    async def recv(self) -> bytes:
        while not self.received and not self.eofs:
            if self.ending is not None:
                raise ConnectionResetError
            await self._change()
        if self.ending not in (None, Ending.CLEAN):
            raise ConnectionResetError
        data = bytes(self.received)
        self.received.clear()
        if self.full:
            self.make_room()
        return data

    async def waiting(self) -> None:
        while not self.received:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        async with asyncio.timeout(DEADLINE_S):
            await self._changed.wait()

    async def send_eof(self) -> None:
        self.feed_eof()

    def close(self) -> None:
        self.reset()
