"""A plan in sentences: per service why it is as it is, and where the design meant it otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.hosting.cidrs import NOT_HERE, why_not
from isthmus.hosting.differences import differences
from isthmus.hosting.matrix import UNUSED
from isthmus.hosting.model import Endpoint, From, HostedCluster, Plan, Platform, Service, Strategy
from isthmus.hosting.objects import makes
from isthmus.hosting.reach import where_is
from isthmus.hosting.visibility import (
    INGRESS,
    SHARED_INGRESS,
    WITH_ACCESS,
    behind_shared_ingress,
    is_private,
    is_public,
    is_published,
    labels_routes,
    uses_router,
)


def explain(plan: Plan) -> str:
    """Tell it for somebody who wants to know why; ends with a newline."""
    if plan.errors:
        return "".join(f"{line}\n" for line in _wrong(plan))
    lines = [*_topology(plan.cluster), *_router(plan), ""]
    for service in Service:
        lines += _service(plan, service)
    lines += _designed(plan)
    lines += _said(plan)
    return "".join(f"{line}\n" for line in lines).rstrip("\n") + "\n"


def _wrong(plan: Plan) -> Iterator[str]:
    yield f"Nothing follows from {plan.cluster.name} before its errors are gone:"
    for each in plan.errors:
        yield f"  {each.says}"


def _topology(cluster: HostedCluster) -> Iterator[str]:
    on = cluster.platform.value
    if cluster.platform not in WITH_ACCESS:
        yield f"{cluster.name} is on {on}, which has public endpoints and no others."
        return
    said = "as the document says" if cluster.has_access else f"which is the default on {on}"
    sides = [
        *(["for everybody"] if is_public(cluster) else []),
        *(["for the guest's own network"] if is_private(cluster) else []),
    ]
    yield (
        f"{cluster.name} is on {on} and {cluster.access.value}, {said}:"
        f" it has endpoints {' and '.join(sides)}."
    )


def _router(plan: Plan) -> Iterator[str]:
    cluster = plan.cluster
    if all(each.strategy is not Strategy.ROUTE for each in plan.endpoints):
        return
    if behind_shared_ingress(cluster):
        yield f"Routes for everybody are served by the {SHARED_INGRESS}."
    elif cluster.platform is Platform.IBMCLOUD:
        yield f"Routes for everybody are served by the {INGRESS}, as always on IBM Cloud."
    elif not labels_routes(cluster):
        yield (
            f"Routes for everybody are served by the {INGRESS}: they would have a router of their"
            " own if APIServer had a Route with a hostname."
        )
    elif is_public(cluster):
        yield (
            "Routes for everybody are served by a router of the control plane's own, because"
            " APIServer has a Route with a hostname."
        )
    if is_private(cluster) and uses_router(cluster):
        yield "Routes for the guest's own network are served by the control plane's own router."


def _service(plan: Plan, service: Service) -> Iterator[str]:
    publishing = plan.cluster.publishing(service)
    if publishing is None:
        return
    if service in UNUSED:
        yield f"{service.value}: accepted and ignored; nothing is made for it."
        yield ""
        return
    yield f"{service.value}: {publishing.strategy.value}"
    for each in plan.endpoints:
        if each.service is service:
            yield f"  {where_is(each)}"
            yield f"    {_seen(each)}"
            if not each.restricted and plan.cluster.allowed_cidrs and is_published(each):
                yield f"    The allowed CIDR blocks do not hold: {why_not(each)}."
    for made in makes(plan.cluster, service):
        yield f"  {made.key} {made.purpose}."
    yield ""


def _seen(endpoint: Endpoint) -> str:
    by = f"by {endpoint.by}" + (f" through {_article(endpoint)}" if endpoint.through else "")
    only = " within the allowed CIDR blocks" if endpoint.restricted else ""
    if endpoint.strategy is Strategy.NONE:
        return f"Not published: {_places(endpoint)} only, {by}."
    return f"Seen from {_places(endpoint)}{only}, {by}."


def _article(endpoint: Endpoint) -> str:
    named = endpoint.through.startswith("Service/")
    return endpoint.through if named else f"the {endpoint.through}"


def _places(endpoint: Endpoint) -> str:
    if From.INTERNET in endpoint.visible_from:
        return "everywhere"
    names = [f"the {place.value}" for place in From if place in endpoint.visible_from]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _designed(plan: Plan) -> Iterator[str]:
    found = differences(plan)
    if found:
        yield "Where HyperShift differs today from its networking design of 2022:"
        for each in found:
            yield f"  {each}"
        yield ""


def _said(plan: Plan) -> Iterator[str]:
    found = [each for each in plan.findings if each.rule != NOT_HERE]  # said with the endpoint
    if found:
        yield "To be known:"
        for each in found:
            yield f"  {each.weight.value}: {each.says}"
