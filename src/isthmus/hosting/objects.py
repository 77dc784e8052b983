"""Everything that the management cluster gets, in the order in which it is applied.

First who may connect, then what there is to connect to, then the names it is found by.
objects_api.py and objects_others.py know the services, network_policies.py who may connect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from isthmus.hosting.model import HostedCluster, Service
from isthmus.hosting.network_policies import limited, network_policies
from isthmus.hosting.objects_api import api_objects
from isthmus.hosting.objects_others import other_objects
from isthmus.hosting.shapes import (
    CLUSTER_IP,
    LOAD_BALANCER,
    Door,
    Made,
    balancer_annotations,
    service,
)
from isthmus.hosting.visibility import (
    behind_shared_ingress,
    is_private,
    is_public,
    labels_routes,
    uses_router,
)

ROUTER = "router"
PRIVATE_ROUTER = "private-router"
_ROUTER_PODS = {"app": PRIVATE_ROUTER}


def objects(cluster: HostedCluster, *, keep_sources: bool = False) -> tuple[Made, ...]:
    """What to apply, each with its purpose.

    ``keep_sources`` makes the allowed CIDR blocks hold where the cloud does not see to it: a node
    passes on only to its own pods, so that they see where a connection comes from, and a
    NetworkPolicy lets only those blocks and the machine network in.
    """
    found = (*api_objects(cluster), *other_objects(cluster), *_router_services(cluster))
    if keep_sources:
        found = tuple(_keeping(cluster, each) for each in found)
    order = {"Service": 0, "Route": 1}
    after = sorted(found, key=lambda each: order[each.manifest["kind"]])
    return (*network_policies(cluster, found, keep_sources=keep_sources), *after)


def _keeping(cluster: HostedCluster, made: Made) -> Made:
    if not limited(cluster, made):
        return made
    spec = {**made.manifest["spec"], "externalTrafficPolicy": "Local"}
    return replace(made, manifest={**made.manifest, "spec": spec})


def _router_services(cluster: HostedCluster) -> Iterator[Made]:
    """Where the control plane's own router listens; ``Made.service`` is none of it alone."""
    if not uses_router(cluster):
        return
    if behind_shared_ingress(cluster):
        # Swift brings the guest's own network to the router's pods.
        made = service(cluster, PRIVATE_ROUTER, _router_door(CLUSTER_IP))
        yield Made(manifest=made, purpose="leads the guest's own network to the router")
        return
    if is_private(cluster):
        cloud = balancer_annotations(cluster.platform, internal=True)
        made = service(
            cluster, PRIVATE_ROUTER, replace(_router_door(LOAD_BALANCER), annotations=cloud)
        )
        yield Made(manifest=made, purpose="leads the guest's own network to the router")
    if is_public(cluster) and labels_routes(cluster):
        cloud = balancer_annotations(cluster.platform, internal=False, both=is_private(cluster))
        more: dict[str, Any] = {}
        if cluster.allowed_cidrs:
            more["loadBalancerSourceRanges"] = list(cluster.allowed_cidrs)
        door = replace(_router_door(LOAD_BALANCER), annotations=cloud, more=more)
        yield Made(manifest=service(cluster, ROUTER, door), purpose="leads everybody to the router")


def _router_door(type_: str) -> Door:
    return Door(
        port=443,
        target="https",
        port_name="https",
        type=type_,
        selector=_ROUTER_PODS,
        labels=_ROUTER_PODS,
    )


def purposes(cluster: HostedCluster, *, keep_sources: bool = False) -> dict[str, str]:
    """What every object is for, by ``Kind/name``."""
    return {each.key: each.purpose for each in objects(cluster, keep_sources=keep_sources)}


def makes(cluster: HostedCluster, wanted: Service) -> tuple[Made, ...]:
    """The objects of one service."""
    return tuple(each for each in objects(cluster) if each.service is wanted)
