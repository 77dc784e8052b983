"""A proxy on loopback, for libraries that take a proxy and nothing else.

It speaks HTTP CONNECT, is there for one context, and asks for a password that only its maker
knows: anybody on this machine can reach its port. BlockingService.proxy() makes one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import socket
from dataclasses import dataclass

from isthmus.client.context import NetworkContext
from isthmus.client.service import ConnectivityService
from isthmus.dial.frontends.statuses import explain, status_for
from isthmus.errors import DialError, IsthmusError
from isthmus.wire.http_connect import BadRequest, ConnectRequest, HeadReader, established, reply

HEAD_S = 10.0
DIAL_S = 30.0
GOODBYE_S = 2.0
#: Connections that have no tunnel yet; beyond them others wait to be accepted.
MOST_ASKING = 64
_READ_BYTES = 64 * 1024
_USER = "isthmus"
#: A full table of descriptors empties again; until then there is no hurry.
_ACCEPT_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalProxy:
    """Where the proxy is, and what it wants to hear. ``url`` has no password in it."""

    host: str
    port: int
    password: str

    @property
    def url(self) -> str:
        """The proxy as a URL."""
        return f"http://{self.host}:{self.port}"

    @property
    def authorization(self) -> str:
        """The value of Proxy-Authorization (RFC 7617)."""
        return f"Basic {base64.b64encode(f'{_USER}:{self.password}'.encode()).decode()}"

    def __repr__(self) -> str:
        return f"<LocalProxy {self.url}>"


class ProxyPort:
    """The listening side: give it to a task of the service's loop, which ends it by cancelling."""

    def __init__(self, service: ConnectivityService, context: NetworkContext | str) -> None:
        service.dialer(context)  # an unknown network is told now
        self._service = service
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=MOST_ASKING)
        self._listener.setblocking(False)
        host, port = self._listener.getsockname()
        self.proxy = LocalProxy(host=host, port=port, password=secrets.token_urlsafe(32))
        self._room = asyncio.Semaphore(MOST_ASKING)

    async def serve(self) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        with self._listener:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._room.acquire()
                    try:
                        sock, _ = await loop.sock_accept(self._listener)
                    except OSError:  # no more descriptors, or the client has left
                        self._room.release()
                        await asyncio.sleep(_ACCEPT_AGAIN_S)
                        continue
                    tasks.create_task(self._take(sock), name="isthmus-proxy")

    async def _take(self, sock: socket.socket) -> None:
        joined = False
        try:
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # TimeoutError, too: it says nothing, or is gone
                refusal = await self._connect(sock)
                joined = not refusal
                if refusal:
                    async with asyncio.timeout(GOODBYE_S):
                        await _refuse(sock, refusal)
        finally:
            self._room.release()
            if not joined:
                sock.close()

    async def _connect(self, sock: socket.socket) -> bytes:
        """Join the client to its target; or else what to answer."""
        buffer = bytearray()
        try:
            async with asyncio.timeout(HEAD_S):
                request = await _read_head(sock, buffer)
        except BadRequest as exc:
            return exc.to_bytes()
        if not secrets.compare_digest(
            request.header(b"proxy-authorization") or b"", self.proxy.authorization.encode()
        ):
            asks = [("Proxy-Authenticate", 'Basic realm="isthmus"')]
            return reply(407, "the proxy wants its password", headers=asks)
        try:
            await self._service.dialer(self._context).join_socket(
                sock, request.target, answer=established(), early=bytes(buffer), timeout_s=DIAL_S
            )
        except DialError as exc:
            said = explain(exc.reason, exc.target, exc.detail)
            return reply(status_for(exc.reason), said)
        except (IsthmusError, RuntimeError) as exc:
            return reply(502, str(exc))
        return b""


async def _refuse(sock: socket.socket, refusal: bytes) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, refusal)
    sock.shutdown(socket.SHUT_WR)
    while await loop.sock_recv(sock, _READ_BYTES):
        continue  # unread bytes would turn the answer into a reset


async def _read_head(sock: socket.socket, buffer: bytearray) -> ConnectRequest:
    loop, head = asyncio.get_running_loop(), HeadReader()
    while True:
        data = await loop.sock_recv(sock, _READ_BYTES)
        if not data:
            raise ConnectionError("the client has left")
        buffer += data
        request = head.take(buffer)
        if request is not None:
            return request
