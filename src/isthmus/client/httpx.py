"""httpx through the connectivity service: a transport for httpx.AsyncClient.

async with httpx.AsyncClient(transport=AsyncTransport(service.dialer("cluster"))) as client:
    await client.get("https://10.0.0.5/healthz")
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from isthmus.client.dialer import DIAL_TIMEOUT_S, Dialer
from isthmus.client.stream import Connection
from isthmus.client.tls import TlsConnection, start_tls
from isthmus.errors import DialError, DialFailure
from isthmus.values import HostPort

try:
    import httpcore
    import httpx
except ImportError as exc:
    raise ImportError("isthmus.client.httpx needs the package httpx: pip install httpx") from exc

_MOST_CONNECTIONS = 100
_MOST_IDLE = 20
_IDLE_S = 5.0
_CLOSE_S = 1.0


class AsyncTransport(httpx.AsyncBaseTransport):
    """Sends requests over connections of one dialer, which it keeps and reuses.

    ``verify`` is for targets, as in httpx: True, False or an SSL context.
    """

    def __init__(
        self,
        dialer: Dialer,
        *,
        verify: ssl.SSLContext | bool = True,
        http2: bool = False,
        max_connections: int = _MOST_CONNECTIONS,
        max_keepalive_connections: int = _MOST_IDLE,
        keepalive_expiry: float = _IDLE_S,
    ) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=httpx.create_ssl_context(verify=verify, trust_env=False),
            max_connections=max_connections,
            max_keepalive_connections=max_keepalive_connections,
            keepalive_expiry=keepalive_expiry,
            http2=http2,
            network_backend=_Backend(dialer),
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; its errors are httpx's."""
        with _translated(request):
            answer = await self._pool.handle_async_request(
                httpcore.Request(
                    method=request.method,
                    url=httpcore.URL(
                        scheme=request.url.raw_scheme,
                        host=request.url.raw_host,
                        port=request.url.port,
                        target=request.url.raw_path,
                    ),
                    headers=request.headers.raw,
                    content=request.stream,
                    extensions=request.extensions,
                )
            )
        return httpx.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(answer.stream, request),
            extensions=answer.extensions,
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._pool.aclose()


class _Body(httpx.AsyncByteStream):
    """The body of an answer, as it arrives."""

    def __init__(self, parts: Any, request: httpx.Request) -> None:
        self._parts = parts
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translated(self._request):
            async for part in self._parts:
                yield part

    async def aclose(self) -> None:
        if hasattr(self._parts, "aclose"):
            await self._parts.aclose()


@contextmanager
def _translated(request: httpx.Request) -> Iterator[None]:
    """Translate httpcore's exceptions to httpx's, which have the same names."""
    try:
        yield
    except (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.UnsupportedProtocol,
    ) as exc:
        kind: type[httpx.TransportError] = getattr(httpx, type(exc).__name__, httpx.TransportError)
        raise kind(str(exc), request=request) from exc


class _Backend(httpcore.AsyncNetworkBackend):
    """Opens connections for httpcore."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Dial."""
        try:
            connection = await self._dialer.dial(
                "tcp", HostPort(host, port), timeout_s=timeout or DIAL_TIMEOUT_S
            )
        except DialError as exc:
            if exc.reason is DialFailure.TIMED_OUT:
                raise httpcore.ConnectTimeout(str(exc)) from exc
            raise httpcore.ConnectError(str(exc)) from exc
        except ValueError as exc:
            raise httpcore.ConnectError(str(exc)) from exc
        return _Stream(connection)


class _Stream(httpcore.AsyncNetworkStream):
    """A connection with httpcore's interface."""

    def __init__(self, stream: Connection | TlsConnection) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            return await self._stream.read(max_bytes, timeout_s=timeout)
        except TimeoutError as exc:
            raise httpcore.ReadTimeout(str(exc)) from exc
        except OSError as exc:
            raise httpcore.ReadError(str(exc)) from exc

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        try:
            self._stream.write(buffer)
            await self._stream.drain(timeout_s=timeout)
        except TimeoutError as exc:
            raise httpcore.WriteTimeout(str(exc)) from exc
        except (OSError, RuntimeError) as exc:
            raise httpcore.WriteError(str(exc)) from exc

    async def aclose(self) -> None:
        # A pool that closes an idle connection does not wait for its target.
        with suppress(OSError):
            await self._stream.close(timeout_s=_CLOSE_S, grace_s=0.0)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        assert isinstance(self._stream, Connection)
        try:
            secured = await start_tls(
                self._stream,
                ssl_context,
                server_hostname or self._stream.get_extra_info("target").host,
                timeout_s=timeout or DIAL_TIMEOUT_S,
            )
        except TimeoutError as exc:
            raise httpcore.ConnectTimeout("the TLS handshake took too long") from exc
        except OSError as exc:
            raise httpcore.ConnectError(str(exc)) from exc
        return _Stream(secured)

    def get_extra_info(self, info: str) -> Any:
        """The TLS object, or whether an idle connection has received bytes."""
        if info == "is_readable":
            return self._stream.readable
        return self._stream.get_extra_info(info)
