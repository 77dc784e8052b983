"""Hosted clusters for tests, made as values: what a document of each platform would say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    Platform,
    Publishing,
    Strategy,
)
from isthmus.hosting.models import V1BETA1

USED = (
    ControlPlaneService.API_SERVER,
    ControlPlaneService.OAUTH_SERVER,
    ControlPlaneService.KONNECTIVITY,
    ControlPlaneService.IGNITION,
)
Entries = Mapping[ControlPlaneService, Publishing | Strategy]
LB, NODE_PORT, ROUTE = Strategy.LOAD_BALANCER, Strategy.NODE_PORT, Strategy.ROUTE


def published(service: ControlPlaneService, strategy: Strategy, **said: Any) -> Publishing:
    """An entry with a name, or an address and a port, of its own."""
    more: dict[str, Any] = {}
    if strategy in (LB, ROUTE):
        more["hostname"] = f"{service.value.lower()}.example.com"
        more["has"] = frozenset({"route" if strategy is ROUTE else "loadBalancer"})
    if strategy is NODE_PORT:
        more["node_address"] = "nodes.example.com"
        more["node_port"] = 30000 + list(ControlPlaneService).index(service)
        more["has"] = frozenset({"nodePort"})
    return Publishing(service=service, strategy=strategy, **{**more, **said})


def cluster(
    platform: Platform = Platform.AWS,
    access: EndpointAccess = EndpointAccess.PUBLIC,
    services: Entries | None = None,
    **said: Any,
) -> HostedCluster:
    """A cluster that breaks no rule: a load balancer for APIServer, Routes for the rest."""
    entries: dict[ControlPlaneService, Publishing | Strategy] = dict.fromkeys(USED, ROUTE)
    entries[ControlPlaneService.API_SERVER] = LB
    entries.update(services or {})
    private = platform is Platform.AZURE and access is not EndpointAccess.PUBLIC
    fields: dict[str, Any] = {
        "service_cidrs": ("172.31.0.0/16",),
        "cluster_cidrs": ("10.132.0.0/14",),
        "machine_cidrs": ("10.0.0.0/16",),
        "has_access": True,
        "advertise_address": "172.20.0.1",
        "azure_workload_identities": platform is Platform.AZURE,
        "azure_private_type": "PrivateLink" if private else "",
    }
    fields |= {
        "model": V1BETA1,
        "name": "demo",
        "namespace": "clusters",
        "control_plane": "clusters-demo",
    }
    return HostedCluster(
        platform=platform,
        access=access,
        services=tuple(
            each if isinstance(each, Publishing) else published(service, each)
            for service, each in entries.items()
        ),
        **{**fields, **said},
    )
