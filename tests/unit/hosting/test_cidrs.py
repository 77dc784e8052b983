"""Where the allowed CIDR blocks hold, and the warning for every place where they do not."""

from __future__ import annotations

import pytest
from clusters import LB, NODE_PORT, ROUTE, USED, cluster, published

from isthmus.hosting.model import (
    ControlPlaneService,
    DocumentPlace,
    EndpointAccess,
    HostedCluster,
    PlanFinding,
    Platform,
    Strategy,
    Weight,
)
from isthmus.hosting.plan import make_plan
from isthmus.hosting.rules_endpoints import ENDPOINT_RULES, FIELD
from isthmus.hosting.visibility import is_published

API, OAUTH, TUNNEL = (
    ControlPlaneService.API_SERVER,
    ControlPlaneService.OAUTH_SERVER,
    ControlPlaneService.KONNECTIVITY,
)
BLOCKS = ("203.0.113.0/24", "2001:db8::/32")
BOTH, PRIVATE = EndpointAccess.PUBLIC_AND_PRIVATE, EndpointAccess.PRIVATE


def found(cluster: HostedCluster, rule: str) -> list[PlanFinding]:
    assert rule in ENDPOINT_RULES
    return [each for each in make_plan(cluster).findings if each.rule == rule]


def where(cluster: HostedCluster) -> set[str]:
    return {each.name for each in make_plan(cluster).endpoints if each.restricted}


HELD = [
    (Platform.AWS, EndpointAccess.PUBLIC, LB, {"kube-apiserver"}),
    (Platform.AWS, BOTH, LB, {"kube-apiserver"}),
    (Platform.AWS, PRIVATE, LB, set()),
    (Platform.AWS, PRIVATE, ROUTE, set()),
    (Platform.AWS, BOTH, ROUTE, {"kube-apiserver", "oauth"}),
    (
        Platform.AGENT,
        EndpointAccess.PUBLIC,
        ROUTE,
        {"kube-apiserver", "oauth", "konnectivity-server", "ignition-server"},
    ),
    (Platform.AGENT, EndpointAccess.PUBLIC, NODE_PORT, set()),
    (Platform.AZURE, EndpointAccess.PUBLIC, LB, {"kube-apiserverlb"}),
    (Platform.IBMCLOUD, EndpointAccess.PUBLIC, ROUTE, set()),
]


@pytest.mark.parametrize(("platform", "access", "strategy", "names"), HELD)
def test_they_hold_here_and_everything_else_is_warned_of(
    platform: Platform, access: EndpointAccess, strategy: Strategy, names: set[str]
) -> None:
    given = cluster(platform, access, {API: strategy}, allowed_cidrs=BLOCKS)
    assert where(given) == names
    bare = [
        each for each in make_plan(given).endpoints if is_published(each) and each.name not in names
    ]
    warnings = found(given, "cidrs-not-here")
    assert len(warnings) == len(bare)
    for endpoint, warning in zip(bare, warnings, strict=True):
        assert endpoint.by in warning.says
        assert warning.weight is Weight.WARNING
        assert warning.do
    assert bool(found(given, "cidrs-nowhere")) is not bool(names)


def test_without_blocks_nothing_is_said() -> None:
    for given in (cluster(), cluster(services={API: ROUTE})):
        assert not {each.rule for each in make_plan(given).findings} & set(ENDPOINT_RULES)
        assert where(given) == set()


def test_other_load_balancers_do_not_have_them() -> None:
    services = {TUNNEL: LB, API: LB}
    given = cluster(Platform.NONE, services=services, allowed_cidrs=BLOCKS)
    (warning,) = [each for each in found(given, "cidrs-not-here") if "Konnectivity" in each.says]
    assert "does not copy them to Service/konnectivity-server" in warning.says
    assert "everybody can connect" in warning.says


def test_the_place_is_that_of_the_entry() -> None:
    entry = published(OAUTH, ROUTE, place=DocumentPlace(17, "spec.services[1]"))
    given = cluster(services={OAUTH: entry}, allowed_cidrs=BLOCKS)
    warnings = found(given, "cidrs-not-here")
    assert DocumentPlace(17, "spec.services[1]") in {each.place for each in warnings}


