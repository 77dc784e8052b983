"""Access to an admin port: its TLS and token, and who may make changes.

The port shows which peers are connected. On loopback it answers every user of the machine, if the
request names a loopback host; elsewhere, or with a token, clients must authenticate. Changes are
for identified clients only: by a certificate, by the token, or by the user of the connecting
process.
The token's file is checked on each request, not in between. If a changed file is invalid, the
previous token stays in use.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import ssl
import stat
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from aiohttp import web

from isthmus.errors import ConfigError, unreadable
from isthmus.frame.admin.answers import refuse
from isthmus.frame.admin.owner import Owner, descriptors_of, is_of_others, owner_of
from isthmus.frame.audit.model import cut
from isthmus.logs import OncePer, log
from isthmus.net.contexts import HotContext, TlsFiles, peer_identity, server_context
from isthmus.net.poller import is_carried
from isthmus.net.settings_ciphers import TLS12
from isthmus.settings.admin import AdminSettings
from isthmus.settings.rules_roles import Admits, Role
from isthmus.text.addresses import is_loopback
from isthmus.values import ANONYMOUS, Identity

#: States the intent. A browser sends it to another origin only after a preflight request, which is
#: never allowed. Its value is the last segment of the path.
INTENT = "X-Isthmus-Intent"
PROBES = frozenset({"/healthz", "/livez", "/readyz", "/ready"})
_operator: ContextVar[str] = ContextVar("operator")
_QUIET_S = 60.0
_ROOT = 0
#: Every client with a certificate, except those that isthmus pki issued for agents and servers.
ANYBODY = Admits(role=Role.CLIENT, flag="--admin-client-names")
_log = logging.getLogger("isthmus.ports")
FLAG = "--admin-token-file"
MIN_CHARS = 16
MAX_BYTES = 4096


class NotAllowed(Exception):
    """A refused change, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The access settings of an admin port.

    ``host`` is the loopback host it is bound to; None if clients authenticate, by a certificate
    that it ``admits`` or by the ``token``. ``open_paths`` need no token.
    """

    host: str | None
    admits: Admits = ANYBODY
    token: OperatorToken | None = None
    open_paths: Collection[str] = ()
    once: OncePer = field(default_factory=OncePer)
    #: Any client may cause a search in all of /proc: one at a time, because other work needs the
    #: threads, too.
    looking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1), compare=False)

    def refusal(self, request: web.BaseRequest) -> web.Response | None:
        """The refusal of a request, or None."""
        if self.host is not None and not _names_us(self.host, request):
            return refuse(403, "this port answers only requests for a loopback host name\n")
        # Such a page could read nothing, but profiles and snapshots cost time, and a browser
        # presents its certificate to any site's request. Changes have their own message.
        looks = request.method in ("GET", "HEAD")
        if looks and not self._is_open(request) and is_from_elsewhere(request):
            return refuse(403, "cross-site requests are not allowed\n")
        refusal = self._role_refusal(request)
        if refusal:
            self.once.log(
                "role", _QUIET_S, _log, logging.WARNING, "admin request refused",
                client=str(request.remote), reason=refusal,
            )  # fmt: skip
            return refuse(403, f"{refusal}\n")
        if self.token is None or self._is_open(request) or _shows(self.token, request):
            return None
        if "Authorization" in request.headers:
            self.once.log(
                "token", _QUIET_S, _log, logging.WARNING, "admin request with an invalid token",
                client=request.remote,
            )  # fmt: skip
        response = refuse(401, "this port requires the header Authorization: Bearer TOKEN\n")
        response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def _role_refusal(self, request: web.BaseRequest) -> str:
        """Why its certificate is not admitted; empty if it is, or if there is none."""
        identity = _identity(request)
        return self.admits.refusal(identity) if identity is not None else ""

    def _is_open(self, request: web.BaseRequest) -> bool:
        path = request.path
        return request.method in ("GET", "HEAD") and (path in PROBES or path in self.open_paths)

    async def admit_change(self, request: web.BaseRequest) -> web.Response | None:
        """The refusal of a change, or None; ``current_operator`` is then the client."""
        try:
            _operator.set(await self._operator(request))
        except NotAllowed as why:
            self.once.log(
                str(why), _QUIET_S, _log, logging.WARNING, "change refused",
                path=request.path, client=request.remote, reason=str(why),
            )  # fmt: skip
            return refuse(403, f"{why}\n")
        return None

    async def _operator(self, request: web.BaseRequest) -> str:
        _check_intent(request)
        name = _certificate(request)
        if name:
            return f"operator {name}"
        if self.token is not None:  # checked by refusal()
            return "operator with the token"
        return f"operator {await self._user(request)}"

    async def _user(self, request: web.BaseRequest) -> str:
        ends = [_end(request, name) for name in ("peername", "sockname")]
        async with self.looking:
            owner, held = await asyncio.to_thread(_look_up, *ends)
            of_others = owner is not None and (
                any(map(is_carried, held)) or await asyncio.to_thread(is_of_others, owner.inode)
            )
        if owner is None:
            raise NotAllowed(
                "cannot determine the user of the client; use the token of --admin-token-file or a"
                " certificate"
            )
        # A tunnel to this host's loopback ends in a socket of the program's own user.
        if of_others:
            raise NotAllowed("the request came through a tunnel of this program")
        if owner.uid not in (_ROOT, os.geteuid()):
            raise NotAllowed(
                f"only root and the user of this program may make changes, and this request is"
                f" from {owner.user}; or use the token of --admin-token-file or a"
                " certificate"
            )
        return owner.user


def current_operator() -> str:
    """The client of a change, in its handler."""
    return _operator.get()


def _check_intent(request: web.BaseRequest) -> None:
    word = request.path.rpartition("/")[2]
    if request.headers.getall(INTENT, []) != [word]:
        raise NotAllowed(f"changes require the header {INTENT}: {word}")
    if is_from_elsewhere(request):
        raise NotAllowed("cross-site requests cannot make changes")


def is_from_elsewhere(request: web.BaseRequest) -> bool:
    """Whether a browser sent this for a page of another site; other clients do not tell."""
    # A browser sets both of these itself, and no page can change them (Fetch §3.2, §3.6).
    sites = request.headers.getall("Sec-Fetch-Site", ["none"])
    if not all(site in ("same-origin", "none") for site in sites):
        return True
    here = request.headers.get("Host", "").lower()
    return any(_authority(origin) != here for origin in request.headers.getall("Origin", []))


def _authority(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _identity(request: web.BaseRequest) -> Identity | None:
    """The identity in the certificate of a connection; None if it has none."""
    transport = request.transport
    connection = transport.get_extra_info("ssl_object") if transport is not None else None
    if connection is None or not connection.getpeercert():
        return None
    return peer_identity(connection)


def _certificate(request: web.BaseRequest) -> str:
    identity = _identity(request)
    if identity is None:
        return ""
    return "with a nameless certificate" if identity == ANONYMOUS else f"CN={cut(identity.name)}"


def _end(request: web.BaseRequest, name: str) -> tuple[str, int]:
    found = request.transport.get_extra_info(name) if request.transport is not None else None
    if not found:
        raise NotAllowed("the client has disconnected")
    return str(found[0]), int(found[1])


def _look_up(client: tuple[str, int], ours: tuple[str, int]) -> tuple[Owner | None, list[int]]:
    owner = owner_of(client, ours)
    return owner, list(descriptors_of(owner.inode)) if owner is not None else []


def _shows(token: OperatorToken, request: web.BaseRequest) -> bool:
    shown = request.headers.getall("Authorization", [])
    if len(shown) != 1:
        return False
    scheme, _, value = shown[0].partition(" ")
    return scheme.lower() == "bearer" and token.matches(value.strip())


def _names_us(bound: str, request: web.BaseRequest) -> bool:
    # A web page can make its own name resolve to 127.0.0.1 and read the answers of a port on
    # loopback (DNS rebinding), but the browser still sends that name. Probes over HTTP/1.0 may
    # send no Host; browsers always do.
    hosts = request.headers.getall("Host", [])
    if not hosts:
        return request.version < (1, 1)
    host = host_only(hosts[0])
    return len(hosts) == 1 and (is_loopback(host) or host.lower() == bound.lower())


def host_only(authority: str) -> str:
    """Remove the port from ``host:port`` or ``[v6]:port``."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def admin_tls(
    settings: AdminSettings, *, min_version: str = "", suites: Sequence[str] = ()
) -> HotContext | None:
    """The TLS context that follows the admin port's files; None without --admin-cert.

    Raises:
        ConfigError: a file is wrong.
    """
    if not settings.cert:
        return None
    files = TlsFiles(
        cert=settings.cert,
        key=settings.key,
        ca=settings.client_ca,
        labels=("--admin-cert", "--admin-key", "--admin-client-ca"),
    )
    return HotContext(files, _build(min_version, suites), purpose="server")


