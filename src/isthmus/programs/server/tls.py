"""The certificates of a server's ports, and the effect of revocation."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable
from functools import partial

from typing_extensions import override

from isthmus.frame.part import Ground, LongTask, Part
from isthmus.frame.revoking import Revoking
from isthmus.frame.tunnels import TunnelTable
from isthmus.links.link import Link
from isthmus.links.server_side import AgentLink
from isthmus.net.certificates import authorities
from isthmus.net.contexts import HotContext, TlsFiles, server_context
from isthmus.net.revocation import REVOKED, Revocations
from isthmus.net.revocation import watch as watch_lists
from isthmus.programs.server.metrics import ServerMetrics, TlsPort, TlsRefusal
from isthmus.programs.server.rules_role_warnings import role_warnings
from isthmus.programs.server.settings import GRPC, HTTP_CONNECT, ServerSettings

# OpenSSL's own names of its reasons; they are stable identifiers, not messages.
_BY_REASON = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": TlsRefusal.NO_CERTIFICATE,
    "CERTIFICATE_VERIFY_FAILED": TlsRefusal.BAD_CERTIFICATE,
    "TLSV1_ALERT_UNKNOWN_CA": TlsRefusal.BAD_CERTIFICATE,
    REVOKED: TlsRefusal.REVOKED,
    "HTTP_REQUEST": TlsRefusal.NOT_TLS,
    "WRONG_VERSION_NUMBER": TlsRefusal.NOT_TLS,
    "UNKNOWN_PROTOCOL": TlsRefusal.NOT_TLS,
    "HTTPS_PROXY_REQUEST": TlsRefusal.NOT_TLS,
}


def refusal_of(error: ssl.SSLError) -> TlsRefusal:
    """Name the reason of a failed handshake."""
    return _BY_REASON.get(error.reason or "", TlsRefusal.OTHER)


#: The ALPN names of each mode; a CONNECT port must not negotiate h2.
_ALPN: dict[str, tuple[str, ...]] = {GRPC: ("h2",), HTTP_CONNECT: ()}
_log = logging.getLogger("isthmus.server")


class ServerTls(Part):
    """The contexts of the frontends and the agent port, and the lists of revoked certificates.

    ``agent_alpn`` are the ALPN names for agents; ``links`` returns every link that may be cut.
    """

    def __init__(self, ground: Ground[ServerSettings, ServerMetrics], tunnels: TunnelTable) -> None:
        self._ground = ground
        self._settings = ground.settings
        self._tunnels = tunnels
        self._revoking = Revoking(
            once=ground.once, metrics=ground.metrics.revocation, poller=ground.poller
        )
        self._frontends: dict[str, HotContext] = {}
        self._agents: HotContext | None = None
        self.agent_alpn: Callable[[], tuple[str, ...]] = tuple
        self.links: Callable[[], Iterable[Link]] = tuple
        ground.admin_refused = self._admin_refused

    def client_context(self, mode: str) -> ssl.SSLContext:
        """The current context of a frontend."""
        return self._frontends[mode].current

    @property
    def agents(self) -> HotContext:
        """The context of the agent port; available once prepared."""
        assert self._agents is not None
        return self._agents

    def revoked_agents(self) -> Revocations | None:
        """The lists for links, if any; available once prepared."""
        return self._revoking.all.get("cluster")

    def cut_token(self, link: AgentLink, why: str) -> None:
        """End the link of an agent whose token became invalid."""
        self._revoking.cut_link(link, self._tunnels, kind="token", why=why)

    def _cut_revoked(self) -> None:
        self._revoking.cut([*self.links()], self._tunnels)

    def _admin_refused(self, error: OSError) -> None:
        if isinstance(error, ssl.SSLError):
            self._ground.metrics.tls_refused(TlsPort.ADMIN, refusal_of(error))

    # Part.

    @override
    async def prepare(self) -> None:
        settings, read = self._settings, self._revoking.read
        read(
            "cluster",
            settings.revocation.cluster_crl_file,
            settings.cluster_ca_cert,
            prefix="cluster-",
        )
        read(
            "server", settings.revocation.server_crl_file, settings.server_ca_cert, prefix="server-"
        )
        for door in settings.doors:
            if door.port is not None:
                self._frontends[door.mode] = self._hot(
                    "server", settings.server_ca_cert, alpn=_ALPN[door.mode]
                )
        self._agents = self._hot("cluster", settings.cluster_ca_cert, alpn=self.agent_alpn())

    def _hot(self, flags: str, ca: str, *, alpn: tuple[str, ...]) -> HotContext:
        settings = self._settings
        files = TlsFiles(
            cert=getattr(settings, f"{flags}_cert"),
            key=getattr(settings, f"{flags}_key"),
            ca=ca,
            labels=(f"--{flags}-cert", f"--{flags}-key", f"--{flags}-ca-cert"),
        )
        build = partial(
            server_context,
            alpn=alpn,
            min_version=settings.tls_min_version or "VersionTLS12",
            cipher_suites=settings.cipher_suites,
            revocations=self._revoking.all.get(flags),
        )
        context = HotContext(files, build, purpose="server")
        self._ground.contexts.append(context)
        return context

    @override
    def start(self) -> None:
        settings = self._settings
        for warning in (*settings.warnings(), *role_warnings(settings, authorities)):
            _log.warning(warning)

    @override
    def tasks(self) -> Iterable[LongTask]:
        if self._revoking.all:
            yield "crl", watch_lists([*self._revoking.all.values()], self._cut_revoked)
