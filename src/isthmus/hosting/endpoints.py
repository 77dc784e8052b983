"""Every way to reach a part of the control plane, read off the objects that make it.

So an endpoint cannot be promised that nothing makes: what is said here is what the Services and
Routes of objects.py will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from isthmus.hosting.model import Endpoint, HostedCluster, Platform, Service, Strategy
from isthmus.hosting.objects import PRIVATE_ROUTER, ROUTER, objects
from isthmus.hosting.objects_api import PRIVATE
from isthmus.hosting.objects_others import ROUTE_PORT
from isthmus.hosting.shapes import (
    DNS_ANNOTATION,
    LOAD_BALANCER,
    NODE_PORT,
    ROUTER_LABEL,
    Made,
    api_name,
    is_internal,
)
from isthmus.hosting.visibility import (
    EVERYWHERE,
    GUEST_SIDE,
    IN_CLUSTER,
    IN_MANAGEMENT,
    INGRESS,
    SHARED_INGRESS,
    behind_shared_ingress,
    is_private,
    seen_at_node,
)

_ORDER = tuple(Service)


def endpoints(cluster: HostedCluster, *, keep_sources: bool = False) -> tuple[Endpoint, ...]:
    """The endpoints of a cluster whose document has no errors.

    By service; what everybody sees comes before what the guest's own network sees, and last what
    only the management cluster does (``Strategy.NONE``: it is not published).
    """
    return endpoints_of(cluster, objects(cluster, keep_sources=keep_sources))


def endpoints_of(cluster: HostedCluster, made: Iterable[Made]) -> tuple[Endpoint, ...]:
    """As ``endpoints()``, of objects that are made already."""
    found = [endpoint for each in made for endpoint in _of_one(cluster, each)]
    return tuple(sorted(found, key=_rank))


def _rank(endpoint: Endpoint) -> tuple[int, int]:
    return _ORDER.index(endpoint.service), -len(endpoint.visible_from)


def _of_one(cluster: HostedCluster, made: Made) -> Iterator[Endpoint]:
    if made.service is None:
        return
    if made.manifest["kind"] == "Route":
        yield from _of_route(cluster, made, made.service)
        return
    kind = made.manifest["spec"]["type"]
    if kind == LOAD_BALANCER:
        yield _of_balancer(cluster, made, made.service)
    elif kind == NODE_PORT:
        yield _of_node_port(cluster, made, made.service)
    if made.manifest["metadata"]["name"] != PRIVATE:
        yield _inside(made, made.service)


def _of_balancer(cluster: HostedCluster, made: Made, service: Service) -> Endpoint:
    metadata, spec = made.manifest["metadata"], made.manifest["spec"]
    internal = is_internal(made.manifest)
    address = metadata.get("annotations", {}).get(DNS_ANNOTATION, "")
    if metadata["name"] == PRIVATE:
        address = api_name(cluster)
    return Endpoint(
        service=service,
        name=metadata["name"],
        strategy=Strategy.LOAD_BALANCER,
        address=address,
        port=spec["ports"][0]["port"],
        by=made.key,
        visible_from=GUEST_SIDE if internal else EVERYWHERE,
        restricted="loadBalancerSourceRanges" in spec or "externalTrafficPolicy" in spec,
    )


def _of_node_port(cluster: HostedCluster, made: Made, service: Service) -> Endpoint:
    publishing = cluster.publishing(service)
    address = publishing.node_address if publishing else ""
    spec = made.manifest["spec"]
    return Endpoint(
        service=service,
        name=made.manifest["metadata"]["name"],
        strategy=Strategy.NODE_PORT,
        address=address,
        port=spec["ports"][0].get("nodePort", 0),
        by=made.key,
        visible_from=seen_at_node(address),
        restricted="externalTrafficPolicy" in spec,
    )


def _of_route(cluster: HostedCluster, made: Made, service: Service) -> Iterator[Endpoint]:
    internal = is_internal(made.manifest)
    if internal and not is_private(cluster):
        return  # nothing has an address for that name: see its purpose
    host, through = made.manifest["spec"].get("host", ""), _through(cluster, made)
    held = through in (f"Service/{ROUTER}", SHARED_INGRESS)
    yield Endpoint(
        service=service,
        name=made.manifest["metadata"]["name"],
        strategy=Strategy.ROUTE,
        address=host,
        port=ROUTE_PORT,
        by=made.key,
        sni=host,
        through=through,
        visible_from=GUEST_SIDE if internal else EVERYWHERE,
        restricted=held and bool(cluster.allowed_cidrs),
    )


def _through(cluster: HostedCluster, made: Made) -> str:
    if is_internal(made.manifest):
        return f"Service/{PRIVATE_ROUTER}"
    if behind_shared_ingress(cluster):
        return SHARED_INGRESS
    labelled = ROUTER_LABEL in made.manifest["metadata"].get("labels", {})
    if labelled and cluster.platform is not Platform.IBMCLOUD:
        return f"Service/{ROUTER}"
    return INGRESS


def _inside(made: Made, service: Service) -> Endpoint:
    metadata = made.manifest["metadata"]
    name = f"{metadata['name']}.{metadata['namespace']}.svc"
    return Endpoint(
        service=service,
        name=name,
        strategy=Strategy.NONE,
        address=name,
        port=made.manifest["spec"]["ports"][0]["port"],
        by=made.key,
        visible_from=IN_MANAGEMENT if service is Service.API_SERVER else IN_CLUSTER,
    )