def health_tls(
    cert: str, key: str, *, min_version: str = "", suites: Sequence[str] = ()
) -> HotContext | None:
    """The TLS context that follows the health port's files; None without --health-cert.

    Raises:
        ConfigError: a file is wrong.
    """
    if not cert:
        return None
    files = TlsFiles(cert, key, "", labels=("--health-cert", "--health-key", ""))
    return HotContext(files, _build(min_version, suites), purpose="server")


def _build(min_version: str, suites: Sequence[str]) -> Callable[[TlsFiles], ssl.SSLContext]:
    return partial(
        server_context,
        alpn=("http/1.1",),
        min_version=min_version or TLS12,
        cipher_suites=suites,
    )


def say_refused(once: OncePer, error: OSError, *, port: str = "admin") -> None:
    """Log a failed handshake at a port, each reason once a minute."""
    reason = error.reason if isinstance(error, ssl.SSLError) else type(error).__name__
    once.log(
        (port, reason), _QUIET_S, _log, logging.WARNING, f"{port} connection refused",
        reason=reason,
    )  # fmt: skip


def read_token(path: str, *, wait: bool = True) -> bytes:
    """Read a token: the whole file, without surrounding white space.

    With ``wait``, wait for a pipe, such as a shell's ``<(command)``.

    Raises:
        ConfigError: it cannot be read or is not a token; the error does not quote it.
    """
    flags = 0 if wait else os.O_NONBLOCK
    try:
        with open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as file:
            raw = file.read(MAX_BYTES + 1) or b""
    except (OSError, ValueError) as exc:
        raise unreadable(f"{FLAG} {path}", exc) from exc
    token = raw.strip()
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{FLAG} {path}: the token must have at most {MAX_BYTES} bytes")
    if len(token) < MIN_CHARS:
        raise ConfigError(
            f"{FLAG} {path}: the token must have at least {MIN_CHARS} characters, not"
            f" {len(token)}; create one with openssl rand -hex 32"
        )
    # What a header can carry (RFC 9110 §5.5), without white space.
    if not all(0x21 <= byte <= 0x7E for byte in token):
        raise ConfigError(
            f"{FLAG} {path}: the token must be one word of letters, digits and punctuation"
        )
    return token


