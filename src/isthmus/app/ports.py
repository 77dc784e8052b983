"""The health and admin HTTP ports of a server and of an agent.

Paths and statuses are konnectivity's. Handlers call plain callables given in: this module knows
nothing of the program behind them. The snapshot's values are core/snapshot.py, the metrics
observe/metrics.py.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from isthmus.app.https_site import HttpsSite, Refused
from isthmus.core.snapshot import ProgramView
from isthmus.core.snapshot_json import json_chunks
from isthmus.errors import ConfigError
from isthmus.net.contexts import HotContext
from isthmus.net.listen import not_listening
from isthmus.observe.logs import OncePer

Handler = Callable[[web.BaseRequest], Awaitable[web.Response]]
Routes = Mapping[str, Handler]

DEFAULT_TUNNELS = 1000
MAX_TUNNELS = 100_000
IDLE_S = 60.0  # also the time for a whole request head, as konnectivity's ReadHeaderTimeout
MAX_LINE_BYTES = 8190
MAXHEADERS = 64
SHUTDOWN_S = 2.0
_QUIET_S = 60.0

_LOGGER = logging.getLogger("isthmus.ports")
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_OPEN_METRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
#: What every answer carries.
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that liveness or readiness depends on; ``failure`` is empty when it is well."""

    name: str
    failure: str = ""


PING = Check("ping")

Checks = Callable[[], list[Check]]
Metrics = Callable[[], bytes]
Snapshot = Callable[[int], ProgramView]


def server_health(
    *, live: Checks, ready: Checks, metrics: Metrics, open_metrics: Metrics | None = None
) -> Routes:
    """Give the paths of a server's health port; not well is 500, as in konnectivity."""
    return {
        **_health(live, ready, 500, False),
        "/metrics": partial(_metrics, metrics, open_metrics),
    }


def server_admin(
    *,
    live: Checks,
    ready: Checks,
    snapshot: Snapshot,
    metrics: Metrics,
    open_metrics: Metrics | None = None,
) -> Routes:
    """Give the paths of a server's admin port; those of profiles are debug_routes.py.

    ``snapshot`` is told how many tunnels to show at most, and counts the rest as truncated.
    """
    health = server_health(live=live, ready=ready, metrics=metrics, open_metrics=open_metrics)
    return {**health, "/snapshot": partial(_snapshot, snapshot)}


def agent_health(
    *, live: Checks, ready: Checks, metrics: Metrics, open_metrics: Metrics | None = None
) -> Routes:
    """Give the paths of an agent's health port; not well is 503 with one line per check."""
    return {**_health(live, ready, 503, True), "/metrics": partial(_metrics, metrics, open_metrics)}


def agent_admin(*, live: Checks, ready: Checks, snapshot: Snapshot, health_port: int) -> Routes:
    """Give the paths of an agent's admin port; metrics redirect to the health port, as in Go."""
    return {
        **_health(live, ready, 503, True),
        "/metrics": partial(_redirect, health_port),
        "/snapshot": partial(_snapshot, snapshot),
    }


def _health(live: Checks, ready: Checks, failed_status: int, lines: bool) -> Routes:
    # Who fails to live is ended for it: always say which check it was, as kube-apiserver does.
    liveness = partial(_answer, live, failed_status, True)
    readiness = partial(_answer, ready, failed_status, lines)
    return {
        "/healthz": liveness,
        "/livez": liveness,
        "/readyz": readiness,
        "/ready": readiness,  # deprecated in konnectivity, and still probed
    }


class Port:
    """A port that is being served. ``number`` is the bound one, also when 0 was asked for."""

    def __init__(
        self,
        runner: web.ServerRunner,
        sockets: Sequence[socket.socket],
        sites: Sequence[HttpsSite] = (),
    ) -> None:
        self._runner = runner
        self._sockets = sockets
        self._sites = sites
        self.number = int(sockets[0].getsockname()[1])

    def trouble(self) -> str:
        """Say why nobody can come in here; empty while all is well."""
        return next(filter(None, map(not_listening, self._sockets)), "")

    async def close(self) -> None:
        """Stop listening, give running requests a moment, and close every connection."""
        for site in self._sites:
            await site.close()
        await self._runner.cleanup()


