"""The periodic health checks of the apiserver proxy's upstreams.

HyperShift's haproxy.cfg describes a check that never runs, because its server line lacks ``check``.
rules.py evaluates the results; ways.py connects, so that a check takes the same way as connections.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

import h11

from isthmus import __version__
from isthmus.dial.dialers.through_server import tls_fault
from isthmus.errors import DialError
from isthmus.logs import log
from isthmus.net.connection_gate import endpoint
from isthmus.net.poller import Poller
from isthmus.net.tls import TlsEnd
from isthmus.programs.apiserver_proxy.metrics import ApiserverProxyMetrics
from isthmus.programs.apiserver_proxy.plan import Checks
from isthmus.programs.apiserver_proxy.planning import Prepared
from isthmus.programs.apiserver_proxy.rules import Upstream, UpstreamHealth, Upstreams
from isthmus.programs.apiserver_proxy.ways import Ways
from isthmus.tunnel.end import Early, Ending
from isthmus.values import HostPort
from isthmus.wire.proxy_protocol import ProxyHeader, Tlv

#: The earliest time after the start of a check at which a failed dial may trigger another.
SOON_S = 1.0
_log = logging.getLogger("isthmus.apiserver_proxy")


class _ProbeError(Exception):
    """An upstream is unhealthy; the message is the reason."""


class Checker:
    """Checks every upstream periodically."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        ways: Ways,
        upstreams: Upstreams,
        metrics: ApiserverProxyMetrics,
        prepared: Prepared,
    ) -> None:
        self._loop = loop
        self._poller = poller
        self._ways = ways
        self._upstreams = upstreams
        self._metrics = metrics
        self._prepared = prepared
        self._started: dict[HostPort, float] = {}
        self._due: dict[HostPort, float] = {}
        self._running: set[HostPort] = set()
        self._wake = asyncio.Event()

    def adopt(self, prepared: Prepared) -> None:
        """Adopt a plan, and check all upstreams at once."""
        self._prepared = prepared
        for known in (self._started, self._due):
            for at in [at for at in known if self._upstreams.find(at) is None]:
                del known[at]
        self._due.clear()
        if prepared.plan.check.kind is Checks.NONE:
            for upstream in self._upstreams:
                upstream.health = UpstreamHealth()  # nothing would correct its metrics any more
        self._wake.set()

    def hurry(self, at: HostPort) -> None:
        """Check an upstream soon, because a connection to it failed."""
        soon = max(self._loop.time(), self._started.get(at, float("-inf")) + SOON_S)
        if self._upstreams.find(at) is not None and soon < self._due.get(at, float("inf")):
            self._due[at] = soon
            self._wake.set()

    async def watch(self) -> None:
        """Check until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                wait_s = self._start_due(tasks)
                try:
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass

    def _start_due(self, tasks: asyncio.TaskGroup) -> float | None:
        """Begin the checks that are due; the time until the next one."""
        if self._prepared.plan.check.kind is Checks.NONE:
            return None
        now, waits = self._loop.time(), []
        for upstream in self._upstreams:
            at = upstream.at
            if at in self._running:
                continue  # its end wakes this loop
            due = self._due.get(at, now)
            if due <= now:
                self._running.add(at)
                self._started[at] = now
                self._due[at] = now + self._prepared.plan.check.interval_s
                tasks.create_task(self._run(upstream), name=f"check:{at}")
            else:
                waits.append(due - now)
        return min(waits, default=None)

    async def _run(self, upstream: Upstream) -> None:
        try:
            await self.check(upstream)
        finally:
            self._running.discard(upstream.at)
            self._wake.set()

    async def check(self, upstream: Upstream) -> None:
        """Check one upstream now, and record the result."""
        prepared = self._prepared
        check = prepared.plan.check
        limit_s = check.timeout_s or check.interval_s
        try:
            async with asyncio.timeout(limit_s):
                said, ok = await self._probe(upstream.at, prepared, limit_s), True
        except TimeoutError:
            said, ok = f"no answer within {limit_s:g} s", False
        except DialError as exc:
            said, ok = exc.detail or exc.reason.value, False
        except _ProbeError as exc:
            said, ok = str(exc), False
        if self._upstreams.find(upstream.at) is not upstream:
            return  # a new plan does not name it
        self._metrics.checked(str(upstream.at), ok)
        if upstream.health.checked(ok, said, check.bounds):
            level, word = (logging.INFO, "up again") if ok else (logging.WARNING, "down")
            log(_log, level, f"an upstream is {word}", upstream=str(upstream.at), said=said)
        elif not ok and _log.isEnabledFor(logging.DEBUG):
            log(_log, logging.DEBUG, "health check failed", upstream=str(upstream.at), said=said)

    async def _probe(self, at: HostPort, prepared: Prepared, limit_s: float) -> str:
        plan, context = prepared.plan, prepared.check_context
        sock = await self._ways.connect(at, limit_s, for_peer=False)
        if context is None:
            self._poller.close(sock)
            return "connected"
        if plan.proxy_protocol is not None:
            try:
                sock.send(_header(sock, plan.proxy_protocol))  # always fits into an empty buffer
            except OSError as exc:
                self._poller.close(sock)
                raise _ProbeError(f"{exc.strerror or exc}") from exc
        name = plan.check.server_name or at.host.rstrip(".")
        status = await _ask(
            self._loop, self._poller, sock, context.current, name=name,
            host=_host_header(plan.check.server_name, at), path=plan.check.path,
        )  # fmt: skip
        if not plan.check.is_alive(status):
            raise _ProbeError(f"answered {status} for {plan.check.path}")
        return f"answered {status} for {plan.check.path}"


def _host_header(name: str, at: HostPort) -> str:
    return str(HostPort(name, at.port) if name else at)


def _header(sock: socket.socket, tlvs: tuple[Tlv, ...]) -> bytes:
    """The PROXY header of a check: the TLVs of a connection, because peers may route by them.

    Behind an https proxy the socket is a UNIX socket, which has no addresses.
    """
    if sock.family == socket.AF_UNIX:
        return ProxyHeader(tlvs=tlvs).to_bytes()
    return ProxyHeader(
        source=endpoint(sock.getsockname()), destination=endpoint(sock.getpeername()), tlvs=tlvs
    ).to_bytes()


class _Server(TlsEnd):
    """The connection of a check."""

    __slots__ = ("error",)

    def __init__(
        self, sock: socket.socket, poller: Poller, context: ssl.SSLContext, early: Early, name: str
    ) -> None:
        self.error = ""
        super().__init__(sock, poller, context, early, server_hostname=name)

    def handshake_failed(self, error: ssl.SSLError) -> None:
        """Keep it for the sentence."""
        self.error = tls_fault(error)

    def tls_failed(self, error: ssl.SSLError) -> None:
        """Keep it for the sentence."""
        self.error = tls_fault(error)


class _Answer(Early):
    """Reads the status of an answer and sets the future once."""

    __slots__ = ("_http", "_status", "end", "request")

    def __init__(self, status: asyncio.Future[int], host: str, path: str) -> None:
        super().__init__()
        self._status = status
        self._http = h11.Connection(h11.CLIENT)
        headers = [
            ("Host", host),
            ("User-Agent", f"isthmus/{__version__}"),
            ("Accept", "*/*"),
            ("Connection", "close"),
        ]
        asked = h11.Request(method="GET", target=path, headers=headers)
        self.request = (self._http.send(asked) or b"") + (
            self._http.send(h11.EndOfMessage()) or b""
        )
        self.end: _Server | None = None

    def write(self, data: bytes) -> bool:
        """Parse more of the answer."""
        if self._status.done():
            return True
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
            while isinstance(event, h11.InformationalResponse):
                event = self._http.next_event()
        except h11.RemoteProtocolError as exc:
            self._fail(f"not HTTP: {exc}")
            return True
        if isinstance(event, h11.Response):
            self._status.set_result(event.status_code)
        return True

    def write_eof(self) -> None:
        """The upstream has closed its side."""
        self._fail("closed the connection without an answer")

    def abort(self, reason: Ending) -> None:
        """The connection or its handshake failed."""
        why = self.end.error if self.end is not None else ""
        self._fail(why or "the connection broke")

    def _fail(self, why: str) -> None:
        if not self._status.done():
            self._status.set_exception(_ProbeError(why))


async def _ask(
    loop: asyncio.AbstractEventLoop,
    poller: Poller,
    sock: socket.socket,
    context: ssl.SSLContext,
    *,
    name: str,
    host: str,
    path: str,
) -> int:
    """Request a path from a connected upstream; the status of its answer."""
    status: asyncio.Future[int] = loop.create_future()
    answer = _Answer(status, host, path)
    end = answer.end = _Server(sock, poller, context, answer, name)
    end.begin()
    end.write(answer.request)
    end.read_again()  # earlier bytes have used up their edge
    try:
        found = await status
    except BaseException:
        end.abort(Ending.CANCELLED)
        raise
    finally:
        answer.end = None  # breaks a reference cycle, so that both are freed at once
    end.write_eof()
    end.let_go()
    return found
