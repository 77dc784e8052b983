"""A server's use of the Kubernetes API: reviews of agents' tokens, Leases, its peers.

Without flags that need the API, nothing is requested or required.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from typing_extensions import override

from isthmus.frame.part import Ground, LongTask, Part
from isthmus.kube.api import Kube
from isthmus.kube.leases import LeaseCounter, LeaseKeeper
from isthmus.kube.opening import open_kube
from isthmus.kube.rules_leases import parse_labels, to_selector
from isthmus.kube.tokens import Expected, TokenReviewer
from isthmus.programs.server.agents import AgentDoor
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.server.settings import ServerSettings
from isthmus.values import HostPort, ServerId


class ServerKube(Part):
    """A server's use of the API; ``reviewer`` is None unless tokens are used."""

    def __init__(self, ground: Ground[ServerSettings, ServerMetrics], door: AgentDoor) -> None:
        self._ground = ground
        self._door = door
        self._kube: Kube | None = None
        self._lease: LeaseKeeper | None = None
        self._counter: LeaseCounter | None = None
        self.reviewer: TokenReviewer | None = None

    @override
    async def prepare(self) -> None:
        """Read the kubeconfig; nothing is sent yet."""
        settings = self._ground.settings
        if not settings.needs_kube:
            return
        self._kube = open_kube(
            settings.kubeconfig, qps=settings.kubeconfig_qps, burst=settings.kubeconfig_burst
        )
        if settings.wants_tokens:
            expected = Expected(
                audience=settings.authentication_audience,
                namespace=settings.agent_namespace,
                service_account=settings.agent_service_account,
            )
            self.reviewer = TokenReviewer(self._kube.tokens, expected)
        if settings.enable_lease_controller:
            self._keep_lease(self._kube)

    def _keep_lease(self, kube: Kube) -> None:
        settings, metrics = self._ground.settings, self._ground.metrics
        labels = parse_labels(settings.lease_label)
        leases = kube.leases(settings.lease_namespace)
        self._lease = LeaseKeeper(
            leases,
            server_id=ServerId(self._ground.id),
            labels=labels,
            metrics=metrics.leases,
            agent_address=settings.advertise_agent_address,
        )
        # Servers that count their own kind can tell our agents, which then need no access to the
        # API; the announced count replaces --server-count.
        self._counter = LeaseCounter(
            leases,
            selector=to_selector(labels),
            changed=self._door.counted,
            found=self._peers_found,
            metrics=metrics.leases,
        )

    def _peers_found(self, found: Mapping[ServerId, HostPort | None]) -> None:
        if self._door.peers.leased(found):
            self._door.tell_membership()

    @override
    def tasks(self) -> Iterable[LongTask]:
        if self._lease is not None and self._counter is not None:
            yield "lease", self._lease.run()
            yield "count", self._counter.run()

    @override
    async def wait_closed(self) -> None:
        """Delete the Lease, and close."""
        if self._lease is not None:
            await self._lease.stop()
        if self._kube is not None:
            await self._kube.close()
