"""``isthmus https-proxy``: a sidecar whose clients take it for their HTTP proxy.

What they ask for goes by the hosted cluster's own proxy where the flags name one, and by the tunnel
in any case.
"""

from __future__ import annotations

import socket
import ssl
from functools import partial

from isthmus.dial.frontends.http_connect import no_place
from isthmus.dial.rules_cloud_apis import CloudApis
from isthmus.frame.handed import Handed
from isthmus.net.connect import Failed
from isthmus.net.contexts import HotContext, TlsFiles, client_context
from isthmus.net.reaching import Dialing, Reached
from isthmus.net.rules_places import Full
from isthmus.net.rules_proxies import ProxyAddress
from isthmus.programs.https_proxy.frontend import HttpClient
from isthmus.programs.https_proxy.metrics import HttpsProxyMetrics
from isthmus.programs.https_proxy.settings import HttpsProxySettings
from isthmus.programs.https_proxy.through_user_proxy import UserProxyDialer
from isthmus.programs.sidecar.connections import SidecarConnections
from isthmus.programs.sidecar.program import Sidecar, run
from isthmus.values import HostPort, is_address


class _AtProxy:
    """Dials one proxy, whatever is asked for."""

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
    """The connections of an HTTP proxy; the HttpOwner that its clients ask."""

    plain: UserProxyDialer
    counts: HttpsProxyMetrics

    def say_no(self, sock: socket.socket, why: Full) -> None:
        """Tell a client that it is one too many, in its own words."""
        no_place(sock, why)

    def proxy_for(self, target: HostPort) -> ProxyAddress | None:
        """The proxy that plain requests for a target are sent to."""
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
        """Count bytes of plain requests and answers, heads included, as tunnels' are."""
        self.counts.bytes_to_target += to_target
        self.counts.bytes_to_client += to_client

    def reused(self) -> None:
        """Count a request that needed no dial."""
        self.counts.reused += 1

    def sent_again(self) -> None:
        """Count a request that was sent twice."""
        self.counts.sent_again += 1


class HttpsProxy(Sidecar):
    """A running HTTP proxy sidecar."""

    name = "https-proxy"
    settings: HttpsProxySettings
    metrics: HttpsProxyMetrics

    def __init__(self, settings: HttpsProxySettings, *, handed: Handed | None = None) -> None:
        """Read files, in the loop.

        Raises:
            ConfigError: one is wrong.
        """
        super().__init__(settings, HttpsProxyMetrics(), handed=handed)

    def make_connections(self) -> HttpsConnections:
        """Clients speak HTTP, and are dialed for by the hosted cluster's proxy or without it."""
        settings, context = self.settings, self._proxy_context()
        cloud = CloudApis(settings.cloud_api_suffix, settings.never_cloud_hosts)
        direct = settings.connect_directly_to_cloud_apis
        metadata = self.dialer.metadata

        def without(host: str) -> bool:
            # The sidecar's own dialer denies a metadata address; the proxy would dial it.
            if is_address(host):
                return bool(metadata.refuse(host))
            return direct and bool(cloud.suffix_of(host))

        chain = partial(
            UserProxyDialer,
            self.loop,
            self.poller,
            self.dialer,
            context=context,
            without=without,
        )
        connections = HttpsConnections(
            self.loop,
            self.poller,
            settings,
            metrics=self.metrics,
            once=self.once,
            make=HttpClient,
            dialer=chain(rules=settings.connect_rules),
            credentials=self.credentials,
        )
        connections.plain = chain(rules=settings.plain_rules)
        connections.counts = self.metrics
        return connections

    def _proxy_context(self) -> _ProxyContext:
        """What https proxies are trusted by; read now only if there is one."""
        settings = self.settings
        proxies = (settings.plain_rules.proxy, settings.connect_rules.proxy)
        if any(proxy is not None and proxy.scheme == "https" for proxy in proxies):
            files = TlsFiles("", "", settings.proxy_ca_path, labels=("", "", "--proxy-ca-path"))
            hot = HotContext(files, partial(client_context, alpn=("http/1.1",)), purpose="client")
            self.contexts.append(hot)
            return _ProxyContext(hot)
        return _ProxyContext(None)


class _ProxyContext:
    """The TLS of https proxies, as the file of authorities is now."""

    def __init__(self, hot: HotContext | None) -> None:
        self._hot = hot

    def __call__(self) -> ssl.SSLContext:
        assert self._hot is not None
        return self._hot.current


def main(settings: HttpsProxySettings) -> int:
    """Run the sidecar until it is told to stop; the exit code."""
    return run(lambda: HttpsProxy(settings), settings)


def in_worker(settings: HttpsProxySettings, handed: Handed) -> HttpsProxy:
    """Make the sidecar of a worker."""
    return HttpsProxy(settings, handed=handed)
