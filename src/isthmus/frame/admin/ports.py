"""The HTTP ports for operators: binding, serving, and which handler gets a request.

routes.py has the handlers, guard.py decides whom to answer. This module does not depend on the
program.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from isthmus.errors import ConfigError
from isthmus.frame.admin.answers import POST, Handler, Routes, reply
from isthmus.frame.admin.guard import ANYBODY, Guard, OperatorToken
from isthmus.logs import OncePer
from isthmus.net.connection_gate import source_named
from isthmus.net.contexts import HotContext
from isthmus.net.http_site import BACKLOG, HttpSite, Refused, Visitors
from isthmus.net.listen import not_listening
from isthmus.net.rules_slots import Allowance
from isthmus.net.systemd import PASSED
from isthmus.settings.rules_roles import Admits
from isthmus.text.addresses import is_loopback

IDLE_S = 60.0  # also the limit for a request head, like konnectivity's ReadHeaderTimeout
MAX_LINE_BYTES = 8190
MAXHEADERS = 64
SHUTDOWN_S = 2.0
_QUIET_S = 60.0
#: The cost of a request in the allowance of its source (net/rules_slots.py): 400 per second, with
#: a burst of 20,000.
_REQUEST_S = 0.0005

_LOGGER = logging.getLogger("isthmus.ports")


class Port:
    """An open port. ``number`` is the bound one, even if 0 was requested."""

    def __init__(
        self,
        runner: web.ServerRunner,
        sockets: Sequence[socket.socket],
        sites: Sequence[HttpSite],
    ) -> None:
        self._runner = runner
        self._sockets = sockets
        self._sites = sites
        self.number = int(sockets[0].getsockname()[1])

    def trouble(self) -> str:
        """Why no connections can be accepted; empty if they can."""
        return next(filter(None, map(not_listening, self._sockets)), "")

    async def close(self) -> None:
        """Stop listening, give running requests a moment, and close every connection."""
        for site in self._sites:
            await site.close()
        await self._runner.cleanup()


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAccess:
    """The protocol of a port: with ``tls`` HTTPS only; ``refused`` is called for failed handshakes.

    Every client is answered.
    """

    tls: HotContext | None = None
    refused: Refused = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAccess(PortAccess):
    """Access to an admin port.

    ``admits`` tells which certificates are admitted, ``open_paths`` need no ``token``; see Guard.
    """

    admits: Admits = ANYBODY
    token: OperatorToken | None = None
    open_paths: Collection[str] = ()


async def serve(
    routes: Routes,
    *,
    host: str,
    port: int,
    host_flag: str,
    port_flag: str,
    access: PortAccess | None = None,
) -> Port:
    """Serve the routes; an empty host is every address, port 0 any free one.

    An admin port, with an AdminAccess, shows which peers are connected: anywhere except on
    loopback its clients must present a certificate, or the token over TLS. Where neither is
    required, it answers only requests that name a loopback host. Only an admin port makes changes.

    Raises:
        ConfigError: the address cannot be bound, or an admin port would be open to the network.
            Nothing listens then.
    """
    access = access or PortAccess()
    admin = access if isinstance(access, AdminAccess) else None
    tls, token = access.tls, admin.token if admin is not None else None
    addresses = await _resolve(host, host_flag)
    passed = PASSED.take_tcp(port_flag, lambda: (host and addresses[0][1], port))
    if passed:  # by systemd; then their address counts
        addresses = [(sock.family, str(sock.getsockname()[0])) for sock in passed]
        host = addresses[0][1]
    mutual = tls is not None and tls.current.verify_mode is ssl.CERT_REQUIRED
    proven = mutual or (tls is not None and token is not None)
    if (
        admin is not None
        and not proven
        and not all(is_loopback(address) for _, address in addresses)
    ):
        raise ConfigError(
            f"{host_flag}: {host or 'every address'} is not loopback, where an admin port"
            f" requires TLS and clients with certificates or a token; use 127.0.0.1"
        )
    where = host or "every address"
    sockets = [*passed] or _bind(addresses, port, f"{port_flag}: port {port}", where)
    guard = None
    if admin is not None:
        guard = Guard(
            host=None if mutual or token is not None else host,
            admits=admin.admits,
            token=token,
            open_paths=admin.open_paths,
        )
    allowance = Allowance(asyncio.get_running_loop().time)
    server = web.Server(
        # Clients with a certificate have no request limit.
        partial(_dispatch, routes, guard, None if mutual else allowance),
        access_log=None,
        logger=_QuietLog(),
        keepalive_timeout=IDLE_S,
        max_line_size=MAX_LINE_BYTES,
        max_field_size=MAX_LINE_BYTES,
        max_headers=MAXHEADERS,
        lingering_time=SHUTDOWN_S,
        handler_cancellation=True,  # stops profiles and snapshots when the client leaves
    )
    runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    visitors = Visitors(made_room=partial(_say_full, OncePer(), port_flag))
    return Port(
        runner,
        sockets,
        [
            HttpSite(
                sock,
                server,
                visitors=visitors,
                context=tls,
                refused=access.refused,
                allowance=allowance,
            )
            for sock in sockets
        ],
    )


def _say_full(once: OncePer, flag: str, source: str) -> None:
    once.log(
        "", _QUIET_S, _LOGGER, logging.WARNING, "too many connections, closing the oldest",
        port=flag, source=source,
    )  # fmt: skip


class _QuietLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's logger, which writes a traceback for every invalid request of a peer."""

    def __init__(self) -> None:
        super().__init__(_LOGGER, {})
        self._limiter = OncePer()

    def log(self, level: int, msg: object, *args: object, **more: object) -> None:
        """Log each kind of failure once a minute."""
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
    errno.EACCES: "cannot be bound by this user",
}


