"""The dialer of the sidecars: chooses the way to a target, and tries its addresses.

Cloud APIs are dialed directly, or through the proxy in the environment; everything else through the
connectivity server, unless its tunnel does not work and flags allow going without. dialer_names.py
resolves names, in the order of dial/rules_name_order.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Coroutine, Mapping
from typing import Any

from isthmus.dial.dialers.direct import DirectDial, DirectDialer
from isthmus.dial.dialers.through_server import ServerDialer, ServerPlace
from isthmus.dial.rules_name_order import NameRules, Resolution, Source, Way
from isthmus.dial.rules_service_names import CloudApis, ServiceName
from isthmus.errors import ConfigError, DialFailure, LinkError, LinkStage
from isthmus.kube.api import Kube
from isthmus.kube.services import ServiceWatch
from isthmus.logs import log
from isthmus.net.connect import Dialing, Failed, Reached, literal
from isthmus.net.contexts import HotContext, TlsFiles, client_context, watch
from isthmus.net.poller import Poller
from isthmus.net.resolver import Resolver
from isthmus.net.rules_metadata import MetadataGuard
from isthmus.net.rules_proxies import FAILURE_OF_STATUS, ProxyAddress, ProxyRules
from isthmus.net.socket_end import SocketEnd
from isthmus.net.through_proxy import ProxyRefused, connect_through
from isthmus.net.tunnel_dns import TunnelDns
from isthmus.programs.sidecar.dialer_names import DNS_PORT, SidecarNames
from isthmus.programs.sidecar.rules_tunnel_health import TunnelHealth
from isthmus.programs.sidecar.settings import GRPC, SidecarSettings
from isthmus.tunnel.end import BaseEnd
from isthmus.values import HostPort, is_address

#: The Service of a guest cluster's DNS, if OpenShift's does not exist.
OPENSHIFT_DNS = "openshift-dns/dns-default"
KUBE_DNS = "kube-system/kube-dns"
_log = logging.getLogger("isthmus.names")
#: The least time for one address, however many follow it.
_LEAST_S = 1.0
#: Stands in for timeouts that are measured here, with an error text from here.
_LATER_S = 1.0


def _say_why(task: asyncio.Task[None]) -> None:
    """Log a watch that ended, which happens only because of a defect."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log(_log, logging.ERROR, "watch ended", watch=task.get_name(), exc_info=error)


class SidecarDialer:
    """Dials targets according to a sidecar's settings.

    Call ``start`` in the loop before the first dial; ``close`` ends everything.
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
        """``kube`` is the guest cluster's API; None if settings.needs_kube is False.

        Raises:
            ConfigError: a certificate, or a proxy in the environment, is invalid.
        """
        self.loop = loop
        self.poller = poller
        self.settings = settings
        self.resolver = resolver if resolver is not None else Resolver(loop)
        self.proxies = self._proxies(environment)
        #: The certificates for the connectivity server; None for a UNIX socket.
        self.context = self._context()
        self.tunnel = self._tunnel()
        self.metadata = MetadataGuard(settings.metadata_allowed)
        self.direct = DirectDialer(loop, poller, self.resolver, metadata=self.metadata)
        self._dns = TunnelDns(loop, self.tunnel)
        self.services = ServiceWatch(kube.services()) if kube is not None else None
        if self.services is None and settings.needs_kube:
            raise ConfigError("resolving names by Services needs the Kubernetes API")
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
        # Only cloud APIs use the proxy: if there are none, an invalid one does no harm.
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

    # Starting and closing.

    async def start(self) -> None:
        """Start watching Services and certificate files."""
        if self.services is not None:
            self._watch(self.services.run(), "services")
        if self.context is not None:
            self._watch(watch([self.context]), "certificates")

    def _watch(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = self.loop.create_task(work, name=name)
        task.add_done_callback(_say_why)
        self._tasks.append(task)

    async def close(self) -> None:
        """Cancel all dials and lookups, and close connections that are kept for later ones.

        With gRPC this ends open tunnels. The client of the cluster's API is the owner's to close.
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
        close = getattr(self.tunnel, "close", None)  # gRPC keeps connections
        if close is not None:
            close()

    # Dialing.

    async def resolve(self, name: str) -> Resolution:
        """Explain step by step how a name or an address would be reached; never raises.

        The name must be valid in a HostPort.
        """
        return await self.names.resolve(name)

    def dial(
        self, target: HostPort, *, timeout_s: float, reached: Reached, failed: Failed
    ) -> SidecarDial:
        """Open a connection; ``timeout_s`` covers all steps.

        The callbacks may be called before this returns.
        """
        dial = SidecarDial(self, target, timeout_s=timeout_s, reached=reached, failed=failed)
        self._dials.add(dial)
        dial.begin()
        return dial

    def over(self, dial: SidecarDial) -> None:
        """Forget a dial that has ended."""
        self._dials.discard(dial)

    def way(self, resolution: Resolution, port: int) -> Way:
        """The way to take now for an answer and a port."""
        if port == DNS_PORT and resolution.way is Way.DIRECT:
            # A DNS server of the guest cluster can only be reached there.
            return Way.TUNNEL
        if resolution.source is not Source.ADDRESS or port == DNS_PORT:
            return resolution.way
        if not self.names.rules.management_dns or self.names.health.works:
            return resolution.way
        # In the management network the address of a Service leads nowhere, or elsewhere.
        ours = self.services is not None and self.services.has_address(resolution.host)
        return resolution.way if ours else Way.DIRECT


