"""Connections through an HTTP proxy: connect to it, request the target, hand the socket on.

A plain proxy's own socket is handed on. With an https proxy the caller's TLS runs inside ours:
the caller gets one side of a socket pair, and the other is joined to our TLS end as a tunnel.

rules_proxies.py chooses the proxy for a host.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time

from isthmus.errors import DialFailure, LinkError, LinkStage, ProtocolError
from isthmus.net.certificates import TlsFiles
from isthmus.net.connect import Connecting
from isthmus.net.contexts import client_context
from isthmus.net.poller import HUP, Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.net.socket_end import SocketEnd
from isthmus.net.tls import TlsEnd
from isthmus.tunnel.end import GONE, Early, End, Ending, join
from isthmus.values import HostPort
from isthmus.wire.connect_answer import ConnectAnswer, ConnectAsking

TIMEOUT_S = 10.0
SYSTEM_CAS_S = 60.0
#: How long a proxy may take for the last bytes of a user that has left.
LINGER_S = 10.0
_TCP_NOTSENT_LOWAT = 25
_NOTSENT_LOWAT_BYTES = 128 * 1024


class ProxyRefused(LinkError):
    """The proxy refused the request; ``status`` is that of its answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, LinkStage.CONNECT)
        self.status = status


async def connect_through(
    poller: Poller,
    resolver: Resolver,
    proxy: ProxyAddress,
    target: HostPort,
    *,
    context: ssl.SSLContext | None = None,
    timeout_s: float = TIMEOUT_S,
    for_peer: bool = False,
) -> socket.socket:
    """Connect to a target through a proxy, which resolves the target's name.

    The socket is non-blocking, no byte was read or written on it after the proxy's answer, and it
    is closed by ``poller.close``. Its edges may have passed: its next owner has to read once.
    With an https proxy it is a UNIX socket: TCP options do not apply to it.

    Args:
        poller: watches the sockets; its loop is the running one.
        resolver: resolves the proxy's name.
        proxy: the proxy.
        target: the requested target.
        context: for https proxies; None trusts the system's CAs.
        timeout_s: for everything, from the lookup to the answer.
        for_peer: do not use the reserved descriptors (descriptors.py).

    Raises:
        LinkError: no connection; the message names the proxy. If the proxy answered, it is
            a ProxyRefused and the message has its status line.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            if proxy.scheme == "https" and context is None:
                context = SYSTEM_CAS.kept() or await asyncio.to_thread(SYSTEM_CAS.read)
            sock = await _reach(loop, poller, resolver, proxy, timeout_s, for_peer)
            return await _ask(loop, poller, sock, context, proxy, target)
    except TimeoutError:
        # Stage CONNECT: in the metrics, TIMED_OUT means a server that did not answer.
        raise _error(proxy, f"no connection to {target} within {timeout_s:g} s") from None


class SystemCas:
    """A context for https proxies that trusts the system's CAs, reloaded once a minute.

    Loading takes some 20 ms in a thread: with one load per connection, many connections would
    keep the threads busy that reload certificates and lists.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: tuple[float, list[str | None], ssl.SSLContext] | None = None

    def kept(self) -> ssl.SSLContext | None:
        """The context loaded in the last minute from the current locations."""
        if self._read is None:
            return None
        read_at, where, context = self._read
        is_old = time.monotonic() - read_at >= SYSTEM_CAS_S
        return None if is_old or where != _where_cas_are() else context

    def read(self) -> ssl.SSLContext:
        """Load the files, unless another call just did; call it in a thread."""
        with self._lock:
            context = self.kept()
            if context is None:
                context = client_context(TlsFiles("", "", ""), alpn=("http/1.1",))
                self._read = (time.monotonic(), _where_cas_are(), context)
            return context


