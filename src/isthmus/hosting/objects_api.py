"""What publishes kube-apiserver: its Services and its Routes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from isthmus.hosting.model import HostedCluster, Platform, Publishing, Service, Strategy
from isthmus.hosting.shapes import (
    CLUSTER_IP,
    COMPONENT_LABEL,
    LOAD_BALANCER,
    VISIBILITY_LABEL,
    Door,
    Made,
    Manifest,
    api_name,
    balancer_annotations,
    internal_labels,
    published_as,
    route,
    router_labels,
    service,
)
from isthmus.hosting.visibility import behind_shared_ingress, is_private, is_public

NAME = "kube-apiserver"
PRIVATE = "kube-apiserver-private"
INTERNAL = "kube-apiserver-internal"
AZURE_BALANCER = "kube-apiserverlb"
PODS = {"app": NAME, COMPONENT_LABEL: NAME}
PORT = 6443
IBM_PORT = 2040
#: 6443 there belongs to the management cluster's own kube-apiserver.
AZURE_BALANCER_PORT = 7443
#: An IPv6 address as well, where the management cluster has any.
DUAL_STACK = {"ipFamilyPolicy": "PreferDualStack"}


def api_objects(cluster: HostedCluster) -> tuple[Made, ...]:
    """Services first; nothing where kube-apiserver is not published."""
    publishing = cluster.publishing(Service.API_SERVER)
    if publishing is None:
        return ()
    match publishing.strategy:
        case Strategy.LOAD_BALANCER:
            return tuple(_balancers(cluster, publishing))
        case Strategy.NODE_PORT:
            door = replace(_door(cluster), **published_as(publishing))
            return (_made(service(cluster, NAME, door), "opens a port for it on every node"),)
        case Strategy.ROUTE:
            return (_inside(cluster), *_routes(cluster, publishing))
        case _:
            return ()


def service_port(cluster: HostedCluster) -> int:
    """Where the Service listens inside the management cluster."""
    return IBM_PORT if cluster.platform is Platform.IBMCLOUD else PORT


def _door(cluster: HostedCluster) -> Door:
    return Door(
        port=service_port(cluster), target="client", selector=PODS, labels=PODS, more=DUAL_STACK
    )


def _made(manifest: Manifest, purpose: str) -> Made:
    return Made(manifest=manifest, purpose=purpose, service=Service.API_SERVER)


def _inside(cluster: HostedCluster) -> Made:
    found = service(cluster, NAME, replace(_door(cluster), type=CLUSTER_IP))
    return _made(found, "leads the control plane, and its router, to kube-apiserver")


def _balancers(cluster: HostedCluster, publishing: Publishing) -> Iterator[Made]:
    azure = cluster.platform is Platform.AZURE
    if is_public(cluster):
        found = service(cluster, AZURE_BALANCER if azure else NAME, _public(cluster, publishing))
        yield _made(found, "gives kube-apiserver an address for everybody")
    if azure or not is_public(cluster):
        yield _inside(cluster)
    if is_private(cluster):
        door = replace(
            _door(cluster),
            port=AZURE_BALANCER_PORT if azure else service_port(cluster),
            type=LOAD_BALANCER,
            labels={},
            annotations=balancer_annotations(cluster.platform, internal=True),
        )
        purpose = "gives kube-apiserver an address for the guest's own network"
        yield _made(service(cluster, PRIVATE, door), purpose)


def _public(cluster: HostedCluster, publishing: Publishing) -> Door:
    door = replace(_door(cluster), **published_as(publishing))
    cloud = balancer_annotations(cluster.platform, internal=False, both=is_private(cluster))
    more: dict[str, Any] = dict(door.more)
    if cluster.allowed_cidrs and not behind_shared_ingress(cluster):
        more["loadBalancerSourceRanges"] = list(cluster.allowed_cidrs)
    port = AZURE_BALANCER_PORT if cluster.platform is Platform.AZURE else door.port
    return replace(door, port=port, annotations={**cloud, **door.annotations}, more=more)


def _routes(cluster: HostedCluster, publishing: Publishing) -> Iterator[Made]:
    if is_public(cluster):
        found = route(cluster, NAME, publishing.hostname, NAME, labels=router_labels(cluster))
        yield _made(found, f"leads {publishing.hostname or 'its name'} to kube-apiserver")
    elif publishing.hostname:
        labels = {**internal_labels(cluster), VISIBILITY_LABEL: "private"}
        found = route(cluster, PRIVATE, publishing.hostname, NAME, labels=labels)
        purpose = f"leads {publishing.hostname} to kube-apiserver, in the guest's own network"
        yield _made(found, purpose)
    found = route(cluster, INTERNAL, api_name(cluster), NAME, labels=internal_labels(cluster))
    yield _made(found, "is where the router sends connections whose name it does not know")
