"""All ways to reach a part of the control plane, and which of them nodes and users take.

Endpoints are derived from the Services and Routes of objects.py, so that each has an object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from isthmus.errors import ConfigError
from isthmus.hosting.model import (
    ControlPlaneService,
    HostedCluster,
    PlannedEndpoint,
    Platform,
    PublishPlan,
    Strategy,
    Viewpoint,
)
from isthmus.hosting.objects import PRIVATE_ROUTER, ROUTER, objects
from isthmus.hosting.objects_services import PRIVATE, ROUTE_PORT
from isthmus.hosting.shapes import (
    DNS_ANNOTATION,
    LOAD_BALANCER,
    NODE_PORT,
    OAUTH_LABEL,
    ROUTER_LABEL,
    Manifest,
    PlannedObject,
    api_name,
    is_internal,
)
from isthmus.hosting.visibility import (
    BUCKET,
    EVERYWHERE,
    GUEST_SIDE,
    IN_CLUSTER,
    IN_MANAGEMENT,
    INGRESS,
    PUBLIC_SHARD,
    SHARED_INGRESS,
    behind_shared_ingress,
    is_in_bucket,
    is_private,
    issuer_host,
    seen_at_node,
)
from isthmus.values import HostPort, is_address

_ORDER = tuple(ControlPlaneService)

#: The endpoint of kubeAPIServerDNSName.
API_DNS_NAME = "kube-apiserver-dns-name"
#: The suffix of names that only the guest's own network knows.
INTERNAL = ".hypershift.local"

_NODES: Mapping[ControlPlaneService, str] = {
    ControlPlaneService.API_SERVER: "kubelets, and pods through the node's own address",
    ControlPlaneService.KONNECTIVITY: "agents, for kube-apiserver's way back",
    ControlPlaneService.IGNITION: "machines on their first boot",
    ControlPlaneService.OAUTH_SERVER: "pods that log users in, such as the console",
    ControlPlaneService.OVN_SB_DB: "OVN on nodes, for the flows of pods",
}
_USERS: Mapping[ControlPlaneService, str] = {
    ControlPlaneService.API_SERVER: "kubectl, and everything else with a kubeconfig",
    ControlPlaneService.OAUTH_SERVER: "users who log in",
    ControlPlaneService.OIDC: "clouds that check tokens of service accounts",
}

#: The columns of a row; the last four are viewpoints.
HEADINGS = (
    "service",
    "strategy",
    "address",
    "object",
    "through",
    *(place.value for place in Viewpoint),
)

YES, NO = "yes", "no"
HELD = "allowed CIDRs"
NOT_PUBLISHED = "not published"


def endpoints(cluster: HostedCluster, *, keep_sources: bool = False) -> tuple[PlannedEndpoint, ...]:
    """The endpoints of a cluster whose document has no errors.

    By service; first those that all clients see, then those of the guest's own network, last those
    that only the management cluster sees (``Strategy.NONE``: not published).
    """
    return endpoints_of(cluster, objects(cluster, keep_sources=keep_sources))


def endpoints_of(
    cluster: HostedCluster, made: Iterable[PlannedObject]
) -> tuple[PlannedEndpoint, ...]:
    """As ``endpoints()``, from existing objects."""
    found = [endpoint for each in made for endpoint in _of_one(cluster, each)]
    found += _bucket(cluster)
    return _with_further_name(cluster, sorted(found, key=_rank))


def _with_further_name(
    cluster: HostedCluster, found: Sequence[PlannedEndpoint]
) -> tuple[PlannedEndpoint, ...]:
    """kubeAPIServerDNSName is another name of the endpoint of kube-apiserver for users.

    An ingress shared by clusters has no Route for it, so it leads nowhere there.
    """
    name = cluster.api_dns_name
    for at, main in enumerate(found, 1) if name else ():
        api = main.service is ControlPlaneService.API_SERVER
        if api and main.strategy is not Strategy.NONE and main.through != INGRESS:
            further = replace(main, name=API_DNS_NAME, address=name, sni=name if main.sni else "")
            return (*found[:at], further, *found[at:])
    return tuple(found)


def _bucket(cluster: HostedCluster) -> Iterator[PlannedEndpoint]:
    """The documents of the token issuer, which HyperShift puts into a bucket."""
    publishing = cluster.publishing(ControlPlaneService.OIDC)
    if publishing is None or not is_in_bucket(cluster, publishing):
        return
    yield PlannedEndpoint(
        service=publishing.service,
        name="oidc",
        strategy=publishing.strategy,
        address=issuer_host(cluster),
        port=ROUTE_PORT,
        by=BUCKET,
        visible_from=EVERYWHERE,
    )


def _rank(endpoint: PlannedEndpoint) -> tuple[int, int]:
    return _ORDER.index(endpoint.service), -len(endpoint.visible_from)


def _of_one(cluster: HostedCluster, made: PlannedObject) -> Iterator[PlannedEndpoint]:
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


def _of_balancer(
    cluster: HostedCluster, made: PlannedObject, service: ControlPlaneService
) -> PlannedEndpoint:
    metadata, spec = made.manifest["metadata"], made.manifest["spec"]
    internal = is_internal(made.manifest)
    address = metadata.get("annotations", {}).get(DNS_ANNOTATION, "")
    if metadata["name"] == PRIVATE:
        address = api_name(cluster)
    return PlannedEndpoint(
        service=service,
        name=metadata["name"],
        strategy=Strategy.LOAD_BALANCER,
        address=address,
        port=spec["ports"][0]["port"],
        by=made.key,
        visible_from=GUEST_SIDE if internal else EVERYWHERE,
        restricted="loadBalancerSourceRanges" in spec or "externalTrafficPolicy" in spec,
    )


def _of_node_port(
    cluster: HostedCluster, made: PlannedObject, service: ControlPlaneService
) -> PlannedEndpoint:
    publishing = cluster.publishing(service)
    address = publishing.node_address if publishing else ""
    spec = made.manifest["spec"]
    return PlannedEndpoint(
        service=service,
        name=made.manifest["metadata"]["name"],
        strategy=Strategy.NODE_PORT,
        address=address,
        port=spec["ports"][0].get("nodePort", 0),
        by=made.key,
        visible_from=seen_at_node(address),
        restricted="externalTrafficPolicy" in spec,
    )


def _of_route(
    cluster: HostedCluster, made: PlannedObject, service: ControlPlaneService
) -> Iterator[PlannedEndpoint]:
    internal = is_internal(made.manifest)
    if internal and not is_private(cluster):
        return  # no object has an address for that name: see its purpose
    host, through = made.manifest["spec"].get("host", ""), through_of(cluster, made.manifest)
    held = through in (f"Service/{ROUTER}", SHARED_INGRESS)
    yield PlannedEndpoint(
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


def through_of(cluster: HostedCluster, route: Manifest) -> str:
    """The object with the address of a Route's name."""
    if is_internal(route):
        return f"Service/{PRIVATE_ROUTER}"
    if OAUTH_LABEL in route["metadata"].get("labels", {}):
        return PUBLIC_SHARD
    if behind_shared_ingress(cluster):
        return SHARED_INGRESS
    labelled = ROUTER_LABEL in route["metadata"].get("labels", {})
    if labelled and cluster.platform is not Platform.IBMCLOUD:
        return f"Service/{ROUTER}"
    return INGRESS


