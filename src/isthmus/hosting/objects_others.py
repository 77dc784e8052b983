"""What publishes konnectivity-server, the OAuth server and the Ignition server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from isthmus.hosting import objects_api
from isthmus.hosting.model import HostedCluster, Platform, Publishing, Service, Strategy
from isthmus.hosting.shapes import (
    BALANCE_ANNOTATION,
    COMPONENT_LABEL,
    VISIBILITY_LABEL,
    Door,
    Made,
    Manifest,
    balancer_annotations,
    internal_labels,
    internal_name,
    published_as,
    route,
    router_labels,
    service,
)
from isthmus.hosting.visibility import is_private, is_public, labels_routes

TUNNEL = "konnectivity-server"
TUNNEL_PORT = 8091
OAUTH = "oauth-openshift"
OAUTH_PORT = 6443
IGNITION = "ignition-server-proxy"
IGNITION_IBM = "ignition-server"
IGNITION_ROUTE = "ignition-server"
ROUTE_PORT = 443

_TAKES: Mapping[Service, frozenset[Strategy]] = {
    Service.KONNECTIVITY: frozenset({Strategy.LOAD_BALANCER, Strategy.NODE_PORT, Strategy.ROUTE}),
    Service.OAUTH_SERVER: frozenset({Strategy.LOAD_BALANCER, Strategy.NODE_PORT, Strategy.ROUTE}),
    Service.IGNITION: frozenset({Strategy.NODE_PORT, Strategy.ROUTE}),
}


def other_objects(cluster: HostedCluster) -> tuple[Made, ...]:
    """Services, each before its Routes; nothing for what is not published."""
    makers = {
        Service.KONNECTIVITY: _tunnel,
        Service.OAUTH_SERVER: _oauth,
        Service.IGNITION: _ignition,
    }
    found: list[Made] = []
    for each, make in makers.items():
        publishing = cluster.publishing(each)
        if publishing is not None and publishing.strategy in _TAKES[each]:
            found += make(cluster, publishing)
    return tuple(found)


def ignition_name(cluster: HostedCluster) -> str:
    """The Service of the Ignition server, and the app label of its pods."""
    return IGNITION_IBM if cluster.platform is Platform.IBMCLOUD else IGNITION


def _tunnel(cluster: HostedCluster, publishing: Publishing) -> Iterator[Made]:
    door = Door(
        port=TUNNEL_PORT,
        target=TUNNEL_PORT,
        selector=objects_api.PODS,
        labels={"app": TUNNEL},
        # An agent makes a server ready, so it has to reach one that is not.
        more={"publishNotReadyAddresses": True},
    )
    made = service(cluster, TUNNEL, replace(door, **published_as(publishing)))
    yield Made(
        manifest=made, purpose="leads agents to konnectivity-server", service=publishing.service
    )
    if publishing.strategy is Strategy.ROUTE:
        # An agent stays for days: new ones go where fewest are only if each has its turn.
        yield _one_route(cluster, publishing, TUNNEL, TUNNEL, {BALANCE_ANNOTATION: "roundrobin"})


def _oauth(cluster: HostedCluster, publishing: Publishing) -> Iterator[Made]:
    door = Door(
        port=OAUTH_PORT,
        target=OAUTH_PORT,
        selector={"app": OAUTH, COMPONENT_LABEL: OAUTH},
        labels={"app": OAUTH},
        more=objects_api.DUAL_STACK,
    )
    door = replace(door, **published_as(publishing))
    if publishing.strategy is Strategy.LOAD_BALANCER:
        cloud = balancer_annotations(cluster.platform, internal=is_private(cluster))
        door = replace(door, port=ROUTE_PORT, annotations={**cloud, **door.annotations})
    made = service(cluster, OAUTH, door)
    yield Made(manifest=made, purpose="leads to the OAuth server", service=publishing.service)
    if publishing.strategy is Strategy.ROUTE:
        for each, purpose in _oauth_routes(cluster, publishing):
            yield Made(manifest=each, purpose=purpose, service=publishing.service)


def _oauth_routes(cluster: HostedCluster, publishing: Publishing) -> Iterator[tuple[Manifest, str]]:
    host = publishing.hostname
    if is_public(cluster):
        found = route(cluster, "oauth", host, OAUTH, labels=_public_labels(cluster))
        yield found, "leads users to the OAuth server"
    elif host:
        labels = {**internal_labels(cluster), VISIBILITY_LABEL: "private"}
        found = route(cluster, "oauth-private", host, OAUTH, labels=labels)
        yield found, "leads users in the guest's own network to the OAuth server"
    if is_private(cluster):
        name = "oauth-internal"
        found = route(
            cluster, name, internal_name(cluster, name), OAUTH, labels=internal_labels(cluster)
        )
        yield found, "leads the guest's own components to the OAuth server"


def _ignition(cluster: HostedCluster, publishing: Publishing) -> Iterator[Made]:
    name = ignition_name(cluster)
    door = Door(port=ROUTE_PORT, target="https", port_name="https", selector={"app": name})
    made = service(cluster, name, replace(door, **published_as(publishing)))
    yield Made(
        manifest=made, purpose="leads new nodes to the Ignition server", service=publishing.service
    )
    if publishing.strategy is Strategy.ROUTE:
        yield _one_route(cluster, publishing, IGNITION_ROUTE, name, {})


def _public_labels(cluster: HostedCluster) -> Mapping[str, str]:
    return router_labels(cluster) if labels_routes(cluster) else {}


def _one_route(
    cluster: HostedCluster,
    publishing: Publishing,
    name: str,
    to: str,
    annotations: Mapping[str, str],
) -> Made:
    """The Route of what only nodes use: theirs alone as soon as they have a way of their own."""
    host, labels = publishing.hostname, _public_labels(cluster)
    if is_private(cluster):
        host, labels = internal_name(cluster, name), internal_labels(cluster)
    found = route(cluster, name, host, to, labels=labels, annotations=annotations)
    where = "in the guest's own network" if is_private(cluster) else "wherever they are"
    return Made(
        manifest=found, purpose=f"leads nodes, {where}, to {to}", service=publishing.service
    )