def _bind(
    addresses: list[tuple[socket.AddressFamily, str]], port: int, what: str, where: str
) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    try:
        for family, address in addresses:
            try:
                sock = socket.create_server(
                    (address, port),
                    family=family,
                    backlog=BACKLOG,
                    dualstack_ipv6=address == "::",
                )
            except OSError as exc:
                # localhost resolves to ::1 even if IPv6 is off: one address is enough.
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
    routes: Routes, guard: Guard | None, allowance: Allowance | None, request: web.BaseRequest
) -> web.StreamResponse:
    """Answer a request, if the guard admits it; without a guard there are no changes."""
    source = source_named(request.remote) if request.remote else ""
    if allowance is not None and not allowance.spend(source, _REQUEST_S):
        response = reply(429, "too many requests from this address\n")
        response.force_close()
        return response
    refused = guard.refusal(request) if guard is not None else None
    if refused is not None:
        return refused
    path, method = request.path, request.method
    found = routes.get(path)
    if method in ("GET", "HEAD") and found is not None:
        return await found(request)
    change = _change(routes, path) if guard is not None else None
    if guard is not None and change is not None and method == "POST":
        return await guard.admit_change(request) or await change(request)
    allowed = ["GET", "HEAD"] * (found is not None) + ["POST"] * (change is not None)
    if not allowed:
        return reply(404, "404 page not found\n")
    response = reply(405, f"only {' and '.join(allowed)}\n")
    response.headers["Allow"] = ", ".join(allowed)
    return response


def _change(routes: Routes, path: str) -> Handler | None:
    """The handler of a POST to this path."""
    exact = routes.get(f"{POST}{path}")
    if exact is not None:
        return exact
    parts = path.split("/")
    for key, handler in routes.items():
        if key.startswith(POST) and "*" in key:
            wanted = key.removeprefix(POST).split("/")
            if len(wanted) == len(parts) and all(
                want in ("*", part) for want, part in zip(wanted, parts, strict=True)
            ):
                return handler
    return None