def test_nodes_come_by_what_is_restricted() -> None:
    given = cluster(allowed_cidrs=BLOCKS, places={FIELD: DocumentPlace(9, FIELD)})
    (warning,) = found(given, "cidrs-for-nodes")
    assert "APIServer" in warning.says
    assert warning.place == DocumentPlace(9, FIELD)
    routed = cluster(services={API: ROUTE}, allowed_cidrs=BLOCKS)
    (warning,) = found(routed, "cidrs-for-nodes")
    assert "APIServer, Konnectivity, Ignition" in warning.says
    assert not found(cluster(access=BOTH, allowed_cidrs=BLOCKS), "cidrs-for-nodes")


def test_a_router_restricts_every_name() -> None:
    (note,) = found(cluster(services={API: ROUTE}, allowed_cidrs=BLOCKS), "cidrs-for-all-names")
    assert "OAuthServer, Konnectivity, Ignition as well" in note.says
    assert not found(cluster(allowed_cidrs=BLOCKS), "cidrs-for-all-names")
    shared = cluster(
        Platform.AZURE, services={API: ROUTE}, allowed_cidrs=BLOCKS, shared_ingress=True
    )
    (note,) = found(shared, "cidrs-for-all-names")
    assert "shared ingress" in note.says


def test_load_balancers_have_node_ports_too() -> None:
    (note,) = found(cluster(allowed_cidrs=BLOCKS), "cidrs-node-port")
    assert note.says.startswith("Service/kube-apiserver also opens")


def test_sources_that_are_kept_make_them_hold_on_node_ports() -> None:
    given = cluster(Platform.AGENT, services=dict.fromkeys(USED, NODE_PORT), allowed_cidrs=BLOCKS)
    plan = make_plan(given, keep_sources=True)
    published_ones = [each for each in plan.endpoints if is_published(each)]
    assert published_ones and all(each.restricted for each in published_ones)
    assert not {each.rule for each in plan.findings} & set(ENDPOINT_RULES)
    for each in plan.objects:
        if each["kind"] == "Service":
            assert each["spec"]["externalTrafficPolicy"] == "Local"


def test_sources_are_not_kept_for_nothing() -> None:
    for given in (
        cluster(Platform.AGENT, services=dict.fromkeys(USED, NODE_PORT)),
        cluster(allowed_cidrs=BLOCKS),
        cluster(Platform.GCP, BOTH, {TUNNEL: LB}, allowed_cidrs=BLOCKS),
    ):
        assert make_plan(given, keep_sources=True) == make_plan(given)


def test_what_is_said_of_nodes_is_what_can_be_known() -> None:
    """From where nodes come is not in the document: machines may be behind an address of others."""
    (warning,) = found(cluster(allowed_cidrs=("10.0.0.0/8",)), "cidrs-for-nodes")
    assert "is not in the document" in warning.says
    assert "--nodes-from" in warning.do
    bare = cluster(Platform.AGENT, allowed_cidrs=("10.0.0.0/8",))
    assert not found(bare, "cidrs-for-nodes")  # nobody translates addresses there
    part = cluster(
        Platform.AGENT,
        allowed_cidrs=("10.0.0.0/8",),
        machine_cidrs=("10.0.0.0/16", "192.168.0.0/24"),
    )
    assert found(part, "cidrs-for-nodes")
    unknown = cluster(Platform.AGENT, allowed_cidrs=("10.0.0.0/8",), machine_cidrs=())
    assert found(unknown, "cidrs-for-nodes")


def test_what_to_do_instead_can_be_done() -> None:
    """Not on IBM Cloud, where no Route has a router of its own; nor where nothing is kept."""
    ibm = cluster(Platform.IBMCLOUD, services={API: ROUTE}, allowed_cidrs=BLOCKS)
    said = [each.do for each in found(ibm, "cidrs-not-here")]
    assert said and not [each for each in said if "use their own router" in each]
    assert "Route" not in found(ibm, "cidrs-nowhere")[0].do
    both = cluster(Platform.GCP, BOTH, {TUNNEL: LB}, allowed_cidrs=BLOCKS)
    (tunnel,) = [each for each in found(both, "cidrs-not-here") if "Konnectivity" in each.says]
    assert "--keep-sources" not in tunnel.do
    public = cluster(Platform.NONE, services={TUNNEL: LB}, allowed_cidrs=BLOCKS)
    (tunnel,) = [each for each in found(public, "cidrs-not-here") if "Konnectivity" in each.says]
    assert "--keep-sources" in tunnel.do