def _inside(made: PlannedObject, service: ControlPlaneService) -> PlannedEndpoint:
    metadata = made.manifest["metadata"]
    name = f"{metadata['name']}.{metadata['namespace']}.svc"
    return PlannedEndpoint(
        service=service,
        name=name,
        strategy=Strategy.NONE,
        address=name,
        port=made.manifest["spec"]["ports"][0]["port"],
        by=made.key,
        visible_from=IN_MANAGEMENT if service is ControlPlaneService.API_SERVER else IN_CLUSTER,
    )


class Reacher(Enum):
    """Who must reach something."""

    NODE = "node"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachNeed:
    """Something that must be reached; ``endpoint`` None: it cannot be."""

    who: Reacher
    service: ControlPlaneService
    stands: Viewpoint
    why: str
    endpoint: PlannedEndpoint | None

    @property
    def at(self) -> str:
        """Its address, or the object that will have it."""
        if self.endpoint is None:
            return "nowhere"
        return where_is(self.endpoint)


def way(
    plan: PublishPlan, service: ControlPlaneService, stands: Viewpoint
) -> PlannedEndpoint | None:
    """The endpoint that a client at this viewpoint uses; None if it sees none.

    Nodes use the name of their own network if there is one, as in HyperShift; all others use the
    name for people.
    """
    inside = stands is not Viewpoint.INTERNET and is_private(plan.cluster)
    seen = [each for each in plan.endpoints if each.service is service]
    seen = [each for each in seen if stands in each.visible_from]

    def least(endpoint: PlannedEndpoint) -> tuple[bool, int]:
        internal = endpoint.address.endswith(INTERNAL)
        return internal is not inside, len(endpoint.visible_from)

    return min(seen, key=least, default=None)


