"""A plan in sentences: the reasons for each service, and differences from the design of 2022."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from isthmus.hosting.comparison import comparison_lines
from isthmus.hosting.endpoints import where_is
from isthmus.hosting.model import (
    ControlPlaneService,
    HostedCluster,
    PlannedEndpoint,
    Platform,
    PublishPlan,
    Strategy,
    StrategyVerdict,
    Viewpoint,
    VisibleServices,
)
from isthmus.hosting.models import DESIGNED, V1BETA1
from isthmus.hosting.objects import makes, metrics_objects
from isthmus.hosting.objects_egress import egress_policies
from isthmus.hosting.rules_endpoints import NOT_HERE, why_not
from isthmus.hosting.visibility import (
    INGRESS,
    PUBLIC_SHARD,
    SHARED_INGRESS,
    behind_shared_ingress,
    is_private,
    is_public,
    is_published,
    labels_routes,
    listed,
    sides,
    uses_router,
)

_SHOWN: Mapping[tuple[bool, bool], str] = {
    (False, False): "to nobody",
    (True, False): "to everybody",
    (False, True): "to the guest's own network",
    (True, True): "to everybody, and separately to the guest's own network",
}

_NOTHING: Mapping[StrategyVerdict, str] = {
    StrategyVerdict.IGNORED: "accepted and ignored",
    StrategyVerdict.HIDDEN: "not published, as the document asks",
}

_LISTED = frozenset(one for each in DESIGNED.values() for one in each.public | each.private)

_WHY: Mapping[ControlPlaneService, str] = {
    ControlPlaneService.API_SERVER: "its strategy decides",
    ControlPlaneService.OIDC: "the entry has no effect any more",
    ControlPlaneService.OAUTH_SERVER: (
        "as soon as a cluster is private it has Routes of the private router, and where it is not"
        " public it has no others"
    ),
    ControlPlaneService.KONNECTIVITY: (
        "its strategy decides: a load balancer of it is always public"
    ),
    ControlPlaneService.IGNITION: "nodes cannot start without it",
    ControlPlaneService.OVN_SB_DB: "the entry has no effect any more",
}


def explain(plan: PublishPlan) -> str:
    """Explain the plan; the text ends with a newline."""
    if plan.errors:
        return "".join(f"{line}\n" for line in _wrong(plan))
    lines = [*_topology(plan.cluster), *_router(plan), ""]
    for service in ControlPlaneService:
        lines += _service(plan, service)
    lines += _beside(plan.cluster)
    lines += [*comparison_lines(plan.cluster), ""]
    lines += _designed(plan)
    lines += _said(plan)
    return "".join(f"{line}\n" for line in lines).rstrip("\n") + "\n"


def _wrong(plan: PublishPlan) -> Iterator[str]:
    yield f"There is no plan for {plan.cluster.name} until these errors are fixed:"
    for each in plan.errors:
        yield f"  {each.says}"


def _topology(cluster: HostedCluster) -> Iterator[str]:
    on = cluster.platform.value
    if cluster.platform not in cluster.model.with_access:
        yield f"{cluster.name} is on {on}, which has only public endpoints."
        return
    said = "as the document says" if cluster.has_access else f"which is the default on {on}"
    shown = [sides(cluster, service) for service in ControlPlaneService]
    found = [
        *(["for everybody"] if any(each.public for each in shown) else []),
        *(["for the guest's own network"] if any(each.private for each in shown) else []),
    ]
    yield (
        f"{cluster.name} is on {on} and {cluster.access.value}, {said}:"
        f" it has endpoints {' and '.join(found)}."
    )


def _router(plan: PublishPlan) -> Iterator[str]:
    cluster = plan.cluster
    if all(each.strategy is not Strategy.ROUTE for each in plan.endpoints):
        return
    if behind_shared_ingress(cluster):
        yield f"Routes for everybody are served by the {SHARED_INGRESS}."
    elif cluster.platform is Platform.IBMCLOUD:
        yield f"Routes for everybody are served by the {INGRESS}, as always on IBM Cloud."
    elif not labels_routes(cluster):
        yield (
            f"Routes for everybody are served by the {INGRESS}: they would have their own router if"
            " APIServer had a Route with a hostname."
        )
    elif is_public(cluster):
        yield (
            "Routes for everybody are served by the control plane's own router, because APIServer"
            " has a Route with a hostname."
        )
    for each in plan.endpoints:
        if each.through == PUBLIC_SHARD:
            yield f"{each.service.value}'s Route has a label that a {PUBLIC_SHARD} selects."
    if is_private(cluster) and uses_router(cluster):
        yield "Routes for the guest's own network are served by the control plane's own router."


def _service(plan: PublishPlan, service: ControlPlaneService) -> Iterator[str]:
    publishing = plan.cluster.publishing(service)
    if publishing is None:
        return
    words = _NOTHING.get(
        plan.cluster.model.verdict(service, publishing.strategy, plan.cluster.platform)
    )
    if words is not None:
        yield f"{service.value}: {words}; it gets no objects."
        yield ""
        return
    yield f"{service.value}: {publishing.strategy.value}"
    for each in plan.endpoints:
        if each.service is service:
            yield f"  {where_is(each)}"
            yield f"    {_seen(each)}"
            if not each.restricted and plan.cluster.allowed_cidrs and is_published(each):
                yield f"    The allowed CIDR blocks do not apply: {why_not(each)}."
    for made in makes(plan.cluster, service):
        yield f"  {made.key} {made.purpose}."
    yield ""


def _beside(cluster: HostedCluster) -> Iterator[str]:
    """Objects that belong to no service."""
    found = {
        "Metrics: forwarded to the guest's own monitoring": metrics_objects(cluster),
        "Egress of the control plane: kept away from the management cluster": tuple(
            egress_policies(cluster)
        ),
    }
    for title, made in found.items():
        if made:
            yield title
            yield from (f"  {each.key} {each.purpose}." for each in made)
            yield ""


def _seen(endpoint: PlannedEndpoint) -> str:
    by = f"by {endpoint.by}" + (f" through {_article(endpoint)}" if endpoint.through else "")
    only = " within the allowed CIDR blocks" if endpoint.restricted else ""
    if endpoint.strategy is Strategy.NONE:
        return f"Not published: {_places(endpoint)} only, {by}."
    return f"Seen from {_places(endpoint)}{only}, {by}."


def _article(endpoint: PlannedEndpoint) -> str:
    named = endpoint.through.startswith("Service/")
    return endpoint.through if named else f"the {endpoint.through}"


def _places(endpoint: PlannedEndpoint) -> str:
    if Viewpoint.INTERNET in endpoint.visible_from:
        return "everywhere"
    names = [f"the {place.value}" for place in Viewpoint if place in endpoint.visible_from]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _designed(plan: PublishPlan) -> Iterator[str]:
    found = differences(plan)
    if found:
        yield "Where HyperShift differs today from its networking design of 2022:"
        for each in found:
            yield f"  {each}"
        yield ""


def _said(plan: PublishPlan) -> Iterator[str]:
    found = [each for each in plan.findings if each.rule != NOT_HERE]  # shown with the endpoint
    if found:
        yield "Notes:"
        for each in found:
            yield f"  {each.weight.value}: {each.says}"


def differences(plan: PublishPlan) -> tuple[str, ...]:
    """A sentence for each service whose visibility differs from the design.

    The design covers only platforms with topologies.
    """
    if plan.cluster.platform not in V1BETA1.with_access or plan.cluster.model is not V1BETA1:
        return ()
    then, now = DESIGNED[plan.cluster.access], listed(plan.endpoints)
    return tuple(
        f"{service.value} {_meant(then, service)},"
        f" and is shown {_SHOWN[_in(now, service)]}: {_why(plan, service)}."
        for service in ControlPlaneService
        if _in(then, service) != _in(now, service)
    )


def _meant(then: VisibleServices, service: ControlPlaneService) -> str:
    if service not in _LISTED:
        return "was not listed"
    return f"was to be shown {_SHOWN[_in(then, service)]}"


def _in(lists: VisibleServices, service: ControlPlaneService) -> tuple[bool, bool]:
    return service in lists.public, service in lists.private


def _why(plan: PublishPlan, service: ControlPlaneService) -> str:
    publishing = plan.cluster.publishing(service)
    if publishing is not None and publishing.strategy is Strategy.NODE_PORT:
        return "its node port is where the nodes of the management cluster are"
    return _WHY[service]
