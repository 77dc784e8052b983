"""Who is answered on an admin port: its TLS and token, and who may change something there.

The port shows who talks to whom. On loopback it is for whoever is on the machine, if a request
names a loopback host; elsewhere, or with a token, clients prove who they are. Changes are for whom
we can name: by a certificate, by the token, or by the user that the connecting process belongs to.
The token's file is looked at when somebody asks, not between requests: nothing else needs it. A
change that cannot be used leaves the token that was there.
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

#: Says what is meant. A browser sends it to another origin only after a preflight, and none is
#: ever allowed. Its value is the last word of the path.
INTENT = "X-Isthmus-Intent"
PROBES = frozenset({"/healthz", "/livez", "/readyz", "/ready"})
_operator: ContextVar[str] = ContextVar("operator")
_QUIET_S = 60.0
_ROOT = 0
#: Everybody with a certificate, but those that isthmus pki made for agents and servers.
ANYBODY = Admits(role=Role.CLIENT, flag="--admin-client-names")
_log = logging.getLogger("isthmus.ports")
FLAG = "--admin-token-file"
MIN_CHARS = 16
MAX_BYTES = 4096


class NotAllowed(Exception):
    """A change that is not made; one sentence that says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What an admin port was opened with.

    ``host`` is the loopback host that it was told to bind; None where clients prove who they are,
    by a certificate that it ``admits`` or by the ``token``. ``open_paths`` need no token.
    """

    host: str | None
    admits: Admits = ANYBODY
    token: OperatorToken | None = None
    open_paths: Collection[str] = ()
    once: OncePer = field(default_factory=OncePer)
    #: Whoever connects may ask, and answers are looked for in all of /proc: one at a time, as the
    #: threads are for others, too.
    looking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1), compare=False)

    def refusal(self, request: web.BaseRequest) -> web.Response | None:
        """Refuse to answer, or None."""
        if self.host is not None and not _names_us(self.host, request):
            return refuse(403, "this port answers only to the name of a loopback host\n")
        # Such a page could read nothing, but profiles and snapshots cost time, and a browser that
        # has a certificate shows it to everybody. Changes have a sentence of their own.
        looks = request.method in ("GET", "HEAD")
        if looks and not self._is_open(request) and is_from_elsewhere(request):
            return refuse(403, "this is not for pages of other sites\n")
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
                "token", _QUIET_S, _log, logging.WARNING, "admin request with a wrong token",
                client=request.remote,
            )  # fmt: skip
        response = refuse(401, "this port wants the header Authorization: Bearer TOKEN\n")
        response.headers["WWW-Authenticate"] = "Bearer"
        return response

    def _role_refusal(self, request: web.BaseRequest) -> str:
        """Why its certificate is not good here; empty: it is, or it shows none."""
        identity = _identity(request)
        return self.admits.refusal(identity) if identity is not None else ""

    def _is_open(self, request: web.BaseRequest) -> bool:
        path = request.path
        return request.method in ("GET", "HEAD") and (path in PROBES or path in self.open_paths)

    async def admit_change(self, request: web.BaseRequest) -> web.Response | None:
        """Refuse a change, or None: ``current_operator`` is then whoever asks for it."""
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
        if self.token is not None:  # which refusal() has seen
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
                "whose process asks cannot be told; show the token of --admin-token-file or a"
                " certificate"
            )
        # A tunnel to our own loopback ends in a socket of our own user.
        if of_others:
            raise NotAllowed("this came through a connection that this program made for others")
        if owner.uid not in (_ROOT, os.geteuid()):
            raise NotAllowed(
                f"only root and the user that this program runs as may change something, and this"
                f" comes from {owner.user}; or show the token of --admin-token-file or a"
                " certificate"
            )
        return owner.user


def current_operator() -> str:
    """Name who asks for a change, in the handler of one."""
    return _operator.get()


def _check_intent(request: web.BaseRequest) -> None:
    word = request.path.rpartition("/")[2]
    if request.headers.getall(INTENT, []) != [word]:
        raise NotAllowed(f"a change needs the header {INTENT}: {word}")
    if is_from_elsewhere(request):
        raise NotAllowed("a page of another site may change nothing here")


def is_from_elsewhere(request: web.BaseRequest) -> bool:
    """Tell whether a page of another site makes a browser ask this; tools do not say."""
    # Both of these a browser sets by itself, and no page can make it lie (Fetch §3.2, §3.6).
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
    """Who the certificate of a connection names; None: it has none."""
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
        raise NotAllowed("whoever asked has gone")
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
    # A web page can make its own name resolve to 127.0.0.1 and read what a port on loopback
    # answers (DNS rebinding), but its browser still sends that name. Probes over HTTP/1.0 may
    # send no Host at all; no browser does.
    hosts = request.headers.getall("Host", [])
    if not hosts:
        return request.version < (1, 1)
    host = host_only(hosts[0])
    return len(hosts) == 1 and (is_loopback(host) or host.lower() == bound.lower())


def host_only(authority: str) -> str:
    """Take the port away from ``host:port`` or ``[v6]:port``."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def admin_tls(
    settings: AdminSettings, *, min_version: str = "", suites: Sequence[str] = ()
) -> HotContext | None:
    """Make the context that follows the admin port's files; None without --admin-cert.

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
    """Make the context that follows the health port's files; None without --health-cert.

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
    """Log that somebody could not shake hands with a port, once a minute."""
    reason = error.reason if isinstance(error, ssl.SSLError) else type(error).__name__
    once.log(
        (port, reason), _QUIET_S, _log, logging.WARNING, f"{port} connection refused",
        reason=reason,
    )  # fmt: skip


