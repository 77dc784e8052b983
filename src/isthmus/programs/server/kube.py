"""What a server asks the Kubernetes API for: reviews of agents' tokens, Leases, its peers.

Without flags that need the API nothing is asked, and nothing has to be there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from isthmus.kube.api import Kube
from isthmus.kube.leases import LeaseCounter, LeaseKeeper
from isthmus.kube.opening import open_kube
from isthmus.kube.rules_leases import parse_labels, to_selector
from isthmus.kube.tokens import Expected, TokenReviewer
from isthmus.programs.server.agents import AgentDoor
from isthmus.programs.server.metrics import ServerMetrics
from isthmus.programs.server.settings import ServerSettings
from isthmus.values import HostPort, ServerId


class ServerKube:
    """The API as a server uses it; ``reviewer`` is None unless tokens are wanted."""

    def __init__(
        self,
        settings: ServerSettings,
        door: AgentDoor,
        *,
        server_id: ServerId,
        metrics: ServerMetrics,
    ) -> None:
        """Prepare; nothing is sent yet.

        Raises:
            ConfigError: the kubeconfig is wrong.
        """
        self._door = door
        self._kube: Kube | None = None
        self._lease: LeaseKeeper | None = None
        self._counter: LeaseCounter | None = None
        self.reviewer: TokenReviewer | None = None
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
            self._keep_lease(self._kube, settings, server_id, metrics)

    def _keep_lease(
        self, kube: Kube, settings: ServerSettings, server_id: ServerId, metrics: ServerMetrics
    ) -> None:
        labels = parse_labels(settings.lease_label)
        leases = kube.leases(settings.lease_namespace)
        self._lease = LeaseKeeper(
            leases,
            server_id=server_id,
            labels=labels,
            metrics=metrics.leases,
            agent_address=settings.advertise_agent_address,
        )
        # Servers that count their own kind can tell our agents, which then need no access to the
        # API; what they tell replaces --server-count.
        self._counter = LeaseCounter(
            leases,
            selector=to_selector(labels),
            changed=self._door.counted,
            found=self._peers_found,
            metrics=metrics.leases,
        )

    def _peers_found(self, found: Mapping[ServerId, HostPort]) -> None:
        if self._door.peers.leased(found):
            self._door.tell_membership()

    def watch(self, tasks: asyncio.TaskGroup) -> None:
        """Start what lives as long as the server."""
        if self._lease is not None and self._counter is not None:
            tasks.create_task(self._lease.run(), name="lease")
            tasks.create_task(self._counter.run(), name="count")

    async def close(self) -> None:
        """Give the Lease back, and close."""
        if self._lease is not None:
            await self._lease.stop()
        if self._kube is not None:
            await self._kube.close()