def _where_cas_are() -> list[str | None]:
    return [os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")]


SYSTEM_CAS = SystemCas()


def _error(proxy: ProxyAddress, why: str, stage: LinkStage = LinkStage.CONNECT) -> LinkError:
    return LinkError(f"proxy {proxy}: {why}", stage)


async def _reach(
    loop: asyncio.AbstractEventLoop,
    poller: Poller,
    resolver: Resolver,
    proxy: ProxyAddress,
    timeout_s: float,
    for_peer: bool,
) -> socket.socket:
    """Connect to the proxy itself."""
    try:
        addresses = await resolver.addresses(proxy.at)
    except OSError as exc:
        raise _error(proxy, f"{DialFailure.UNRESOLVED.value}: {exc}") from exc
    reached: asyncio.Future[socket.socket] = loop.create_future()

    def connected(sock: socket.socket, events: int) -> None:
        if reached.done():
            poller.close(sock)
        else:
            reached.set_result(sock)

    def failed(failure: DialFailure, detail: str) -> None:
        if not reached.done():
            reached.set_exception(_error(proxy, f"{failure.value}: {detail}"))

    attempt = Connecting(
        loop, poller, addresses, timeout_s=timeout_s, connected=connected, failed=failed,
        for_peer=for_peer,
    )  # fmt: skip
    try:
        return await reached
    except asyncio.CancelledError:
        attempt.cancel()
        _discard(poller, reached)
        raise


async def _ask(
    loop: asyncio.AbstractEventLoop,
    poller: Poller,
    sock: socket.socket,
    context: ssl.SSLContext | None,
    proxy: ProxyAddress,
    target: HostPort,
) -> socket.socket:
    """Request the target from a connected proxy."""
    answered: asyncio.Future[socket.socket] = loop.create_future()
    question = _Question(loop, proxy, target, answered)
    end: _PlainProxy | _TlsProxy
    if proxy.scheme == "https":
        assert context is not None
        end = question.end = _TlsProxy(sock, poller, context, question, proxy.at.host.rstrip("."))
        end.begin()
    else:
        end = question.end = _PlainProxy(sock, poller, question)
    end.write(question.asking.request)
    end.read_again()  # data that arrived before registration will not trigger another edge
    try:
        return await answered
    except asyncio.CancelledError:
        if not _discard(poller, answered):
            end.abort(Ending.CANCELLED)
        raise
    finally:
        question.end = (
            None  # breaks the reference cycle, so that both are freed without a collection
        )


def _discard(poller: Poller, future: asyncio.Future[socket.socket]) -> bool:
    """Close the socket of a future whose waiter was cancelled, if any."""
    if not future.done() or future.cancelled() or future.exception() is not None:
        return False
    poller.close(future.result())
    return True


class _PlainProxy(SocketEnd):
    """The connection to an http proxy, until the target is connected."""

    # The poller keeps the events of the first registration: links need all edges.
    always_out = True
    __slots__ = ()

    def become(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        """Stop reading at once, and hand over the socket."""
        self.closed = True
        self.peer, self._early = GONE, None
        return self.sock


class _TlsProxy(TlsEnd):
    """The connection to an https proxy."""

    __slots__ = ("error",)

    def __init__(
        self,
        sock: socket.socket,
        poller: Poller,
        context: ssl.SSLContext,
        question: _Question,
        server_hostname: str,
    ) -> None:
        self.error = ""
        super().__init__(sock, poller, context, question, server_hostname=server_hostname)

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """Keep the error for the message."""
        if isinstance(error, ssl.SSLCertVerificationError):
            self.error = f"its certificate: {error.verify_message}"
        else:
            self.error = f"TLS: {error.reason or error}"

    def become(self, loop: asyncio.AbstractEventLoop) -> socket.socket:
        """Join this end to a new socket pair and hand over its other side."""
        # Frames take turns before they reach the kernel: keep its queue short.
        self.sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _NOTSENT_LOWAT_BYTES)
        given, kept = socket.socketpair()
        given.setblocking(False)
        kept.setblocking(False)
        join(self, _Inside(loop, kept, self.poller))
        return given


class _Inside(SocketEnd):
    """Our side of the pair. When the user's side closes, the proxy connection soon closes."""

    __slots__ = ("_left", "_loop")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, poller: Poller
    ) -> None:
        self._loop = loop
        self._left = False
        super().__init__(sock, poller)

    def on_events(self, mask: int) -> None:
        """Detect that the user has closed, even while reading is paused."""
        if mask & HUP and not self._left:
            self._left = True
            # A proxy that does not read would keep the tunnel: nothing else would end it.
            self._loop.call_later(LINGER_S, self._give_up, self.peer)
        super().on_events(mask)

    def _give_up(self, proxy: End) -> None:
        self.abort(Ending.TIMED_OUT)
        proxy.abort(Ending.TIMED_OUT)

    def got_eof(self) -> None:
        """Pass the half-close on; close completely if the user no longer reads."""
        proxy = self.peer
        super().got_eof()
        if self.hung_up and isinstance(proxy, _TlsProxy):
            proxy.got_eof()  # closes once the last bytes are sent


class _Question(Early):
    """Reads the proxy's answer; completes the future once."""

    __slots__ = ("_answered", "_loop", "_proxy", "_target", "asking", "end")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        proxy: ProxyAddress,
        target: HostPort,
        answered: asyncio.Future[socket.socket],
    ) -> None:
        super().__init__()
        self._loop = loop
        self._proxy = proxy
        self._target = target
        self._answered = answered
        self.asking = ConnectAsking(target, authorization=proxy.authorization)
        self.end: _PlainProxy | _TlsProxy | None = None

    def write(self, data: bytes) -> bool:
        """Read more of the answer."""
        if self._answered.done():
            return True
        try:
            answer = self.asking.receive(data)
        except ProtocolError as exc:
            self._fail(str(exc))
            return True
        if answer is not None:
            self._take(answer)
        return True

    def write_eof(self) -> None:
        """The proxy closed before it answered."""
        self._fail("closed the connection before it answered")

    def abort(self, reason: Ending) -> None:
        """The connection or the handshake failed."""
        tls_error = self.end.error if isinstance(self.end, _TlsProxy) else ""
        if tls_error:
            self._fail(tls_error, LinkStage.TLS)
        else:
            self._fail("the connection broke before it answered")

    def _take(self, answer: ConnectAnswer) -> None:
        assert self.end is not None
        if not answer.connected:
            text = f"proxy {self._proxy}: answered {answer.line} for {self._target}"
            self._tell(ProxyRefused(text, answer.status))
            return
        try:
            sock = self.end.become(self._loop)
        except OSError as exc:  # out of descriptors
            self._fail(str(exc))
            return
        self._answered.set_result(sock)

    def _fail(self, why: str, stage: LinkStage = LinkStage.CONNECT) -> None:
        self._tell(_error(self._proxy, why, stage))

    def _tell(self, error: LinkError) -> None:
        if not self._answered.done():
            self._answered.set_exception(error)
            if self.end is not None:
                self.end.abort(Ending.PROTOCOL)
