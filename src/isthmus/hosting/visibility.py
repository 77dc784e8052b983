"""Who can see what: the topologies of each platform, and the design's lists for them.

Public and private are HyperShift's terms: a public cluster has endpoints for all clients, a private
one has endpoints that only the guest's own network reaches. A cluster can be both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    PlannedEndpoint,
    Platform,
    Publishing,
    Strategy,
    StrategyVerdict,
    Viewpoint,
    VisibleServices,
)
from isthmus.text.addresses import reached_address
from isthmus.values import HostPort, is_address

#: Serves a Route if no Service of this plan does.
INGRESS = "ingress of the management cluster"
SHARED_INGRESS = "shared ingress"
#: Selects a Route by its label, so that the ingress itself can be private.
PUBLIC_SHARD = "public ingress shard"
#: Not part of this plan either: the contents of S3 are public.
BUCKET = "S3 bucket"
IN_CLUSTER_ISSUER = "kubernetes.default.svc"
#: Not restricted, whatever the document says.
OPEN = frozenset({INGRESS, PUBLIC_SHARD, BUCKET})

EVERYWHERE = frozenset(Viewpoint)
GUEST_SIDE = frozenset({Viewpoint.GUEST_VPC, Viewpoint.MANAGEMENT, Viewpoint.SAME_CLUSTER})
IN_CLUSTER = frozenset({Viewpoint.SAME_CLUSTER})
#: The operator connects to kube-apiserver from its own namespace.
IN_MANAGEMENT = frozenset({Viewpoint.MANAGEMENT, Viewpoint.SAME_CLUSTER})

_PUBLIC = frozenset({EndpointAccess.PUBLIC, EndpointAccess.PUBLIC_AND_PRIVATE})
_PRIVATE = frozenset({EndpointAccess.PUBLIC_AND_PRIVATE, EndpointAccess.PRIVATE})
_TOPOLOGY: Mapping[tuple[bool, bool], EndpointAccess] = {
    (True, False): EndpointAccess.PUBLIC,
    (True, True): EndpointAccess.PUBLIC_AND_PRIVATE,
    (False, True): EndpointAccess.PRIVATE,
}


def is_public(cluster: HostedCluster) -> bool:
    """Whether there are public endpoints."""
    return cluster.platform not in cluster.model.with_access or cluster.access in _PUBLIC


def is_private(cluster: HostedCluster) -> bool:
    """Whether there are endpoints that only the guest's own network reaches."""
    if cluster.platform is Platform.AZURE and cluster.swift:
        return True
    return cluster.platform in cluster.model.with_access and cluster.access in _PRIVATE


class ServiceSides(NamedTuple):
    """Whether a service is published to all clients, and separately to the guest's network."""

    public: bool
    private: bool


def sides(cluster: HostedCluster, service: ControlPlaneService) -> ServiceSides:
    """Who sees a Route of a service, and kube-apiserver's load balancers, in this topology."""
    row = cluster.model.shown[_TOPOLOGY[is_public(cluster), is_private(cluster)]]
    return ServiceSides(service in row.public, service in row.private)


def is_sharded(cluster: HostedCluster, service: ControlPlaneService) -> bool:
    """Whether a public ingress shard serves a public Route."""
    return cluster.platform in cluster.model.with_access and service in cluster.model.sharded


def uses_ovn(cluster: HostedCluster) -> bool:
    """Whether OVN-Kubernetes makes the pod network."""
    return cluster.guest_network.type == "OVNKubernetes"


def is_in_bucket(cluster: HostedCluster, publishing: Publishing) -> bool:
    """Whether HyperShift puts the documents of the issuer into a bucket."""
    found = cluster.model.verdict(publishing.service, publishing.strategy, cluster.platform)
    return publishing.strategy is Strategy.S3 and found is StrategyVerdict.PUBLISHED


def issuer_host(cluster: HostedCluster) -> str:
    """The host of the issuer's URL; empty if it cannot be reached from outside."""
    try:
        host = urlsplit(cluster.issuer_url).hostname or ""
        HostPort(host, 443)
    except ValueError:
        return ""
    return "" if host == IN_CLUSTER_ISSUER else host


def has_to_be_listed(cluster: HostedCluster, service: ControlPlaneService) -> bool:
    """Whether a document without the service is refused; OVN's is needed only with OVN."""
    if service is ControlPlaneService.OVN_SB_DB:
        return uses_ovn(cluster) and service not in cluster.model.unused
    return service in cluster.model.required_on(cluster.platform)


def is_internal_balancer(cluster: HostedCluster, service: ControlPlaneService) -> bool:
    """Whether the only load balancer of a service is for the guest's own network."""
    return is_private(cluster) and service not in cluster.model.open_balancers


def behind_shared_ingress(cluster: HostedCluster) -> bool:
    """Whether one router serves several clusters. Swift exists only then."""
    return cluster.shared_ingress or cluster.swift


def names_api_server(cluster: HostedCluster) -> bool:
    """Whether kube-apiserver has a Route with its own name."""
    found = cluster.publishing(ControlPlaneService.API_SERVER)
    return found is not None and found.strategy is Strategy.ROUTE and bool(found.hostname)


def labels_routes(cluster: HostedCluster) -> bool:
    """Whether the control plane's own router serves public Routes.

    HyperShift's LabelHCPRoutes. Otherwise the ingress of the management cluster serves them; it
    never serves Routes for the guest's own network.
    """
    if behind_shared_ingress(cluster):
        return True
    if cluster.platform is Platform.IBMCLOUD:
        return False
    return not is_public(cluster) or names_api_server(cluster)


def uses_router(cluster: HostedCluster) -> bool:
    """Whether the control plane has its own router: HyperShift's UseHCPRouter."""
    if cluster.platform is Platform.IBMCLOUD:
        return False
    if behind_shared_ingress(cluster) and not is_private(cluster):
        return False
    return is_private(cluster) or labels_routes(cluster)


def seen_at_node(address: str) -> frozenset[Viewpoint]:
    """The viewpoints that see a port of a management node.

    A name may have any address, so it counts as public.
    """
    if is_address(address) and not reached_address(address).is_global:
        return GUEST_SIDE
    return EVERYWHERE


def is_published(endpoint: PlannedEndpoint) -> bool:
    """Whether an endpoint is for clients outside the management cluster."""
    return bool(endpoint.visible_from & {Viewpoint.INTERNET, Viewpoint.GUEST_VPC})


def seen_from(
    endpoints: Iterable[PlannedEndpoint], service: ControlPlaneService, where: Viewpoint
) -> tuple[PlannedEndpoint, ...]:
    """The endpoints of a service that this viewpoint can reach."""
    return tuple(
        each for each in endpoints if each.service is service and where in each.visible_from
    )


def listed(endpoints: Iterable[PlannedEndpoint]) -> VisibleServices:
    """The same two lists for a plan.

    The guest's network also sees public endpoints: only those made for that network alone count as
    private.
    """
    found = tuple(endpoints)
    public = {each.service for each in found if Viewpoint.INTERNET in each.visible_from}
    private = {
        each.service
        for each in found
        if Viewpoint.GUEST_VPC in each.visible_from and Viewpoint.INTERNET not in each.visible_from
    }
    return VisibleServices(frozenset(public), frozenset(private))
