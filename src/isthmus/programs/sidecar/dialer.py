"""The dialer of the sidecars: by which way a target is reached, and trying its addresses.

A cloud API is dialed from here, by the proxy that the environment names; everything else through
the connectivity server, unless its tunnel does not work and the flags allow to do without. Names
are sidecar_names.py's, the order dial/rules_name_order.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Coroutine, Mapping
from typing import Any

from isthmus.dial.dialers.direct import DirectDialer
from isthmus.dial.dialers.through_server import ServerDialer, ServerPlace
from isthmus.dial.rules_name_order import NameRules, Resolution, Source, Way
from isthmus.dial.rules_service_names import CloudApis, ServiceName
from isthmus.errors import ConfigError
from isthmus.kube.api import Kube
from isthmus.kube.services import ServiceWatch
from isthmus.logs import log
from isthmus.net.connect import Failed, Reached
from isthmus.net.contexts import HotContext, TlsFiles, client_context, watch
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_metadata import MetadataGuard
from isthmus.net.rules_proxies import ProxyRules
from isthmus.net.tunnel_dns import TunnelDns
from isthmus.programs.sidecar.dialer_dial import SidecarDial
from isthmus.programs.sidecar.dialer_names import DNS_PORT, SidecarNames
from isthmus.programs.sidecar.rules_tunnel_health import TunnelHealth
from isthmus.programs.sidecar.settings import GRPC, SidecarSettings
from isthmus.values import HostPort

#: Where the DNS of a guest cluster is when it is not where OpenShift has it.
OPENSHIFT_DNS = "openshift-dns/dns-default"
KUBE_DNS = "kube-system/kube-dns"
_log = logging.getLogger("isthmus.names")


def _say_why(task: asyncio.Task[None]) -> None:
    """Tell of a watch that ended, which none does unless something is wrong with it."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log(_log, logging.ERROR, "a watch has ended", watch=task.get_name(), exc_info=error)