async def serve(
    routes: Routes,
    *,
    host: str,
    port: int,
    host_flag: str,
    port_flag: str,
    tls: HotContext | None = None,
    refused: Refused = lambda _: None,
    admin: bool = False,
) -> Port:
    """Serve the routes; an empty host is every address, port 0 any free one.

    With ``tls`` it speaks HTTPS only; ``refused`` hears of failed handshakes. An admin
    port shows who talks to whom: anywhere but on loopback its clients must show a certificate, and
    where they need not it answers only requests that name a loopback host.

    Raises:
        ConfigError: the address cannot be bound, or an admin port would be open to the network.
            Nothing listens then.
    """
    addresses = await _resolve(host, host_flag)
    mutual = tls is not None and tls.current.verify_mode is ssl.CERT_REQUIRED
    guarded = admin and not mutual
    if guarded and not all(_is_loopback(address) for _, address in addresses):
        raise ConfigError(
            f"{host_flag}: {host or 'every address'} is not loopback, and an admin port needs TLS"
            " and clients with certificates anywhere else; use 127.0.0.1"
        )
    sockets = _bind(addresses, port, f"{port_flag}: port {port}", host or "every address")
    server = web.Server(
        partial(_dispatch, routes, host if guarded else None),
        access_log=None,
        logger=_QuietLog(),
        keepalive_timeout=IDLE_S,
        max_line_size=MAX_LINE_BYTES,
        max_field_size=MAX_LINE_BYTES,
        max_headers=MAXHEADERS,
        lingering_time=SHUTDOWN_S,
        handler_cancellation=True,  # who leaves wants no profile and no snapshot any more
    )
    runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    if tls is not None:
        sites = [HttpsSite(sock, server, tls, refused=refused) for sock in sockets]
        return Port(runner, sockets, sites)
    for sock in sockets:
        await web.SockSite(runner, sock).start()
    return Port(runner, sockets)


class _QuietLog(logging.LoggerAdapter[logging.Logger]):
    """What aiohttp logs to: it writes a traceback for every broken request that a peer sends."""

    def __init__(self) -> None:
        super().__init__(_LOGGER, {})
        self._limiter = OncePer()

    def log(self, level: int, msg: object, *args: object, **more: object) -> None:
        """Say each kind of failure once a minute."""
        exc = more.get("exc_info")
        if isinstance(exc, HttpProcessingError):
            self._limiter.log("", _QUIET_S, _LOGGER, logging.WARNING, "bad request", error=exc)
        elif isinstance(exc, BaseException):
            self._limiter.log(
                type(exc).__name__, _QUIET_S, _LOGGER, level, "request failed", exc_info=exc
            )


async def _resolve(host: str, flag: str) -> list[tuple[socket.AddressFamily, str]]:
    if not host:
        # One socket for both families, so that port 0 is one port.
        both = socket.has_dualstack_ipv6()
        return [(socket.AF_INET6, "::") if both else (socket.AF_INET, "0.0.0.0")]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:
        raise ConfigError(f"{flag}: cannot resolve {host!r}") from exc
    return list(dict.fromkeys((family, str(address[0])) for family, *_, address in found))


_REASONS = {
    errno.EADDRINUSE: "is in use",
    errno.EADDRNOTAVAIL: "cannot be bound: not an address of this machine",
    errno.EACCES: "may not be bound by this user",
}


def _bind(
    addresses: list[tuple[socket.AddressFamily, str]], port: int, what: str, where: str
) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            try:
                sock = socket.create_server(
                    (address, port), family=family, dualstack_ipv6=address == "::"
                )
            except OSError as exc:
                # localhost resolves to ::1 where IPv6 is off, too: one address will do.
                if exc.errno == errno.EADDRNOTAVAIL and (sockets or address != addresses[-1][1]):
                    continue
                raise
            sockets.append(sock)
            port = sock.getsockname()[1]
    except OSError as exc:
        for sock in sockets:
            sock.close()
        reason = _REASONS.get(exc.errno or 0, f"cannot be bound: {exc.strerror or exc}")
        raise ConfigError(f"{what} on {where} {reason}") from exc
    return sockets


