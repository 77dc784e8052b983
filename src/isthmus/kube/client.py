"""Requests to the Kubernetes API: one call or one stream, each with a deadline and a size limit.

lightkube reads kubeconfigs and knows authentication, paths and models; its own calls hide the HTTP
status, cannot send a delete precondition and read without limit, so requests are sent here. Every
failure is a one-line KubeError. Imports lightkube: reached only through ``api.open_kube``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

import httpx2
import msgspec
from lightkube.core.exceptions import ConfigError as LightkubeError
from lightkube.core.generic_client import BasicRequest
from lightkube.models.meta_v1 import Status

from isthmus.errors import ConfigError, KubeError
from isthmus.kube.kubeconfig import connect, fingerprint, read_config
from isthmus.text.pacing import TokenBucket

_TIMEOUT_S = 10.0
_MAX_BODY_BYTES = 16 * 1024 * 1024
_MAX_LINE_BYTES = 1024 * 1024
_MAX_CHARS = 300
#: The reason of a KubeError for an answer above the size limit.
TOO_LONG = "TooLong"
_BURST = 10  # Go's default when only the rate is given

T = TypeVar("T")


class _TooLongError(ValueError):
    """The answer exceeds the size limit."""


class KubeClient:
    """Sends requests to one API server.

    After a connection or authentication error, the configuration is read again before the
    next request, so that rotated certificates and CAs take effect.
    """

    def __init__(
        self,
        kubeconfig: str,
        *,
        qps: float = 0.0,
        burst: int = 0,
        server: str = "",
        timeout_s: float = _TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the configuration.

        Raises:
            ConfigError: the configuration cannot be read or used.
        """
        self._kubeconfig = kubeconfig
        self._server = server
        self._bucket: TokenBucket | None = None  # None for a rate of 0 or less: no limit
        if qps > 0:
            self._bucket = TokenBucket(rate=qps, burst=burst if burst > 0 else _BURST, now=clock())
        self._timeout_s = timeout_s
        self._clock = clock
        self._suspect = False
        self._refreshing = asyncio.Lock()
        self._open()

    def __repr__(self) -> str:
        return f"<KubeClient {self.server}>"

    @property
    def server(self) -> str:
        """The URL of the API server."""
        return self._access.config.cluster.server

    def _open(self) -> None:
        access = read_config(self._kubeconfig, self._server)
        stamp = fingerprint(access.config, self._kubeconfig)
        # asyncio.timeout bounds reads: httpx restarts its read timeout with each byte.
        timeout = httpx2.Timeout(self._timeout_s, read=None)
        self._generic = connect(access, self._kubeconfig, timeout)
        self._access = access
        self._stamp = stamp

    async def close(self) -> None:
        """Close all connections."""
        await self._generic.close()  # type: ignore[no-untyped-call]  # lightkube's

    async def call(
        self, doing: str, into: type[T], method: str, resource: type[Any], **request: Any
    ) -> T:
        """Send one request and decode its answer.

        ``doing`` completes "cannot …"; the other arguments describe a lightkube request, and
        ``body`` is for methods that lightkube sends without one.

        Raises:
            KubeError: no answer in time, a refusal, or an undecodable answer.
        """
        await self._turn()
        with self._failures(doing):
            async with (
                asyncio.timeout(self._timeout_s),
                self._send(doing, method, resource, **request) as response,
            ):
                body = await _read(response)
            return msgspec.json.decode(body, type=into)

    @contextlib.asynccontextmanager
    async def watch(
        self, doing: str, decode: Callable[[bytes], T], resource: type[Any], **request: Any
    ) -> AsyncIterator[AsyncIterator[T]]:
        """Open a watch and yield its decoded events as they arrive.

        Only opening has a deadline; the caller bounds the silence between events.

        Raises:
            KubeError: the watch was refused; from the iterator: it broke.
        """
        await self._turn()
        async with contextlib.AsyncExitStack() as stack:
            with self._failures(doing):
                async with asyncio.timeout(self._timeout_s):
                    opening = self._send(doing, "list", resource, watch=True, **request)
                    response = await stack.enter_async_context(opening)
            yield self._decoded(doing, decode, response)

    async def _decoded(
        self, doing: str, decode: Callable[[bytes], T], response: httpx2.Response
    ) -> AsyncIterator[T]:
        with self._failures(doing):
            async for line in _lines(response):
                yield decode(line)

    @contextlib.asynccontextmanager
    async def _send(
        self, doing: str, method: str, resource: type[Any], *, body: Any = None, **request: Any
    ) -> AsyncIterator[httpx2.Response]:
        if self._suspect:
            await self._refresh()
        generic = self._generic
        wanted: BasicRequest = generic.prepare_request(method, resource, **request)
        if body is not None:
            wanted.data = body
        made = generic.build_adapter_request(wanted)
        if self._access.server_name:
            made.extensions["sni_hostname"] = self._access.server_name
        response: httpx2.Response = await generic.send(made, stream=True)  # type: ignore[no-untyped-call]  # lightkube's
        try:
            if not response.is_success:
                raise await self._refusal(doing, response)
            yield response
        finally:
            await response.aclose()

    async def _turn(self) -> None:
        if self._bucket is not None:
            now = self._clock()
            if self._bucket.spend(1, now=now):
                await asyncio.sleep(self._bucket.wait_s(now=now))

    async def _refresh(self) -> None:
        """Read the configuration again if one of its files changed; an invalid one is ignored."""
        async with self._refreshing:
            if not self._suspect:
                return
            self._suspect = False
            old = self._generic
            stamp = await asyncio.to_thread(fingerprint, self._access.config, self._kubeconfig)
            if stamp == self._stamp:
                return
            with contextlib.suppress(ConfigError):
                self._open()
                await old.close()  # type: ignore[no-untyped-call]  # lightkube's

    async def _refusal(self, doing: str, response: httpx2.Response) -> KubeError:
        code = response.status_code
        if code == httpx2.codes.UNAUTHORIZED:
            self._suspect = True
        try:
            status = msgspec.json.decode(await _read(response), type=Status)
            reason, detail = status.reason or "", status.message or ""
        except (msgspec.MsgspecError, ValueError):
            reason, detail = "", ""
        text = f"cannot {doing}: {self.server} answered {code} {detail or response.reason_phrase}"
        return KubeError(_cut(text), status=code, reason=reason)

    @contextlib.contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        """Translate the libraries' exceptions."""
        try:
            yield
        except KubeError:
            raise
        except TimeoutError as exc:
            self._suspect = True
            raise KubeError(f"cannot {doing}: no answer from {self.server} in time") from exc
        except LightkubeError as exc:  # a token file that was removed, an exec that failed
            raise KubeError(_cut(f"cannot {doing}: {exc}")) from exc
        except (msgspec.MsgspecError, ValueError) as exc:
            text = f"cannot {doing}: cannot decode the answer of {self.server}"
            reason = TOO_LONG if isinstance(exc, _TooLongError) else ""
            raise KubeError(text, reason=reason) from exc
        except Exception as exc:  # from httpx, ssl, anyio or the system; none may end the program
            self._suspect = True
            text = f"cannot {doing}: {self.server}: {str(exc) or type(exc).__name__}"
            raise KubeError(_cut(text)) from exc


async def _read(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MAX_BODY_BYTES:
            raise _TooLongError("the answer is too long")
    return bytes(body)


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for chunk in response.aiter_bytes():
        rest += chunk
        *whole, last = rest.split(b"\n")
        for line in whole:
            if line:
                yield bytes(line)
        rest = last
        if len(rest) > _MAX_LINE_BYTES:
            raise ValueError("a line of the watch is too long")


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…"