def read_token(path: str, *, wait: bool = True) -> bytes:
    """Read a token: the whole file, without the blanks and line ends around it.

    A pipe, as a shell makes of ``<(command)``, is waited for; not without ``wait``.

    Raises:
        ConfigError: it cannot be read or is no token; nothing of it is quoted.
    """
    flags = 0 if wait else os.O_NONBLOCK
    try:
        with open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as file:
            raw = file.read(MAX_BYTES + 1) or b""
    except (OSError, ValueError) as exc:
        raise unreadable(f"{FLAG} {path}", exc) from exc
    token = raw.strip()
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{FLAG} {path}: a token has at most {MAX_BYTES} bytes")
    if len(token) < MIN_CHARS:
        raise ConfigError(
            f"{FLAG} {path}: a token has at least {MIN_CHARS} characters and this has {len(token)};"
            " make one with openssl rand -hex 32"
        )
    # What a header can carry (RFC 9110 §5.5), without what would be taken for its end.
    if not all(0x21 <= byte <= 0x7E for byte in token):
        raise ConfigError(f"{FLAG} {path}: a token is one word of letters, digits and signs")
    return token


class OperatorToken:
    """The token, as its file says it now."""

    def __init__(self, path: str) -> None:
        """Read it; says so in the log if everybody on the machine may.

        Raises:
            ConfigError: it is wrong.
        """
        self._path = path
        self._failure = ""
        self._stamp = _stamp(path)
        self._token = read_token(path)
        if self._stamp and self._stamp[-1] & stat.S_IROTH:
            log(_log, logging.WARNING, "everybody on this machine can read the admin token",
                file=path, mode=f"{stat.S_IMODE(self._stamp[-1]):04o}")  # fmt: skip

    def __repr__(self) -> str:
        return f"<OperatorToken {self._path}>"

    def matches(self, shown: str) -> bool:
        """Tell whether this is the token, in a time that tells nothing of it."""
        self.look()
        return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), self._token)

    def look(self) -> None:
        """Read the file again if it has changed."""
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        try:
            # In the event loop, which must not wait for whoever may write into a pipe.
            token = read_token(self._path, wait=False)
        except ConfigError as exc:
            if str(exc) != self._failure:  # said once, and looked at again
                self._failure = str(exc)
                log(_log, logging.WARNING, "the admin token was not reloaded", reason=str(exc))
            return
        self._stamp, self._failure, self._token = stamp, "", token
        log(_log, logging.INFO, "the admin token was reloaded", file=self._path)


def _stamp(path: str) -> tuple[int, ...]:
    """Tell one state of the file from another, through symbolic links (Kubernetes' ..data)."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ()
    if not stat.S_ISREG(found.st_mode):  # a pipe gives what it has once: it is not read again
        return (found.st_dev, found.st_ino, found.st_mode)
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode)
