"""aiohttp through the connectivity service: a connector for aiohttp.ClientSession.

async with aiohttp.ClientSession(connector=Connector(service.dialer("cluster"))) as session:
    async with session.get("https://10.0.0.5/healthz") as answer:
        ...
"""

from __future__ import annotations

import asyncio
import errno
import ssl as tls
from typing import TYPE_CHECKING, Any

from isthmus.client.dialer import DIAL_TIMEOUT_S, Dialer
from isthmus.errors import DialError, DialFailure
from isthmus.values import HostPort

try:
    import aiohttp
except ImportError as exc:
    raise ImportError(
        "isthmus.client.aiohttp needs the package aiohttp: pip install aiohttp"
    ) from exc

if TYPE_CHECKING:
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ClientRequest

_ERRNO = {
    DialFailure.REFUSED: errno.ECONNREFUSED,
    DialFailure.UNREACHABLE: errno.EHOSTUNREACH,
    DialFailure.TIMED_OUT: errno.ETIMEDOUT,
}


class Connector(aiohttp.BaseConnector):
    """Gives a session the connections of one dialer, including WebSockets.

    ``ssl`` is for targets, as in aiohttp: True, False or an SSL context. A request's proxy is an
    error, since it would bypass the service.
    """

    def __init__(
        self, dialer: Dialer, *, ssl: tls.SSLContext | bool = True, **options: Any
    ) -> None:
        super().__init__(**options)
        self._dialer = dialer
        self._trust = ssl

    # The one method that a connector must have; aiohttp's own connectors override it, too.
    async def _create_connection(
        self, req: ClientRequest, traces: list[Any], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        if req.proxy:
            raise aiohttp.ClientError("a proxy and a connectivity service exclude each other")
        host = (req.url.raw_host or "").strip("[]")
        try:
            target = HostPort(host, req.url.port or (443 if req.is_ssl() else 80))
        except ValueError as exc:
            raise aiohttp.InvalidURL(req.url, str(exc)) from exc
        seconds = timeout.sock_connect or timeout.connect or timeout.total or DIAL_TIMEOUT_S
        try:
            async with asyncio.timeout(seconds):
                return await self._open(req, target, seconds)
        except TimeoutError as exc:
            raise aiohttp.ConnectionTimeoutError(f"no connection to {target} in time") from exc

    async def _open(self, req: ClientRequest, target: HostPort, seconds: float) -> ResponseHandler:
        key = req.connection_key
        try:
            sock = await self._dialer.dial_socket(target, timeout_s=seconds)
        except DialError as exc:
            if exc.reason is DialFailure.TIMED_OUT:
                raise TimeoutError(str(exc)) from exc
            error = OSError(_ERRNO.get(exc.reason, errno.EIO), str(exc))
            raise aiohttp.ClientConnectorError(key, error) from exc
        context = self._context(req)
        name = (req.server_hostname or target.host.rstrip(".")) if context else None
        try:
            transport, protocol = await self._loop.create_connection(
                self._factory, sock=sock, ssl=context, server_hostname=name
            )
        except tls.SSLCertVerificationError as exc:
            raise aiohttp.ClientConnectorCertificateError(key, exc) from exc
        except tls.SSLError as exc:
            raise aiohttp.ClientConnectorSSLError(key, exc) from exc
        except OSError as exc:
            raise aiohttp.ClientConnectorError(key, exc) from exc
        except BaseException:
            sock.close()
            raise
        if isinstance(req.ssl, aiohttp.Fingerprint):
            try:
                req.ssl.check(transport)
            except BaseException:
                transport.abort()
                raise
        return protocol

    def _context(self, req: ClientRequest) -> tls.SSLContext | None:
        """The SSL context for a request: that of the request, or else the connector's."""
        if not req.is_ssl():
            return None
        wanted: object = req.ssl if req.ssl is not True else self._trust
        if isinstance(wanted, tls.SSLContext):
            return wanted
        context = tls.create_default_context()
        if wanted is not True:  # False, or a fingerprint, which is checked instead
            context.check_hostname = False
            context.verify_mode = tls.CERT_NONE
        return context
