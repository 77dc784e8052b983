"""What is asked of the Kubernetes API about Services, as values and a protocol; see api.py."""

from __future__ import annotations

from typing import Protocol

from isthmus.dial.rules_service_names import Service, ServiceName
from isthmus.kube.following import Source


class Services(Source[Service], Protocol):
    """The Services of all namespaces. Every call raises KubeError, and none waits for ever."""

    async def get(self, at: ServiceName) -> Service:
        """Read one; status 404 when there is none."""
