"""Who sees what: HyperShift's predicates, and the lists of its design."""

from __future__ import annotations

import pytest
from clusters import LB, NODE_PORT, ROUTE, cluster, published

from isthmus.hosting.explain import differences
from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    Platform,
    Strategy,
    Viewpoint,
    VisibleServices,
)
from isthmus.hosting.models import DESIGNED
from isthmus.hosting.plan import make_plan
from isthmus.hosting.visibility import (
    EVERYWHERE,
    GUEST_SIDE,
    is_private,
    is_public,
    labels_routes,
    listed,
    seen_at_node,
    uses_router,
)

PUBLIC, BOTH, PRIVATE = (
    EndpointAccess.PUBLIC,
    EndpointAccess.PUBLIC_AND_PRIVATE,
    EndpointAccess.PRIVATE,
)
API, OAUTH = ControlPlaneService.API_SERVER, ControlPlaneService.OAUTH_SERVER
TUNNEL, IGNITION, OVN = (
    ControlPlaneService.KONNECTIVITY,
    ControlPlaneService.IGNITION,
    ControlPlaneService.OVN_SB_DB,
)


@pytest.mark.parametrize("platform", Platform)
@pytest.mark.parametrize(
    ("access", "public", "private"),
    [(PUBLIC, True, False), (BOTH, True, True), (PRIVATE, False, True)],
)
def test_the_sides_of_each_platform(
    platform: Platform, access: EndpointAccess, public: bool, private: bool
) -> None:
    found = cluster(platform, access)
    if platform not in (Platform.AWS, Platform.AZURE, Platform.GCP):
        public, private = True, False
    assert (is_public(found), is_private(found)) == (public, private)


def test_swift_makes_private_what_its_topology_does_not() -> None:
    found = cluster(Platform.AZURE, PUBLIC, swift=True)
    assert is_private(found) and is_public(found)
    assert not is_public(cluster(Platform.AZURE, PRIVATE, swift=True))


# HyperShift's TestLabelHCPRoutes, and what UseHCPRouter makes of each.
LABELS = [
    (Platform.AWS, PUBLIC, LB, False, False),
    (Platform.AWS, PUBLIC, ROUTE, True, True),
    (Platform.AWS, BOTH, LB, False, True),
    (Platform.AWS, BOTH, ROUTE, True, True),
    (Platform.AWS, PRIVATE, LB, True, True),
    (Platform.AWS, PRIVATE, ROUTE, True, True),
    (Platform.AZURE, PUBLIC, LB, False, False),
    (Platform.AZURE, BOTH, LB, False, True),
    (Platform.AZURE, PRIVATE, LB, True, True),
    (Platform.GCP, BOTH, LB, False, True),
    (Platform.GCP, BOTH, ROUTE, True, True),
    (Platform.GCP, PRIVATE, LB, True, True),
    *(
        (platform, PUBLIC, strategy, strategy is ROUTE, strategy is ROUTE)
        for platform in (
            Platform.AGENT,
            Platform.KUBEVIRT,
            Platform.OPENSTACK,
            Platform.NONE,
            Platform.POWERVS,
        )
        for strategy in (LB, NODE_PORT, ROUTE)
    ),
    (Platform.IBMCLOUD, PUBLIC, LB, False, False),
    (Platform.IBMCLOUD, PUBLIC, ROUTE, False, False),
]


@pytest.mark.parametrize(("platform", "access", "strategy", "labels", "router"), LABELS)
def test_whose_router_serves_routes(
    platform: Platform, access: EndpointAccess, strategy: Strategy, labels: bool, router: bool
) -> None:
    found = cluster(platform, access, {API: strategy})
    assert (labels_routes(found), uses_router(found)) == (labels, router)


def test_a_route_without_a_name_makes_no_router() -> None:
    found = cluster(Platform.AGENT, PUBLIC, {API: published(API, ROUTE, hostname="")})
    assert not labels_routes(found)


@pytest.mark.parametrize(
    ("said", "access", "router"),
    [
        ({"shared_ingress": True}, PUBLIC, False),
        ({"shared_ingress": True, "swift": True}, PUBLIC, True),
        ({"shared_ingress": True, "swift": True}, PRIVATE, True),
    ],
)
def test_a_shared_ingress_takes_the_routers_place(
    said: dict[str, bool], access: EndpointAccess, router: bool
) -> None:
    found = cluster(Platform.AZURE, access, {API: ROUTE}, **said)
    assert labels_routes(found)
    assert uses_router(found) is router


def test_a_node_is_seen_where_its_address_is() -> None:
    assert seen_at_node("10.0.0.1") == GUEST_SIDE
    assert seen_at_node("fd00::1") == GUEST_SIDE
    assert seen_at_node("8.8.8.8") == EVERYWHERE
    assert seen_at_node("nodes.example.com") == EVERYWHERE


def test_the_design_is_what_its_document_says() -> None:
    lists = {
        PUBLIC: VisibleServices(frozenset({API, TUNNEL, OVN, OAUTH}), frozenset()),
        BOTH: VisibleServices(frozenset({API, OAUTH}), frozenset({API, TUNNEL, OVN})),
        PRIVATE: VisibleServices(frozenset({OAUTH}), frozenset({API, TUNNEL, OVN})),
    }
    assert lists == DESIGNED


# What AWS clusters show today; IGNITION was not in the design, OVN is in nothing any more.
TODAY = {
    PUBLIC: VisibleServices(frozenset({API, TUNNEL, OAUTH, IGNITION}), frozenset()),
    BOTH: VisibleServices(frozenset({API, OAUTH}), frozenset({API, OAUTH, TUNNEL, IGNITION})),
    PRIVATE: VisibleServices(frozenset(), frozenset({API, OAUTH, TUNNEL, IGNITION})),
}


@pytest.mark.parametrize("strategy", [LB, ROUTE])
@pytest.mark.parametrize("access", EndpointAccess)
def test_what_is_shown_today(access: EndpointAccess, strategy: Strategy) -> None:
    plan = make_plan(cluster(Platform.AWS, access, {API: strategy, OVN: ROUTE}))
    assert not plan.errors
    assert listed(plan.endpoints) == TODAY[access]


@pytest.mark.parametrize(
    ("access", "differ"),
    [(PUBLIC, {IGNITION, OVN}), (BOTH, {OAUTH, IGNITION, OVN}), (PRIVATE, {OAUTH, IGNITION, OVN})],
)
def test_every_difference_from_the_design_is_said(
    access: EndpointAccess, differ: set[ControlPlaneService]
) -> None:
    found = differences(make_plan(cluster(Platform.AWS, access)))
    assert {each.split()[0] for each in found} == {each.value for each in differ}


def test_private_was_to_keep_oauth_public() -> None:
    (said,) = [
        each
        for each in differences(make_plan(cluster(Platform.AWS, PRIVATE)))
        if each.startswith("OAuthServer")
    ]
    assert "was to be shown to everybody" in said
    assert "is shown to the guest's own network" in said


def test_what_everybody_sees_the_guest_sees_too() -> None:
    for each in make_plan(cluster()).endpoints:
        if Viewpoint.INTERNET in each.visible_from:
            assert each.visible_from == EVERYWHERE
