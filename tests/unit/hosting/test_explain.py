"""A plan in sentences."""

from __future__ import annotations

import pytest
from clusters import LB, NODE_PORT, ROUTE, USED, cluster, published

from isthmus.hosting.explain import explain
from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    ManagementNetwork,
    Platform,
    Weight,
)
from isthmus.hosting.plan import RULES, make_plan
from isthmus.hosting.rules_endpoints import ENDPOINT_RULES

API, OAUTH = ControlPlaneService.API_SERVER, ControlPlaneService.OAUTH_SERVER


def said(given: HostedCluster) -> list[str]:
    text = explain(make_plan(given))
    assert text.endswith("\n") and not text.endswith("\n\n")
    return text.splitlines()


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (
            cluster(),
            [
                "demo is on AWS and Public, as the document says: it has endpoints for everybody.",
                "Routes for everybody are served by the ingress of the management cluster: they"
                " would have their own router if APIServer had a Route with a hostname.",
            ],
        ),
        (
            cluster(Platform.GCP, EndpointAccess.PRIVATE, has_access=False),
            [
                "demo is on GCP and Private, which is the default on GCP:"
                " it has endpoints for the guest's own network.",
                "Routes for the guest's own network are served by the control plane's own router.",
            ],
        ),
        (
            cluster(Platform.AGENT, services={API: ROUTE}),
            [
                "demo is on Agent, which has only public endpoints.",
                "Routes for everybody are served by the control plane's own router, because"
                " APIServer has a Route with a hostname.",
            ],
        ),
        (
            cluster(Platform.AZURE, services={API: ROUTE}, shared_ingress=True),
            ["Routes for everybody are served by the shared ingress."],
        ),
    ],
)
def test_why_there_is_a_router(given: HostedCluster, lines: list[str]) -> None:
    head = said(given)[: said(given).index("")]
    assert head[-len(lines) :] == lines


def test_every_endpoint_is_there_with_who_sees_it() -> None:
    given = cluster(access=EndpointAccess.PUBLIC_AND_PRIVATE, allowed_cidrs=("203.0.113.0/24",))
    lines = said(given)
    assert lines[lines.index("  apiserver.example.com:6443") + 1] == (
        "    Seen from everywhere within the allowed CIDR blocks, by Service/kube-apiserver."
    )
    private = lines.index("  api.demo.hypershift.local:6443")
    assert lines[private + 1] == (
        "    Seen from the guest VPC, the management cluster and the control plane namespace,"
        " by Service/kube-apiserver-private."
    )
    assert lines[private + 2].startswith("    The allowed CIDR blocks do not apply: ")
    for each in make_plan(given).endpoints:
        assert f"  {each.address}:{each.port}" in lines


def test_what_is_ignored_is_said() -> None:
    lines = said(cluster(services={ControlPlaneService.OVN_SB_DB: ROUTE}))
    assert [line for line in lines if line.startswith("OVNSbDb: accepted and ignored")]


def test_errors_are_all_that_is_said() -> None:
    lines = said(cluster(services={OAUTH: LB}))
    assert "demo" in lines[0] and "error" in lines[0]
    assert "OAuthServer" in lines[1]


def test_oauth_by_a_private_load_balancer_is_a_surprise() -> None:
    given = cluster(Platform.AZURE, EndpointAccess.PUBLIC_AND_PRIVATE, {OAUTH: LB})
    (found,) = [
        each for each in make_plan(given).findings if each.rule == "private-although-public"
    ]
    assert "users outside the guest's own network cannot log in" in found.says
    public = make_plan(cluster(Platform.AZURE, services={OAUTH: LB}))
    assert "private-although-public" not in {each.rule for each in public.findings}


def test_azures_internal_port_is_a_surprise() -> None:
    rules = {
        each.rule for each in make_plan(cluster(Platform.AZURE, EndpointAccess.PRIVATE)).findings
    }
    assert "other-port-in-private" in rules
    rules = {each.rule for each in make_plan(cluster(Platform.AZURE)).findings}
    assert "other-port-in-private" not in rules


@pytest.mark.parametrize(("length", "surprised"), [(46, False), (47, True)])
def test_a_name_that_openshift_cannot_make_up(length: int, surprised: bool) -> None:
    entry = published(ControlPlaneService.IGNITION, ROUTE, hostname="")
    given = cluster(services={ControlPlaneService.IGNITION: entry}, control_plane="n" * length)
    found = {each.rule for each in make_plan(given).findings}
    assert ("route-name-too-long" in found) is surprised


def test_names_of_findings_are_of_one_kind() -> None:
    names = [*(rule.name for rule in RULES), *ENDPOINT_RULES]
    assert len(names) == len(set(names))


def test_node_ports_need_no_word_about_routes_or_topologies() -> None:
    given = cluster(Platform.AGENT, services=dict.fromkeys(USED, NODE_PORT))
    text = explain(make_plan(given))
    assert "Routes" not in text
    assert "design" not in text


def test_a_node_port_of_a_cloud_is_where_its_nodes_are() -> None:
    entry = published(API, NODE_PORT, node_address="10.1.2.3")
    text = explain(
        make_plan(cluster(Platform.GCP, EndpointAccess.PUBLIC_AND_PRIVATE, {API: entry}))
    )
    assert "its node port is where the nodes of the management cluster are" in text


def test_nodes_behind_an_ingress_of_many_clusters_are_a_surprise() -> None:
    """Their pods ask for kubernetes.default.svc, or by an address, and so it cannot be routed."""
    (found,) = [
        each
        for each in make_plan(cluster(Platform.IBMCLOUD, services={API: ROUTE})).findings
        if each.rule == "nodes-by-ingress"
    ]
    assert "kubernetes.default.svc" in found.says
    assert found.weight is Weight.WARNING
    for given in (
        cluster(Platform.IBMCLOUD),
        cluster(services={API: ROUTE}),
        cluster(Platform.AZURE, services={API: ROUTE}, shared_ingress=True),
    ):
        assert "nodes-by-ingress" not in {each.rule for each in make_plan(given).findings}


def test_no_router_is_promised_on_ibm_cloud() -> None:
    text = explain(make_plan(cluster(Platform.IBMCLOUD, services={API: ROUTE})))
    assert "Routes for everybody are served by the ingress" in text
    assert "their own router" not in text


def test_what_is_made_for_no_service_is_told() -> None:
    management = ManagementNetwork(api=("10.0.0.1",))
    lines = said(
        cluster(forwards_metrics=True, management=management, api_dns_name="k8s.example.net")
    )
    assert (
        "  Route/metrics-proxy leads the guest's monitoring to the control plane's metrics."
        in lines
    )
    (policy,) = [line for line in lines if line.startswith("  NetworkPolicy/management-api ")]
    assert "do not need it" in policy
    assert "  k8s.example.net:6443" in lines
    assert not any("metrics" in line or "NetworkPolicy" in line for line in said(cluster()))
