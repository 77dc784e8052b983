"""Every service by every strategy, on every platform and in every topology."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clusters import LB, NODE_PORT, ROUTE, cluster

from isthmus.hosting.endpoints import endpoints
from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    PlannedEndpoint,
    Platform,
    PublishPlan,
    Strategy,
    Viewpoint,
)
from isthmus.hosting.objects import makes
from isthmus.hosting.plan import make_plan
from isthmus.hosting.shapes import key

API, OAUTH = ControlPlaneService.API_SERVER, ControlPlaneService.OAUTH_SERVER
TUNNEL, IGNITION = ControlPlaneService.KONNECTIVITY, ControlPlaneService.IGNITION
CLOUDS = (Platform.AWS, Platform.AZURE, Platform.GCP)

Sides = tuple[bool, bool]
ONLY_PUBLIC, BOTH, ONLY_PRIVATE = (True, False), (True, True), (False, True)

# Reference: the Services and Routes of the service alone; {} is filled by _of_platform().
OBJECTS: dict[tuple[ControlPlaneService, Strategy], dict[Sides, str]] = {
    (API, LB): {
        ONLY_PUBLIC: "Service/kube-apiserver",
        BOTH: "Service/kube-apiserver Service/kube-apiserver-private",
        ONLY_PRIVATE: "Service/kube-apiserver Service/kube-apiserver-private",
    },
    (API, NODE_PORT): dict.fromkeys((ONLY_PUBLIC, BOTH, ONLY_PRIVATE), "Service/kube-apiserver"),
    (API, ROUTE): {
        ONLY_PUBLIC: "Service/kube-apiserver Route/kube-apiserver Route/kube-apiserver-internal",
        BOTH: "Service/kube-apiserver Route/kube-apiserver Route/kube-apiserver-internal",
        ONLY_PRIVATE: (
            "Service/kube-apiserver Route/kube-apiserver-private Route/kube-apiserver-internal"
        ),
    },
    (TUNNEL, LB): dict.fromkeys((ONLY_PUBLIC, BOTH, ONLY_PRIVATE), "Service/konnectivity-server"),
    (TUNNEL, NODE_PORT): dict.fromkeys(
        (ONLY_PUBLIC, BOTH, ONLY_PRIVATE), "Service/konnectivity-server"
    ),
    (TUNNEL, ROUTE): dict.fromkeys(
        (ONLY_PUBLIC, BOTH, ONLY_PRIVATE),
        "Service/konnectivity-server Route/konnectivity-server",
    ),
    (OAUTH, LB): dict.fromkeys((ONLY_PUBLIC, BOTH, ONLY_PRIVATE), "Service/oauth-openshift"),
    (OAUTH, NODE_PORT): dict.fromkeys((ONLY_PUBLIC, BOTH, ONLY_PRIVATE), "Service/oauth-openshift"),
    (OAUTH, ROUTE): {
        ONLY_PUBLIC: "Service/oauth-openshift Route/oauth",
        BOTH: "Service/oauth-openshift Route/oauth Route/oauth-internal",
        ONLY_PRIVATE: "Service/oauth-openshift Route/oauth-private Route/oauth-internal",
    },
    (IGNITION, NODE_PORT): dict.fromkeys(
        (ONLY_PUBLIC, BOTH, ONLY_PRIVATE), "Service/ignition-server-proxy"
    ),
    (IGNITION, ROUTE): dict.fromkeys(
        (ONLY_PUBLIC, BOTH, ONLY_PRIVATE), "Service/ignition-server-proxy Route/ignition-server"
    ),
}

# Whether everybody sees it, and whether the guest's own network has a way of its own.
SHOWN: dict[tuple[ControlPlaneService, Strategy], dict[Sides, Sides]] = {
    (API, LB): {each: each for each in (ONLY_PUBLIC, BOTH, ONLY_PRIVATE)},
    (API, ROUTE): {each: each for each in (ONLY_PUBLIC, BOTH, ONLY_PRIVATE)},
    (OAUTH, ROUTE): {each: each for each in (ONLY_PUBLIC, BOTH, ONLY_PRIVATE)},
    (OAUTH, LB): {ONLY_PUBLIC: ONLY_PUBLIC, BOTH: ONLY_PRIVATE, ONLY_PRIVATE: ONLY_PRIVATE},
    (TUNNEL, ROUTE): {ONLY_PUBLIC: ONLY_PUBLIC, BOTH: ONLY_PRIVATE, ONLY_PRIVATE: ONLY_PRIVATE},
    (IGNITION, ROUTE): {ONLY_PUBLIC: ONLY_PUBLIC, BOTH: ONLY_PRIVATE, ONLY_PRIVATE: ONLY_PRIVATE},
    (TUNNEL, LB): dict.fromkeys((ONLY_PUBLIC, BOTH, ONLY_PRIVATE), ONLY_PUBLIC),
}

PORTS: dict[tuple[ControlPlaneService, Strategy], int] = {
    (API, LB): 6443,
    (TUNNEL, LB): 8091,
    (OAUTH, LB): 443,
    (API, NODE_PORT): 30000,
    (OAUTH, NODE_PORT): 30001,
    (TUNNEL, NODE_PORT): 30003,
    (IGNITION, NODE_PORT): 30004,
    (API, ROUTE): 443,
    (OAUTH, ROUTE): 443,
    (TUNNEL, ROUTE): 443,
    (IGNITION, ROUTE): 443,
}


def refused(service: ControlPlaneService, strategy: Strategy, platform: Platform) -> bool:
    """What HyperShift's operator, CRD or controller does not take."""
    if service in (ControlPlaneService.OIDC, ControlPlaneService.OVN_SB_DB):
        return False
    if strategy in (Strategy.NONE, Strategy.S3):
        return True
    if (service, strategy) == (IGNITION, LB):
        return True
    if service is API:
        return platform is Platform.AWS and strategy is NODE_PORT
    if (service, strategy) == (OAUTH, LB):
        return platform is not Platform.AZURE
    return platform in (Platform.AWS, Platform.AZURE) and strategy is not ROUTE