def needs(plan: PublishPlan) -> tuple[ReachNeed, ...]:
    """Everything that nodes and users must reach, nodes first.

    A user for whom there is no endpoint on the internet must come from the guest's network.
    """
    published = {each.service for each in plan.endpoints}
    found = [
        ReachNeed(
            who=Reacher.NODE,
            service=service,
            stands=Viewpoint.GUEST_VPC,
            why=why,
            endpoint=way(plan, service, Viewpoint.GUEST_VPC),
        )
        for service, why in _NODES.items()
        if service in published
    ]
    for service, why in _USERS.items():
        if service in published:
            outside = way(plan, service, Viewpoint.INTERNET)
            stands = Viewpoint.GUEST_VPC if outside is None else Viewpoint.INTERNET
            endpoint = outside or _for_people(plan, service)
            found.append(
                ReachNeed(
                    who=Reacher.USER, service=service, stands=stands, why=why, endpoint=endpoint
                )
            )
    return tuple(found)


def _for_people(plan: PublishPlan, service: ControlPlaneService) -> PlannedEndpoint | None:
    """The endpoint of a user in the guest's network: a name from the document, if there is one."""
    seen = [each for each in plan.endpoints if each.service is service]
    seen = [each for each in seen if Viewpoint.GUEST_VPC in each.visible_from]
    return min(seen, key=lambda each: each.address.endswith(INTERNAL), default=None)


def where_is(endpoint: PlannedEndpoint) -> str:
    """An endpoint's address for people."""
    if endpoint.target is not None:
        return str(endpoint.target)
    port = f" port {endpoint.port}" if endpoint.port else ""
    return f"{endpoint.address or 'an address'}{port} that {endpoint.by} will have"


def with_addresses(plan: PublishPlan, given: Mapping[str, str]) -> PublishPlan:
    """The plan with addresses that are known now: HOST or HOST:PORT by the name of an endpoint.

    Raises:
        ConfigError: there is no such endpoint, or the address is invalid.
    """
    known = {each.name for each in plan.endpoints}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"there is no endpoint {name!r}; endpoints are {', '.join(sorted(known))}"
            )
    return replace(
        plan,
        endpoints=tuple(
            _at(each, given[each.name]) if each.name in given else each for each in plan.endpoints
        ),
    )


def _at(endpoint: PlannedEndpoint, text: str) -> PlannedEndpoint:
    has_port = ":" in text and not is_address(text)
    try:
        at = (
            HostPort.parse(text) if has_port or not endpoint.port else HostPort(text, endpoint.port)
        )
    except ValueError as error:
        raise ConfigError(f"{endpoint.name}={text}: {error}") from None
    return replace(endpoint, address=at.host, port=at.port)


def rows(plan: PublishPlan) -> tuple[tuple[str, ...], ...]:
    """One row for each endpoint of a plan, with a cell for each of HEADINGS."""
    return tuple(
        (
            each.service.value,
            strategy_text(each),
            address_text(each),
            each.by,
            each.through,
            *(seen_text(each, place) for place in Viewpoint),
        )
        for each in plan.endpoints
    )


def seen_text(endpoint: PlannedEndpoint, place: Viewpoint) -> str:
    """Whether a client at this viewpoint can reach an endpoint.

    Allowed CIDR blocks apply to the management cluster's own pods too: those reach the Service by
    its cluster address, which is a separate endpoint.
    """
    if place not in endpoint.visible_from:
        return NO
    return HELD if endpoint.restricted else YES


def strategy_text(endpoint: PlannedEndpoint) -> str:
    """How it is published, if it is."""
    return NOT_PUBLISHED if endpoint.strategy is Strategy.NONE else endpoint.strategy.value


def address_text(endpoint: PlannedEndpoint) -> str:
    """The address of an endpoint, as far as it is known before objects exist."""
    if endpoint.target is not None:
        return str(endpoint.target)
    if endpoint.address:
        return f"{endpoint.address}, port chosen later"
    if endpoint.port:
        return f"chosen later, port {endpoint.port}"
    return "chosen later"
