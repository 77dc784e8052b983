"""Dials through the hosted cluster's own HTTP proxy, which another dialer reaches.

Requests to an http proxy are sent on the end that the other dialer returns. For an https proxy, TLS
runs inside that end: a socket pair connects them, one side joined to the end, the other under TLS.
The proxy resolves the target's name.

net/through_proxy.py is for a proxy that this process reaches directly on its way to a server.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from isthmus.dial.dialers.through_server import OF_THE_WAY, tls_fault
from isthmus.errors import ConfigError, DialFailure, ProtocolError
from isthmus.net.connect import AnyDialer, Dialing, Failed, Reached
from isthmus.net.poller import Poller
from isthmus.net.rules_proxies import FAILURE_OF_STATUS, ProxyAddress, ProxyRules
from isthmus.net.socket_end import SocketEnd
from isthmus.net.tls import TlsEnd
from isthmus.tunnel.end import BaseEnd, Early, Ending, join
from isthmus.values import HostPort
from isthmus.wire.connect_answer import ConnectAnswer, ConnectAsking


def _nobody(*_: object) -> None:
    """Replaces the callbacks of a dial that has ended."""


class _Inside(SocketEnd):
    """The tunnel's side of the pair; a UNIX socket, which cannot be reset."""

    __slots__ = ()


class _ProxyTls(TlsEnd):
    """TLS to an https proxy; when it is reset, the other side of its pair is reset too."""

    __slots__ = ("error", "inside", "secured_by")

    def __init__(
        self,
        sock: socket.socket,
        poller: Poller,
        context: ssl.SSLContext,
        early: Early,
        *,
        inside: _Inside,
        name: str,
        secured_by: Callable[[], None],
    ) -> None:
        self.error = ""
        self.inside: _Inside | None = inside
        self.secured_by = secured_by
        super().__init__(sock, poller, context, early, server_hostname=name)

    def handshake_done(self) -> None:
        """Report to the dial."""
        secured_by, self.secured_by = self.secured_by, _nobody
        secured_by()

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """Keep it for the sentence."""
        self.error = tls_fault(error)

    def abort(self, reason: Ending) -> None:
        """Reset the connection below as well: the pair alone would look like a clean end."""
        inside, self.inside = self.inside, None
        if inside is not None and inside.ending is None:
            below = inside.peer
            inside.abort(reason)
            below.abort(reason)
        super().abort(reason)


class _Answer(Early):
    """The early peer of the connection to a proxy: reads its answer and keeps what follows."""

    __slots__ = ("_asking", "_dial")

    def __init__(self, dial: ProxyDial, asking: ConnectAsking | None) -> None:
        super().__init__()
        self._dial: ProxyDial | None = dial
        self._asking = asking

    def ask(self, end: BaseEnd) -> None:
        """Send the request."""
        if self._asking is not None:
            end.write(self._asking.request)

    def leave(self) -> None:
        """The dial was cancelled."""
        self._dial = None

    def write(self, data: bytes) -> bool:
        """Parse more of the answer; the bytes after it are the target's."""
        dial, asking = self._dial, self._asking
        if dial is None or asking is None:
            return super().write(data)
        try:
            answer = asking.receive(data)
        except ProtocolError as exc:
            dial.proxy_failed(str(exc))
            return True
        if answer is not None:
            if answer.connected:
                self.buffer += asking.early
                self._dial = None
            dial.answered(answer)
        return len(self.buffer) < self.limit

    def write_eof(self) -> None:
        """The proxy has closed its side."""
        super().write_eof()
        if self._dial is not None:
            self._dial.proxy_failed("closed the connection before it answered")

    def abort(self, reason: Ending) -> None:
        """The connection broke."""
        super().abort(reason)
        if self._dial is not None:
            self._dial.broke()