def _nobody(*_: object) -> None:
    """Replaces the callbacks of a dial that has ended."""


def _failure_of(error: LinkError) -> DialFailure:
    """The failure of a target whose proxy failed."""
    if isinstance(error, ProxyRefused):
        return FAILURE_OF_STATUS.get(error.status, DialFailure.INTERNAL)
    # A missing proxy makes the target unreachable; one that fails TLS is a misconfiguration.
    return DialFailure.UNREACHABLE if error.stage is LinkStage.CONNECT else DialFailure.INTERNAL


class SidecarDial:
    """A pending dial; calls one of two callbacks once, unless cancelled."""

    __slots__ = (
        "_addresses",
        "_attempt",
        "_deadline",
        "_dialer",
        "_due",
        "_failed",
        "_reached",
        "_resolution",
        "_target",
        "_task",
        "_tried",
        "done",
    )

    def __init__(
        self,
        dialer: SidecarDialer,
        target: HostPort,
        *,
        timeout_s: float,
        reached: Reached,
        failed: Failed,
    ) -> None:
        self._dialer = dialer
        self._target = target
        self._due = dialer.loop.time() + timeout_s
        self._reached = reached
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self._attempt: Dialing | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._resolution: Resolution | None = None
        self._addresses: list[HostPort] = []
        self._tried = 0
        self.done = False

    def cancel(self) -> None:
        """Cancel without a callback."""
        if not self.done:
            self._finish()

    def begin(self) -> None:
        """Continue at once if the name can be resolved without a query."""
        known = self._dialer.names.known(self._target.host)
        if known is not None:
            self._go(known)
            return
        loop = self._dialer.loop
        self._deadline = loop.call_at(
            self._due, self._fail, DialFailure.TIMED_OUT, "the name was not resolved in time"
        )
        self._task = loop.create_task(self._resolve(), name=f"resolve:{self._target.host}")

    async def _resolve(self) -> None:
        try:
            resolution = await self._dialer.names.resolve(self._target.host)
        except Exception:  # a defect: report it to the caller and to the loop
            self._task = None
            self._fail(DialFailure.INTERNAL, "the name could not be resolved, see the log")
            raise
        self._task = None  # the rest does not run in this task
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if not self.done:
            self._go(resolution)

    def _go(self, resolution: Resolution) -> None:
        self._resolution = resolution
        if resolution.failure is not None:
            self._fail(resolution.failure, resolution.detail)
            return
        dialer, port = self._dialer, self._target.port
        way = dialer.way(resolution, port)
        dialer.names.counts.ways[way] += 1
        # A name that must use the tunnel after all is sent unresolved: its addresses are not there.
        usable = way is resolution.way or resolution.source is Source.ADDRESS
        hosts = resolution.addresses if usable else ()
        self._addresses = [HostPort(host, port) for host in hosts or (resolution.host,)]
        denied = [why for it in self._addresses if (why := self._denied(it))]
        if denied:
            self._addresses = [it for it in self._addresses if not self._denied(it)]
            if not self._addresses:
                self._fail(DialFailure.DENIED, denied[0])
                return
        match way:
            case Way.TUNNEL:
                self._try_next()
            case Way.DIRECT:
                self._dial_directly()
            case Way.PROXIED:
                self._dial_cloud(self._addresses[0])

    def _denied(self, at: HostPort) -> str:
        return self._dialer.metadata.refuse(at.host) if is_address(at.host) else ""

    @property
    def _left_s(self) -> float:
        return max(0.0, self._due - self._dialer.loop.time())

    # Through the tunnel.

    def _try_next(self) -> None:
        """Try the next address; each gets its share of the remaining time."""
        count = len(self._addresses)
        target = self._addresses.pop(0)
        self._tried += 1
        share_s = self._left_s if count == 1 else max(self._left_s / count, _LEAST_S)
        self._attempt = None
        attempt = self._dialer.tunnel.dial(
            target,
            timeout_s=min(share_s, self._left_s),
            reached=self._won,
            failed=self._one_failed,
        )
        # The callbacks may have run already, and begun the next dial.
        if not self.done and not attempt.done:
            self._attempt = attempt

    def _one_failed(self, failure: DialFailure, detail: str) -> None:
        if self.done:
            return
        if self._addresses and self._left_s > 0:
            self._try_next()
            return
        assert self._resolution is not None
        if self._resolution.source is Source.GUEST_DNS:
            self._dialer.names.forget(self._resolution)
        if self._tried > 1:
            detail = f"the last of {self._tried} addresses: {detail}".removesuffix(": ")
        self._fail(failure, detail)

    # Directly.

    def _dial_directly(self) -> None:
        dialer = self._dialer
        attempt = DirectDial(dialer.direct, self._left_s, self._won, self._fail)
        self._attempt = attempt
        attempt.try_each([literal(each.host, each.port) for each in self._addresses])

    def _dial_cloud(self, target: HostPort) -> None:
        proxy = self._dialer.proxies.proxy_for(target.host, target.port)
        if proxy is None:
            attempt = self._dialer.direct.dial(
                target, timeout_s=self._left_s, reached=self._won, failed=self._fail
            )
            if not self.done:
                self._attempt = attempt
            return
        self._task = self._dialer.loop.create_task(
            self._dial_by(proxy, target), name=f"proxy:{target}"
        )

    async def _dial_by(self, proxy: ProxyAddress, target: HostPort) -> None:
        dialer, left_s = self._dialer, self._left_s
        try:
            async with asyncio.timeout(left_s):
                sock = await connect_through(
                    dialer.poller,
                    dialer.resolver,
                    proxy,
                    target,
                    timeout_s=left_s + _LATER_S,
                    for_peer=True,
                )
        except TimeoutError:
            self._task = None
            self._fail(DialFailure.TIMED_OUT, f"proxy {proxy}: not connected within {left_s:g} s")
            return
        except LinkError as exc:
            self._task = None
            self._fail(_failure_of(exc), str(exc))
            return
        self._task = None
        self._take(sock)

    def _take(self, sock: socket.socket) -> None:
        if self.done:
            self._dialer.poller.close(sock)
            return
        end = SocketEnd(sock, self._dialer.poller)
        self._won(end)
        end.read_again()  # earlier bytes have used up their edge

    # The end of it.

    def _won(self, end: BaseEnd) -> None:
        reached = self._reached
        self._finish()
        reached(end)

    def _fail(self, failure: DialFailure, detail: str) -> None:
        failed = self._failed
        self._finish()
        failed(failure, detail)

    def _finish(self) -> None:
        self.done = True
        self._dialer.over(self)
        # The callback's owner refers to this dial: breaks a cycle that would need a collection.
        self._reached, self._failed = _nobody, _nobody
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