class SidecarDialer:
    """Dials targets as one sidecar's settings say.

    ``start`` has to run before the first dial, in the loop; ``close`` ends everything.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        settings: SidecarSettings,
        *,
        kube: Kube | None,
        environment: Mapping[str, str],
        resolver: Resolver | None = None,
        health: TunnelHealth | None = None,
    ) -> None:
        """``kube`` is the guest cluster's API; None where settings.needs_kube is not.

        Raises:
            ConfigError: a certificate cannot be used, or a proxy of the environment not be read.
        """
        self.loop = loop
        self.poller = poller
        self.settings = settings
        self.resolver = resolver if resolver is not None else Resolver(loop)
        self.proxies = self._proxies(environment)
        #: The certificates of the connectivity server's connections; None at a UNIX socket.
        self.context = self._context()
        self.tunnel = self._tunnel()
        self.metadata = MetadataGuard(settings.metadata_allowed)
        self.direct = DirectDialer(loop, poller, self.resolver, metadata=self.metadata)
        self._dns = TunnelDns(loop, self.tunnel)
        self.services = ServiceWatch(kube.services()) if kube is not None else None
        if self.services is None and settings.needs_kube:
            raise ConfigError("names are resolved by Services, which need the Kubernetes API")
        self.names = SidecarNames(
            loop,
            self._rules(),
            services=self.services,
            dns=self._dns,
            dns_services=self._dns_services(),
            resolver=self.resolver,
            health=health,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._dials: set[SidecarDial] = set()

    def __repr__(self) -> str:
        return f"<SidecarDialer {self.tunnel.place}, {len(self._dials)} dials>"

    # Settings.

    def _proxies(self, environment: Mapping[str, str]) -> ProxyRules:
        # Only cloud APIs are reached by it: without them a wrong one is nobody's business.
        if not self.settings.connect_directly_to_cloud_apis:
            return ProxyRules()
        return ProxyRules.from_environment(environment)

    def _context(self) -> HotContext | None:
        settings = self.settings
        if settings.server_at is None:
            return None
        alpn = ("h2",) if settings.konnectivity_protocol == GRPC else ()

        def build(files: TlsFiles) -> ssl.SSLContext:
            return client_context(files, alpn=alpn)

        files = TlsFiles(
            settings.tls_cert_path,
            settings.tls_key_path,
            settings.ca_cert_path,
            labels=("--tls-cert-path", "--tls-key-path", "--ca-cert-path"),
        )
        return HotContext(files, build, purpose="client")

    def _tunnel(self) -> ServerDialer:
        settings, context = self.settings, self.context
        place = ServerPlace(
            uds=settings.konnectivity_uds,
            tcp=settings.server_at,
            context=(lambda: context.current) if context is not None else None,
        )
        if settings.konnectivity_protocol == GRPC:
            from isthmus.dial.dialers.through_grpc import GrpcDialer

            return GrpcDialer(self.loop, self.poller, self.resolver, place)
        from isthmus.dial.dialers.through_connect import ConnectDialer

        return ConnectDialer(self.loop, self.poller, self.resolver, place)

    def _rules(self) -> NameRules:
        settings = self.settings
        cloud = None
        if settings.connect_directly_to_cloud_apis:
            cloud = CloudApis(settings.cloud_api_suffix, settings.never_cloud_hosts)
        return NameRules(
            cloud=cloud,
            enabled=not settings.disable_resolver,
            guest_dns=settings.resolve_from_guest_cluster_dns,
            management_dns=settings.resolve_from_management_cluster_dns,
            must_resolve=settings.resolve_before_dial,
            prefer_ipv4=settings.prefer_ipv4,
            cluster_domain=settings.cluster_domain,
        )

    def _dns_services(self) -> list[ServiceName]:
        first = self.settings.guest_dns_service
        names = [first, KUBE_DNS] if first == OPENSHIFT_DNS else [first]
        return [ServiceName.parse(name) for name in names]

    # Its life.

    async def start(self) -> None:
        """Watch what is watched: Services, and the files of certificates."""
        if self.services is not None:
            self._watch(self.services.run(), "services")
        if self.context is not None:
            self._watch(watch([self.context]), "certificates")

    def _watch(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self.loop.create_task(work, name=name)
        task.add_done_callback(_say_why)
        self._tasks.append(task)

    async def close(self) -> None:
        """Give up every dial and lookup, and let go of what is kept for later ones.

        By gRPC, tunnels that are open end with it; the API of the cluster stays its owner's.
        """
        for dial in list(self._dials):
            dial.cancel()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._dns.close()
        self.resolver.close()
        close = getattr(self.tunnel, "close", None)  # by gRPC, connections are kept
        if close is not None:
            close()

    # Dialing.

    async def resolve(self, name: str) -> Resolution:
        """Say how a name, or an address, would be reached, step by step; never raises for it.

        The name has to be one that a HostPort can have.
        """
        return await self.names.resolve(name)

    def dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> SidecarDial:
        """Open a connection; ``timeout_s`` is for all of it.

        The callbacks may come before this returns.
        """
        dial = SidecarDial(self, target, timeout_s=timeout_s, reached=reached, failed=failed)
        self._dials.add(dial)
        dial.begin()
        return dial

    def over(self, dial: SidecarDial) -> None:
        """A dial has ended, one way or another."""
        self._dials.discard(dial)

    def way(self, resolution: Resolution, port: int) -> Way:
        """The way to take, now, for an answer and a port."""
        if port == DNS_PORT and resolution.way is Way.DIRECT:
            # A DNS server of the guest cluster is nowhere but there.
            return Way.TUNNEL
        if resolution.source is not Source.ADDRESS or port == DNS_PORT:
            return resolution.way
        if not self.names.rules.management_dns or self.names.health.works:
            return resolution.way
        # The address of a Service means nothing, or somebody else, in the management network.
        ours = self.services is not None and self.services.has_address(resolution.host)
        return resolution.way if ours else Way.DIRECT
