"""What is asked of the Kubernetes API about Services, as values and a protocol; see api.py."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from isthmus.core.service_names import Service, ServiceName
from isthmus.kube.api import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceEvent:
    """One line of a watch; ``resource_version`` is where to go on from."""

    change: Change
    service: Service
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceListing:
    """All Services at one version, from which a watch goes on."""

    services: Sequence[Service]
    resource_version: str


class Services(Protocol):
    """The Services of all namespaces. Every call raises KubeError, and none waits for ever."""

    async def list(self) -> ServiceListing:
        """Read all of them."""

    def watch(
        self, *, after: str, timeout_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[ServiceEvent]]:
        """Hear of every change after a version.

        The API ends a watch now and then. A version too old for it is a KubeError with status
        410, on entry or from the iterator: list again. Silence is for the caller to bound.
        """

    async def get(self, at: ServiceName) -> Service:
        """Read one; status 404 when there is none."""