class OperatorToken:
    """The token in its file."""

    def __init__(self, path: str) -> None:
        """Read it; logs a warning if every user of the machine can read it.

        Raises:
            ConfigError: it is wrong.
        """
        self._path = path
        self._failure = ""
        self._stamp = _stamp(path)
        self._token = read_token(path)
        if self._stamp and self._stamp[-1] & stat.S_IROTH:
            log(_log, logging.WARNING, "every user of this machine can read the admin token",
                file=path, mode=f"{stat.S_IMODE(self._stamp[-1]):04o}")  # fmt: skip

    def __repr__(self) -> str:
        return f"<OperatorToken {self._path}>"

    def matches(self, shown: str) -> bool:
        """Whether this is the token, compared in constant time."""
        self.look()
        return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), self._token)

    def look(self) -> None:
        """Reload the file if it has changed."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            # In the event loop, which must not wait for the writer of a pipe.
            token = read_token(self._path, wait=False)
        except ConfigError as exc:
            if str(exc) != self._failure:  # logged once, and tried again
                self._failure = str(exc)
                log(_log, logging.WARNING, "admin token not reloaded", reason=str(exc))
            return
        self._stamp, self._failure, self._token = stamp, "", token
        log(_log, logging.INFO, "admin token reloaded", file=self._path)


def _stamp(path: str) -> tuple[int, ...]:
    """The identity of the file's current state, through links (..data in Kubernetes volumes)."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ()
    if not stat.S_ISREG(found.st_mode):  # a pipe can be read only once
        return (found.st_dev, found.st_ino, found.st_mode)
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode)