async def _dispatch(
    routes: Routes, guarded: str | None, request: web.BaseRequest
) -> web.StreamResponse:
    """Answer a request; ``guarded`` is the host that a loopback-only port was told to bind."""
    if guarded is not None and not _names_us(guarded, request):
        return reply(403, "this port answers only to the name of a loopback host\n")
    handler = routes.get(request.path)
    if handler is None:
        return reply(404, "404 page not found\n")
    if request.method not in ("GET", "HEAD"):
        response = reply(405, "only GET and HEAD\n")
        response.headers["Allow"] = "GET, HEAD"
        return response
    return await handler(request)


def _names_us(bound: str, request: web.BaseRequest) -> bool:
    # A web page can make its own name resolve to 127.0.0.1 and read what a port on loopback
    # answers (DNS rebinding), but its browser still sends that name. Probes over HTTP/1.0 may
    # send no Host at all; no browser does.
    hosts = request.headers.getall("Host", [])
    if not hosts:
        return request.version < (1, 1)
    host = _host_only(hosts[0])
    return len(hosts) == 1 and (_is_loopback(host) or host.lower() == bound.lower())


def _host_only(authority: str) -> str:
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def _is_loopback(host: str) -> bool:
    if host.lower().removesuffix(".") == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def reply(status: int, text: str) -> web.Response:
    """Make an answer of plain text."""
    return web.Response(status=status, text=text, headers=HEADERS)


async def _answer(
    ask: Checks, failed_status: int, always_lines: bool, request: web.BaseRequest
) -> web.Response:
    checks = ask()
    failures = [check.failure for check in checks if check.failure]
    lines = "".join(
        f"[-]{check.name} failed: {check.failure}\n" if check.failure else f"[+]{check.name} ok\n"
        for check in checks
    )
    verbose = "verbose" in request.query
    if failures:
        return reply(failed_status, lines if verbose or always_lines else "; ".join(failures))
    return reply(200, f"{lines}check passed\n" if verbose else "ok")


async def _metrics(
    metrics: Metrics, open_metrics: Metrics | None, request: web.BaseRequest
) -> web.Response:
    headers = {**HEADERS, "Content-Type": _METRICS_TYPE, "Vary": "Accept"}
    if open_metrics is None or "application/openmetrics-text" not in request.headers.get(
        "Accept", ""
    ):
        return web.Response(body=metrics(), headers=headers)
    headers["Content-Type"] = _OPEN_METRICS_TYPE
    return web.Response(body=open_metrics(), headers=headers)


async def _redirect(health_port: int, request: web.BaseRequest) -> web.Response:
    host = _host_only(request.headers.get("Host", "")) or "127.0.0.1"
    authority = f"[{host}]:{health_port}" if ":" in host else f"{host}:{health_port}"
    # konnectivity leaves the scheme out; the health port never speaks TLS.
    response = reply(301, "moved permanently to the health port\n")
    response.headers["Location"] = (
        f"{'http:' if request.secure else ''}//{authority}{request.path_qs}"
    )
    return response


async def _snapshot(snapshot: Snapshot, request: web.BaseRequest) -> web.Response:
    asked = request.query.get("limit", str(DEFAULT_TUNNELS))
    if not (asked.isascii() and asked.isdigit() and len(asked) < 10):
        return reply(400, f"limit: not a whole number from 0 to {MAX_TUNNELS}\n")
    pieces: list[str] = []
    for piece in json_chunks(snapshot(min(int(asked), MAX_TUNNELS))):
        pieces.append(piece)
        # Tunnels go on while a large snapshot is written.
        await asyncio.sleep(0)
    body = "".join(pieces).encode()
    return web.Response(body=body, headers={**HEADERS, "Content-Type": "application/json"})