class ProxyDial:
    """A pending dial; calls one of two callbacks once, unless cancelled."""

    def __init__(
        self,
        dialer: UserProxyDialer,
        proxy: ProxyAddress,
        target: HostPort | None,
        *,
        timeout_s: float,
        reached: Reached,
        failed: Failed,
    ) -> None:
        """``target`` None: connect to the proxy itself."""
        self._dialer = dialer
        self._proxy = proxy
        self._target = target
        self._reached = reached
        self._failed = failed
        self._below: Dialing | None = None
        self._end: BaseEnd | None = None
        self._answer: _Answer | None = None
        self.done = False
        self._deadline = dialer.loop.call_later(timeout_s, self._too_late)
        below = dialer.inner.dial(
            proxy.at, timeout_s=timeout_s, reached=self._at_proxy, failed=self._no_proxy
        )
        if not self.done and self._end is None:
            self._below = below

    def cancel(self) -> None:
        """Cancel without a callback."""
        if not self.done:
            self._finish()
            self._drop()

    def _no_proxy(self, failure: DialFailure, detail: str) -> None:
        why = f"{failure.value}: {detail}" if detail else failure.value
        # REFUSED would mean the target, of which nothing is known.
        self._fail(OF_THE_WAY.get(failure, failure), f"cannot be reached: {why}")

    def _at_proxy(self, end: BaseEnd) -> None:
        self._below = None
        if self.done:
            end.abort(Ending.CANCELLED)
            return
        if self._proxy.scheme == "http" and self._target is None:
            self._won(end)
            return
        asking = None
        if self._target is not None:
            asking = ConnectAsking(
                self._target, authorization=self._proxy.authorization, keep_early=True
            )
        answer = self._answer = _Answer(self, asking)
        if self._proxy.scheme == "https":
            self._secure(end, answer)
            return
        self._end = end
        join(end, answer)  # bytes that have arrived are read
        if self._answer is not None and end.ending is None:
            end.init_end(answer)  # and what follows the answer is early bytes of the next join
            answer.ask(end)

    def _secure(self, below: BaseEnd, answer: _Answer) -> None:
        poller = self._dialer.poller
        try:
            context = self._dialer.context()
            given, kept = socket.socketpair()
        except (OSError, ConfigError) as exc:
            below.abort(Ending.CANCELLED)
            self.proxy_failed(str(exc))
            return
        given.setblocking(False)
        kept.setblocking(False)
        inside = _Inside(kept, poller)
        end = self._end = _ProxyTls(
            given,
            poller,
            context,
            answer,
            inside=inside,
            name=self._proxy.at.host.rstrip("."),
            secured_by=self._secured,
        )
        join(below, inside)
        end.begin()
        answer.ask(end)

    def _secured(self) -> None:
        if self._target is None and self._answer is not None and self._end is not None:
            self._answer.leave()
            self._won(self._end)

    # Called by the reader of the answer.

    def answered(self, answer: ConnectAnswer) -> None:
        """The proxy has accepted or refused."""
        if answer.connected:
            assert self._end is not None
            self._won(self._end)
        else:
            failure = FAILURE_OF_STATUS.get(answer.status, DialFailure.INTERNAL)
            self._fail(failure, f"answered {answer.line}")

    def proxy_failed(self, why: str) -> None:
        """The answer is not that of a proxy."""
        self._fail(DialFailure.INTERNAL, why)

    def broke(self) -> None:
        """The connection broke before the answer."""
        error = self._end.error if isinstance(self._end, _ProxyTls) else ""
        self.proxy_failed(error or "the connection broke before it answered")

    def _too_late(self) -> None:
        self._fail(DialFailure.TIMED_OUT, "no answer in time")

    # The end of it.

    def _won(self, end: BaseEnd) -> None:
        reached = self._reached
        self._end = self._answer = None
        self._finish()
        reached(end)

    def _fail(self, failure: DialFailure, why: str) -> None:
        if not self.done:
            failed = self._failed
            self._finish()
            self._drop()
            failed(failure, f"proxy {self._proxy}: {why}")

    def _finish(self) -> None:
        self.done = True
        # The callback's owner refers to this dial: breaks a cycle that would need a collection.
        self._reached, self._failed = _nobody, _nobody
        self._deadline.cancel()

    def _drop(self) -> None:
        below, self._below = self._below, None
        answer, self._answer = self._answer, None
        end, self._end = self._end, None
        if answer is not None:
            answer.leave()
        if below is not None:
            below.cancel()
        if end is not None:
            end.abort(Ending.CANCELLED)


class UserProxyDialer:
    """Dials through the proxy if the rules say so, otherwise like the dialer below."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        inner: AnyDialer,
        *,
        rules: ProxyRules,
        context: Callable[[], ssl.SSLContext],
        without: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``context`` is for https proxies; ``without`` matches hosts that need no proxy."""
        self.loop = loop
        self.poller = poller
        self.inner = inner
        self.rules = rules
        self.context = context
        self._without = without

    def proxy_for(self, target: HostPort) -> ProxyAddress | None:
        """The proxy on the way to a target; None if there is none."""
        if self._without(target.host):
            return None
        return self.rules.proxy_for(target.host, target.port)

    def dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> Dialing:
        """Open a connection to a target; see DirectDialer."""
        proxy = self.proxy_for(target)
        if proxy is None:
            return self.inner.dial(target, timeout_s=timeout_s, reached=reached, failed=failed)
        return ProxyDial(self, proxy, target, timeout_s=timeout_s, reached=reached, failed=failed)

    def dial_proxy(
        self, proxy: ProxyAddress, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> Dialing:
        """Open a connection to a proxy itself, with TLS for an https proxy."""
        return ProxyDial(self, proxy, None, timeout_s=timeout_s, reached=reached, failed=failed)
