"""What is allowed and will still not be what most people expect of it.

Rules about what is wrong are in rules.py; what the allowed CIDR blocks do is in cidrs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from isthmus.hosting.model import (
    Endpoint,
    Finding,
    From,
    HostedCluster,
    Place,
    Platform,
    Service,
    Strategy,
    Weight,
)
from isthmus.hosting.objects_api import AZURE_BALANCER_PORT, PORT
from isthmus.hosting.visibility import INGRESS, is_public

#: A label of a name in DNS is at most 63 characters long (RFC 1035 §2.3.4).
_MAX_LABEL_CHARS = 63

Surprise = Callable[[HostedCluster, Endpoint], Iterator[tuple[Weight, str, str]]]


def _private_anyway(
    cluster: HostedCluster, endpoint: Endpoint
) -> Iterator[tuple[Weight, str, str]]:
    hidden = endpoint.service is Service.OAUTH_SERVER and From.INTERNET not in endpoint.visible_from
    balanced = endpoint.strategy is Strategy.LOAD_BALANCER
    if hidden and balanced and is_public(cluster):
        yield (
            Weight.WARNING,
            "users outside the guest's own network cannot log in: the load balancer of OAuthServer"
            f" is internal as soon as the cluster is {cluster.access.value}",
            "publish OAuthServer by Route",
        )


def _other_port(cluster: HostedCluster, endpoint: Endpoint) -> Iterator[tuple[Weight, str, str]]:
    private = From.GUEST_VPC in endpoint.visible_from and From.INTERNET not in endpoint.visible_from
    if private and cluster.platform is Platform.AZURE and endpoint.port == AZURE_BALANCER_PORT:
        yield (
            Weight.NOTE,
            f"the internal load balancer of APIServer listens on {endpoint.port}, and HyperShift"
            f" tells the proxies on nodes to use {PORT} there",
            f"see that nodes use {endpoint.port}, as the configuration written for them here does",
        )


def _long_name(cluster: HostedCluster, endpoint: Endpoint) -> Iterator[tuple[Weight, str, str]]:
    made_up = endpoint.strategy is Strategy.ROUTE and not endpoint.address
    label = f"{endpoint.name}-{cluster.control_plane}"
    if made_up and len(label) >= _MAX_LABEL_CHARS:
        yield (
            Weight.WARNING,
            f"{label} is too long for the name that OpenShift makes up for {endpoint.by};"
            " HyperShift shortens it, this plan cannot",
            f"give {endpoint.service.value} a hostname",
        )


def _nameless(cluster: HostedCluster, endpoint: Endpoint) -> Iterator[tuple[Weight, str, str]]:
    """A node's proxy passes on what pods send, and an ingress of many clusters goes by names."""
    if endpoint.service is Service.API_SERVER and endpoint.through == INGRESS:
        yield (
            Weight.WARNING,
            "pods cannot reach APIServer: they ask for kubernetes.default.svc, or give no name at"
            f" all, and the {INGRESS} knows it as {endpoint.address or 'another name'} alone;"
            f" on {cluster.platform.value} no Route has a router of its own",
            "publish APIServer by LoadBalancer or NodePort",
        )


_TABLE: Mapping[str, Surprise] = {
    "private-although-public": _private_anyway,
    "other-port-in-private": _other_port,
    "route-name-too-long": _long_name,
    "nodes-by-ingress": _nameless,
}

#: Every finding of this module, by its name.
RULES: Mapping[str, str] = {
    "private-although-public": "an endpoint that users need is for the guest's own network only",
    "other-port-in-private": "HyperShift and its load balancer are of two minds about a port",
    "route-name-too-long": "OpenShift cannot make up a name for a Route without a hostname",
    "nodes-by-ingress": "pods come to APIServer by an ingress that does not know whom they mean",
}


def surprises(cluster: HostedCluster, endpoints: Sequence[Endpoint]) -> tuple[Finding, ...]:
    """What is worth saying of what a plan makes, by endpoint."""
    return tuple(
        Finding(rule=rule, weight=weight, says=says, do=do, place=_place(cluster, endpoint))
        for endpoint in endpoints
        for rule, look in _TABLE.items()
        for weight, says, do in look(cluster, endpoint)
    )


def _place(cluster: HostedCluster, endpoint: Endpoint) -> Place:
    found = cluster.publishing(endpoint.service)
    return found.place if found else Place()
