"""TLS inside a connection, to the target itself, with the same methods.

The dialers do TLS to the connectivity server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any, Protocol, Self

from isthmus.client.stream import GRACE_S, READ_BYTES, Buffer, Connection
from isthmus.net.connect import TunnelResetError


class ByteStream(Protocol):
    """What a Connection and a TlsConnection have in common."""

    async def read(self, size: int = READ_BYTES, *, timeout_s: float | None = None) -> bytes: ...

    def write(self, data: Buffer) -> None: ...

    async def drain(self, *, timeout_s: float | None = None) -> None: ...

    def write_eof(self) -> None: ...

    async def close(self, *, timeout_s: float = 30.0, grace_s: float = GRACE_S) -> None: ...

    def abort(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any: ...


async def start_tls(
    connection: Connection,
    context: ssl.SSLContext,
    server_hostname: str,
    *,
    timeout_s: float = 30.0,
) -> TlsConnection:
    """Do a TLS handshake with the target; if it fails, the connection is reset.

    Raises:
        ssl.SSLError: the target's certificate is not accepted, or it does not speak TLS.
        ConnectionResetError: the connection was reset meanwhile.
        TimeoutError: it took too long.
    """
    secured = TlsConnection(connection, context, server_hostname)
    try:
        async with asyncio.timeout(timeout_s):
            await secured.shake_hands()
    except BaseException:
        connection.abort()
        raise
    return secured


class TlsConnection:
    """A TLS connection in a tunnel; see Connection for what each call promises.

    A stream that ends without close_notify was cut, which is a reset (RFC 8446 §6.1).
    """

    def __init__(
        self, connection: Connection, context: ssl.SSLContext, server_hostname: str
    ) -> None:
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname=server_hostname
        )
        self._over = False
        self._eof_written = False

    def __repr__(self) -> str:
        return f"<TlsConnection {self._tls.version() or 'unsecured'} in {self._connection!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abort()

    async def shake_hands(self) -> None:
        """Do the handshake; start_tls() does it with a deadline."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._send()
                await self._receive(None)
        self._send()

    async def read(self, size: int = READ_BYTES, *, timeout_s: float | None = None) -> bytes:
        """Read some bytes, at most ``size``; none at the clean end."""
        while not self._over:
            try:
                data = self._tls.read(size)
                self._send()  # the answer to a key update
                if data:
                    return data
                self._over = True
            except ssl.SSLWantReadError:
                self._send()
                await self._receive(timeout_s)
            except ssl.SSLZeroReturnError:
                self._over = True
            except ssl.SSLEOFError as exc:
                raise TunnelResetError("the connection was cut in the middle of TLS") from exc
        return b""

    def write(self, data: Buffer) -> None:
        """Encrypt and send bytes."""
        if self._eof_written:
            raise RuntimeError("the connection is closed for writing")
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        self._send()

    async def drain(self, *, timeout_s: float | None = None) -> None:
        """Wait until more may be written."""
        await self._connection.drain(timeout_s=timeout_s)

    def write_eof(self) -> None:
        """Half-close by close_notify; reading is still possible if the target supports it."""
        if not self._eof_written:
            self._eof_written = True
            self._goodbye()

    async def close(self, *, timeout_s: float = 30.0, grace_s: float = GRACE_S) -> None:
        """Send close_notify and close."""
        if not self._connection.is_closing:
            self.write_eof()
        self._over = True
        await self._connection.close(timeout_s=timeout_s, grace_s=grace_s)

    def abort(self) -> None:
        """Reset the connection at once."""
        self._over = self._eof_written = True
        self._connection.abort()

    @property
    def is_closing(self) -> bool:
        return self._connection.is_closing

    @property
    def readable(self) -> bool:
        """Whether a read may return at once."""
        return bool(self._over or self._tls.pending() or self._connection.readable)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return ``ssl_object``, or the value of the connection below."""
        if name == "ssl_object":
            return self._tls
        return self._connection.get_extra_info(name, default)

    def _goodbye(self) -> None:
        # Usually the peer's close_notify has not arrived yet; or there was no handshake.
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        self._send()

    def _send(self) -> None:
        if self._outgoing.pending:
            self._connection.write(self._outgoing.read())

    async def _receive(self, timeout_s: float | None) -> None:
        data = await self._connection.read(timeout_s=timeout_s)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