def cases() -> Iterator[tuple[ControlPlaneService, Strategy, Platform, EndpointAccess]]:
    for service in ControlPlaneService:
        for strategy in Strategy:
            for platform in Platform:
                for access in EndpointAccess:
                    # GCP has no Public, and the rest no topology, so no document says it.
                    if platform is Platform.GCP and access is EndpointAccess.PUBLIC:
                        continue
                    if platform not in CLOUDS and access is not EndpointAccess.PUBLIC:
                        continue
                    yield service, strategy, platform, access


CASES = list(cases())


def sides_of(found: HostedCluster) -> Sides:
    public = found.platform not in CLOUDS or found.access is not EndpointAccess.PRIVATE
    private = found.platform in CLOUDS and found.access is not EndpointAccess.PUBLIC
    return public, private


def expected(service: ControlPlaneService, strategy: Strategy, found: HostedCluster) -> set[str]:
    if service in (ControlPlaneService.OIDC, ControlPlaneService.OVN_SB_DB):
        return set()
    names = set(OBJECTS[service, strategy][sides_of(found)].split())
    if (service, strategy, found.platform) == (API, LB, Platform.AZURE):
        names |= {"Service/kube-apiserverlb"} if sides_of(found)[0] else set()
    if found.platform is Platform.IBMCLOUD and "Service/ignition-server-proxy" in names:
        names = names - {"Service/ignition-server-proxy"} | {"Service/ignition-server"}
    return names


def expected_port(service: ControlPlaneService, strategy: Strategy, platform: Platform) -> int:
    if (service, strategy) == (API, LB):
        return {Platform.AZURE: 7443, Platform.IBMCLOUD: 2040}.get(platform, 6443)
    return PORTS[service, strategy]


def published_of(plan: PublishPlan, service: ControlPlaneService) -> list[PlannedEndpoint]:
    return [
        each
        for each in plan.endpoints
        if each.service is service and each.strategy is not Strategy.NONE
    ]


def test_the_matrix_is_whole() -> None:
    assert len(CASES) == 6 * 5 * (6 * 1 + 2 * 3 + 2)


@pytest.mark.parametrize("platform", Platform)
@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("service", ControlPlaneService)
def test_the_matrix(service: ControlPlaneService, strategy: Strategy, platform: Platform) -> None:
    for access in [case[3] for case in CASES if case[:3] == (service, strategy, platform)]:
        found = cluster(platform, access, {service: strategy})
        plan = make_plan(found)
        if refused(service, strategy, platform):
            assert plan.errors
            assert plan.endpoints == ()
            assert plan.objects == ()
            continue
        assert not plan.errors
        assert {each.key for each in makes(found, service)} == expected(service, strategy, found)
        assert expected(service, strategy, found) <= {key(each) for each in plan.objects}
        own = published_of(plan, service)
        if service in (ControlPlaneService.OIDC, ControlPlaneService.OVN_SB_DB):
            assert own == []
            continue
        assert {each.strategy for each in own} == {strategy}
        assert {each.port for each in own} == {expected_port(service, strategy, platform)}
        everybody = any(Viewpoint.INTERNET in each.visible_from for each in own)
        apart = any(Viewpoint.INTERNET not in each.visible_from for each in own)
        shown = SHOWN.get((service, strategy), {}).get(sides_of(found), ONLY_PUBLIC)
        assert (everybody, apart) == shown


ROUTERS = [
    (Platform.AWS, EndpointAccess.PUBLIC, LB, ""),
    (Platform.AWS, EndpointAccess.PUBLIC, ROUTE, "Service/router"),
    (Platform.AWS, EndpointAccess.PUBLIC_AND_PRIVATE, LB, "Service/private-router"),
    (
        Platform.AWS,
        EndpointAccess.PUBLIC_AND_PRIVATE,
        ROUTE,
        "Service/private-router Service/router",
    ),
    (Platform.AWS, EndpointAccess.PRIVATE, LB, "Service/private-router"),
    (Platform.AWS, EndpointAccess.PRIVATE, ROUTE, "Service/private-router"),
    (Platform.AGENT, EndpointAccess.PUBLIC, NODE_PORT, ""),
    (Platform.AGENT, EndpointAccess.PUBLIC, ROUTE, "Service/router"),
    (Platform.IBMCLOUD, EndpointAccess.PUBLIC, ROUTE, ""),
]


@pytest.mark.parametrize(("platform", "access", "strategy", "routers"), ROUTERS)
def test_the_routers(
    platform: Platform, access: EndpointAccess, strategy: Strategy, routers: str
) -> None:
    plan = make_plan(cluster(platform, access, {API: strategy}))
    names = {key(each) for each in plan.objects}
    assert names & {"Service/router", "Service/private-router"} == set(routers.split())
    ways = {each.through for each in plan.endpoints if each.through.startswith("Service/")}
    assert ways <= set(routers.split())


def test_what_is_not_there_has_no_endpoint() -> None:
    found = cluster()
    assert {each.service for each in endpoints(found)} == {API, OAUTH, TUNNEL, IGNITION}
