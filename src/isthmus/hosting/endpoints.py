"""Every way to reach a part of the control plane, and which of them nodes and users take.

Endpoints are read off the Services and Routes of objects.py, so that none can be promised that
nothing makes.
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
#: What the names that only the guest's own network knows end in.
INTERNAL = ".hypershift.local"

_NODES: Mapping[ControlPlaneService, str] = {
    ControlPlaneService.API_SERVER: "kubelets, and pods by the node's own address",
    ControlPlaneService.KONNECTIVITY: "agents, for kube-apiserver's way back",
    ControlPlaneService.IGNITION: "machines that start for the first time",
    ControlPlaneService.OAUTH_SERVER: "pods that log users in, such as the console",
    ControlPlaneService.OVN_SB_DB: "OVN on nodes, for the flows of pods",
}
_USERS: Mapping[ControlPlaneService, str] = {
    ControlPlaneService.API_SERVER: "kubectl, and whatever has a kubeconfig",
    ControlPlaneService.OAUTH_SERVER: "users that log in",
    ControlPlaneService.OIDC: "clouds that check tokens of service accounts",
}

#: What the cells of a row are, in order; the last four are where somebody stands.
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

    By service; what everybody sees comes before what the guest's own network sees, and last what
    only the management cluster does (``Strategy.NONE``: it is not published).
    """
    return endpoints_of(cluster, objects(cluster, keep_sources=keep_sources))


def endpoints_of(
    cluster: HostedCluster, made: Iterable[PlannedObject]
) -> tuple[PlannedEndpoint, ...]:
    """As ``endpoints()``, of objects that are made already."""
    found = [endpoint for each in made for endpoint in _of_one(cluster, each)]
    found += _bucket(cluster)
    return _with_further_name(cluster, sorted(found, key=_rank))


def _with_further_name(
    cluster: HostedCluster, found: Sequence[PlannedEndpoint]
) -> tuple[PlannedEndpoint, ...]:
    """kubeAPIServerDNSName is another name for where users find kube-apiserver.

    An ingress of many clusters has no Route for it, and leads it nowhere.
    """
    name = cluster.api_dns_name
    for at, main in enumerate(found, 1) if name else ():
        api = main.service is ControlPlaneService.API_SERVER
        if api and main.strategy is not Strategy.NONE and main.through != INGRESS:
            further = replace(main, name=API_DNS_NAME, address=name, sni=name if main.sni else "")
            return (*found[:at], further, *found[at:])
    return tuple(found)


def _bucket(cluster: HostedCluster) -> Iterator[PlannedEndpoint]:
    """The documents of the issuer of tokens, which HyperShift puts into a bucket."""
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
        return  # nothing has an address for that name: see its purpose
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
    """What has the address of a Route's name."""
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
    """Who has to reach something."""

    NODE = "node"
    USER = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachNeed:
    """Something that must be reached; ``endpoint`` None says that there is no way to it."""

    who: Reacher
    service: ControlPlaneService
    stands: Viewpoint
    why: str
    endpoint: PlannedEndpoint | None

    @property
    def at(self) -> str:
        """Where it is, or which object will know."""
        if self.endpoint is None:
            return "nowhere"
        return where_is(self.endpoint)


def way(
    plan: PublishPlan, service: ControlPlaneService, stands: Viewpoint
) -> PlannedEndpoint | None:
    """The endpoint that somebody takes who stands there; None where none is to be seen.

    Nodes take the name of their own network where there is one, as HyperShift's do; everybody
    else the name that is meant for people.
    """
    inside = stands is not Viewpoint.INTERNET and is_private(plan.cluster)
    seen = [each for each in plan.endpoints if each.service is service]
    seen = [each for each in seen if stands in each.visible_from]

    def least(endpoint: PlannedEndpoint) -> tuple[bool, int]:
        internal = endpoint.address.endswith(INTERNAL)
        return internal is not inside, len(endpoint.visible_from)

    return min(seen, key=least, default=None)


def needs(plan: PublishPlan) -> tuple[ReachNeed, ...]:
    """All that nodes and users must be able to reach, the nodes' first.

    A user who finds nothing on the internet has to come from the guest's network.
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
    """What a user takes in the guest's network: a name of the document's, if there is one."""
    seen = [each for each in plan.endpoints if each.service is service]
    seen = [each for each in seen if Viewpoint.GUEST_VPC in each.visible_from]
    return min(seen, key=lambda each: each.address.endswith(INTERNAL), default=None)


def where_is(endpoint: PlannedEndpoint) -> str:
    """An endpoint's address for those who read it."""
    if endpoint.target is not None:
        return str(endpoint.target)
    port = f" port {endpoint.port}" if endpoint.port else ""
    return f"{endpoint.address or 'an address'}{port} that {endpoint.by} will have"


def with_addresses(plan: PublishPlan, given: Mapping[str, str]) -> PublishPlan:
    """The plan with addresses that became known: by the name of an endpoint, HOST or HOST:PORT.

    Raises:
        ConfigError: there is no such endpoint, or the address is none.
    """
    known = {each.name for each in plan.endpoints}
    for name in given:
        if name not in known:
            raise ConfigError(
                f"there is no endpoint {name!r}, but there are {', '.join(sorted(known))}"
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
    """Whether somebody who stands there can reach an endpoint.

    Where the allowed CIDR blocks hold, they hold for the management cluster's own pods too: those
    reach the Service by its cluster address, which is an endpoint of its own.
    """
    if place not in endpoint.visible_from:
        return NO
    return HELD if endpoint.restricted else YES


def strategy_text(endpoint: PlannedEndpoint) -> str:
    """How it is published, if it is."""
    return NOT_PUBLISHED if endpoint.strategy is Strategy.NONE else endpoint.strategy.value


def address_text(endpoint: PlannedEndpoint) -> str:
    """Where an endpoint is, as far as it is known before anything is made."""
    if endpoint.target is not None:
        return str(endpoint.target)
    if endpoint.address:
        return f"{endpoint.address}, port chosen later"
    if endpoint.port:
        return f"chosen later, port {endpoint.port}"
    return "chosen later"
