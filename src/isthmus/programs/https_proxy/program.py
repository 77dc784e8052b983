"""``isthmus https-proxy``: a sidecar that clients use as their HTTP proxy.

Connections go through the tunnel, and through the hosted cluster's own proxy if flags name one.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from functools import partial

from isthmus.dial.frontends.http_connect import no_place
from isthmus.dial.rules_service_names import CloudApis
from isthmus.frame.part import Ground, Part
from isthmus.frame.resources import allow_connections
from isthmus.frame.tunnels import TunnelsPart
from isthmus.net.connect import Dialing, Failed, Reached
from isthmus.net.contexts import HotContext, TlsFiles, client_context
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.net.rules_slots import AdmissionRefusal
from isthmus.programs.https_proxy.frontend import HttpClient
from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.https_proxy.through_user_proxy import UserProxyDialer
from isthmus.programs.sidecar.connections import SidecarConnections
from isthmus.programs.sidecar.metrics import HttpsProxyMetrics
from isthmus.programs.sidecar.password import PasswordFile
from isthmus.programs.sidecar.program import DialingPart, SidecarListening
from isthmus.values import HostPort, is_address


class _AtProxy:
    """Dials one proxy, regardless of the target."""

    def __init__(self, dialer: UserProxyDialer, proxy: ProxyAddress) -> None:
        self._dialer = dialer
        self._proxy = proxy

    def dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> Dialing:
        """Open a connection to the proxy."""
        return self._dialer.dial_proxy(
            self._proxy, timeout_s=timeout_s, reached=reached, failed=failed
        )


class HttpsConnections(SidecarConnections):
    """The connections of an HTTP proxy, and the HttpOwner of its clients."""

    plain: UserProxyDialer

    @property
    def counts(self) -> HttpsProxyMetrics:
        """Its metrics."""
        counts: HttpsProxyMetrics = self._ground.metrics
        return counts

    def say_no(self, sock: socket.socket, why: AdmissionRefusal) -> None:
        """Refuse a client above the limit with an HTTP status."""
        no_place(sock, why)

    def proxy_for(self, target: HostPort) -> ProxyAddress | None:
        """The proxy for plain requests to a target."""
        return self.plain.proxy_for(target)

    def dial_plain(
        self, target: HostPort, proxy: ProxyAddress | None, *, reached: Reached, failed: Failed
    ) -> Dialing:
        """Open a connection for plain requests: to the proxy, or to the target."""
        dialer = self.plain.inner if proxy is None else _AtProxy(self.plain, proxy)
        return self.dial(target, reached=reached, failed=failed, dialer=dialer)

    def answered(self, status: int) -> None:
        """Count an answer."""
        self.counts.answered(status)

    def carried(self, *, to_target: int = 0, to_client: int = 0) -> None:
        """Count bytes of plain requests and answers, including heads, like those of tunnels."""
        self.counts.bytes_to_target += to_target
        self.counts.bytes_to_client += to_client

    def reused(self) -> None:
        """Count a request that needed no dial."""
        self.counts.reused += 1

    def sent_again(self) -> None:
        """Count a request that was sent again."""
        self.counts.sent_again += 1


def parts(ground: Ground[HttpsProxySettings, HttpsProxyMetrics]) -> tuple[Part, ...]:
    """The parts of an HTTP proxy sidecar, foundations first.

    Dials go through the hosted cluster's own proxy, or without it.
    """
    settings = ground.settings
    allow_connections(settings.max_connections)
    password = PasswordFile(settings.username, settings.password_file)
    dialing, tunnels = DialingPart(ground), TunnelsPart(ground)
    cloud = CloudApis(settings.cloud_api_suffix, settings.never_cloud_hosts)
    direct = settings.connect_directly_to_cloud_apis
    metadata = dialing.dialer.metadata

    def without(host: str) -> bool:
        # The sidecar's own dialer denies a metadata address; the proxy would dial it.
        if is_address(host):
            return bool(metadata.refuse(host))
        return direct and bool(cloud.suffix_of(host))

    chain = partial(
        UserProxyDialer, ground.loop, ground.poller, dialing.dialer,
        context=_proxy_context(ground), without=without,
    )  # fmt: skip
    connections = HttpsConnections(
        ground, tunnels.table, make=HttpClient, dialer=chain(rules=settings.connect_rules),
        password=password,
    )  # fmt: skip
    connections.plain = chain(rules=settings.plain_rules)
    listening = SidecarListening(ground, connections)
    return password, dialing, tunnels, connections, listening


def _proxy_context(
    ground: Ground[HttpsProxySettings, HttpsProxyMetrics],
) -> Callable[[], ssl.SSLContext]:
    """The CAs that https proxies are verified with; read only if there is such a proxy."""
    settings = ground.settings
    hot: HotContext | None = None
    if settings.has_https_proxy:
        files = TlsFiles(
            "", "", "", labels=("", "", "--proxy-ca-path"), besides=settings.proxy_ca_path
        )
        hot = HotContext(files, partial(client_context, alpn=("http/1.1",)), purpose="client")
        ground.contexts.append(hot)

    def current() -> ssl.SSLContext:
        assert hot is not None  # not used without such a proxy
        return hot.current

    return current
