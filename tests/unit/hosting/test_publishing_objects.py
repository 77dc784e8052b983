"""The manifests that publish a control plane, letter by letter where it matters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from clusters import LB, NODE_PORT, ROUTE, USED, cluster, published

from isthmus.hosting.endpoints import endpoints
from isthmus.hosting.model import ControlPlaneService, EndpointAccess, HostedCluster, Platform
from isthmus.hosting.objects import objects, purposes
from isthmus.hosting.plan import make_plan
from isthmus.hosting.shapes import Manifest, key
from isthmus.hosting.visibility import INGRESS, SHARED_INGRESS

API, OAUTH, TUNNEL = (
    ControlPlaneService.API_SERVER,
    ControlPlaneService.OAUTH_SERVER,
    ControlPlaneService.KONNECTIVITY,
)
BOTH, PRIVATE = EndpointAccess.PUBLIC_AND_PRIVATE, EndpointAccess.PRIVATE
AWS = "service.beta.kubernetes.io/aws-load-balancer-"


def one(found: HostedCluster, name: str) -> Manifest:
    (manifest,) = [each.manifest for each in objects(found) if each.key == name]
    return manifest


def test_a_public_load_balancer() -> None:
    found = cluster(allowed_cidrs=("203.0.113.0/24",))
    assert one(found, "Service/kube-apiserver") == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "kube-apiserver",
            "namespace": "clusters-demo",
            "labels": {
                "app": "kube-apiserver",
                "hypershift.openshift.io/control-plane-component": "kube-apiserver",
            },
            "annotations": {
                f"{AWS}type": "nlb",
                f"{AWS}scheme": "internet-facing",
                "external-dns.alpha.kubernetes.io/hostname": "apiserver.example.com",
            },
        },
        "spec": {
            "type": "LoadBalancer",
            "ipFamilyPolicy": "PreferDualStack",
            "loadBalancerSourceRanges": ["203.0.113.0/24"],
            "selector": {
                "app": "kube-apiserver",
                "hypershift.openshift.io/control-plane-component": "kube-apiserver",
            },
            "ports": [{"port": 6443, "protocol": "TCP", "targetPort": "client"}],
        },
    }


def test_a_load_balancer_of_both_sides() -> None:
    found = cluster(access=BOTH, allowed_cidrs=("203.0.113.0/24",))
    cross_zone = f"{AWS}cross-zone-load-balancing-enabled"
    public = one(found, "Service/kube-apiserver")["metadata"]["annotations"]
    assert public[cross_zone] == "true"
    assert f"{AWS}internal" not in public
    private = one(found, "Service/kube-apiserver-private")
    assert private["metadata"]["annotations"] == {
        f"{AWS}type": "nlb",
        f"{AWS}internal": "true",
        cross_zone: "true",
        f"{AWS}attributes": "load_balancing.cross_zone.enabled=true",
    }
    assert "loadBalancerSourceRanges" not in private["spec"]


def test_azure_has_a_load_balancer_beside_its_service() -> None:
    found = cluster(Platform.AZURE)
    assert one(found, "Service/kube-apiserverlb")["spec"]["ports"][0]["port"] == 7443
    inside = one(found, "Service/kube-apiserver")["spec"]
    assert (inside["type"], inside["ports"][0]["port"]) == ("ClusterIP", 6443)
    private = one(cluster(Platform.AZURE, PRIVATE), "Service/kube-apiserver-private")
    assert private["spec"]["ports"][0]["port"] == 7443
    assert private["metadata"]["annotations"] == {
        "service.beta.kubernetes.io/azure-load-balancer-internal": "true"
    }


def test_routers_on_aws_say_which_side_they_are_on() -> None:
    # HyperShift's own fixture: public and private, with a Route to kube-apiserver.
    found = cluster(access=BOTH, services={API: ROUTE})
    both_zones = {
        f"{AWS}type": "nlb",
        f"{AWS}cross-zone-load-balancing-enabled": "true",
        f"{AWS}attributes": "load_balancing.cross_zone.enabled=true",
    }
    inside = one(found, "Service/private-router")["metadata"]["annotations"]
    assert inside == both_zones | {f"{AWS}internal": "true"}
    outside = one(found, "Service/router")["metadata"]["annotations"]
    assert outside == both_zones | {f"{AWS}scheme": "internet-facing"}


def test_kubevirt_over_azure_has_azures_load_balancer() -> None:
    over_azure = cluster(Platform.KUBEVIRT, management_platform=Platform.AZURE)
    balancer = one(over_azure, "Service/kube-apiserverlb")["spec"]
    assert (balancer["type"], balancer["ports"][0]["port"]) == ("LoadBalancer", 7443)
    assert one(over_azure, "Service/kube-apiserver")["spec"]["type"] == "ClusterIP"
    elsewhere = cluster(Platform.KUBEVIRT, management_platform=Platform.AWS)
    assert one(elsewhere, "Service/kube-apiserver")["spec"]["ports"][0]["port"] == 6443


@pytest.mark.parametrize(
    ("found", "port", "through"),
    [
        (cluster(), 6443, ""),
        (cluster(services={API: ROUTE}), 443, "Service/router"),
        (cluster(access=PRIVATE, services={API: ROUTE}), 443, "Service/private-router"),
        (cluster(Platform.AGENT, services={API: NODE_PORT}), 30000, ""),
        (cluster(Platform.AZURE, services={API: ROUTE}, shared_ingress=True), 443, SHARED_INGRESS),
    ],
)
def test_a_further_name_is_where_users_find_the_api_server(
    found: HostedCluster, port: int, through: str
) -> None:
    named = endpoints(replace(found, api_dns_name="k8s.example.net"))
    main, further, *_ = [each for each in named if each.service is API]
    assert further.name == "kube-apiserver-dns-name"
    assert (further.address, further.port, further.through) == ("k8s.example.net", port, through)
    assert further.sni == ("k8s.example.net" if through else "")
    assert (further.by, further.visible_from) == (main.by, main.visible_from)
    assert {*named} - {further} == {*endpoints(found)}


def test_an_ingress_of_many_clusters_does_not_know_a_further_name() -> None:
    found = cluster(Platform.IBMCLOUD, services={API: ROUTE}, api_dns_name="k8s.example.net")
    plan = make_plan(found)
    assert "k8s.example.net" not in {each.address for each in plan.endpoints}
    assert "api-dns-name-nowhere" in {each.rule for each in plan.findings}


def test_ibm_has_ports_and_names_of_its_own() -> None:
    found = cluster(Platform.IBMCLOUD)
    assert one(found, "Service/kube-apiserver")["spec"]["ports"][0]["port"] == 2040
    assert one(found, "Route/ignition-server")["spec"]["to"]["name"] == "ignition-server"


def test_node_ports_are_what_the_document_says() -> None:
    found = cluster(
        Platform.AGENT,
        services={
            **dict.fromkeys(USED, NODE_PORT),
            OAUTH: published(OAUTH, NODE_PORT, node_port=0),
        },
    )
    ports: dict[str, Any] = {
        key(each.manifest): each.manifest["spec"]["ports"][0].get("nodePort")
        for each in objects(found)
        if each.manifest["kind"] == "Service"
    }
    assert ports == {
        "Service/kube-apiserver": 30000,
        "Service/oauth-openshift": None,
        "Service/konnectivity-server": 30003,
        "Service/ignition-server-proxy": 30004,
    }


def test_a_route_leaves_tls_alone() -> None:
    assert one(cluster(), "Route/konnectivity-server") == {
        "apiVersion": "route.openshift.io/v1",
        "kind": "Route",
        "metadata": {
            "name": "konnectivity-server",
            "namespace": "clusters-demo",
            "annotations": {"haproxy.router.openshift.io/balance": "roundrobin"},
        },
        "spec": {
            "host": "konnectivity.example.com",
            "to": {"kind": "Service", "name": "konnectivity-server", "weight": 100},
            "tls": {"termination": "passthrough", "insecureEdgeTerminationPolicy": "None"},
        },
    }


def test_a_route_without_a_name_leaves_it_to_openshift() -> None:
    found = cluster(services={OAUTH: published(OAUTH, ROUTE, hostname="")})
    assert "host" not in one(found, "Route/oauth")["spec"]


HCP = "hypershift.openshift.io/hosted-control-plane"
INTERNAL = "hypershift.openshift.io/internal-route"
VISIBILITY = "hypershift.openshift.io/route-visibility"

# HyperShift's own fixtures of TestReconcileInfrastructure: labels and hosts of its Routes.
FIXTURES: list[tuple[EndpointAccess, bool, dict[str, tuple[str, set[str]]]]] = [
    (
        BOTH,
        True,
        {
            "konnectivity-server": (
                "konnectivity-server.apps.demo.hypershift.local",
                {HCP, INTERNAL},
            ),
            "kube-apiserver": ("apiserver.example.com", {HCP}),
            "kube-apiserver-internal": ("api.demo.hypershift.local", {HCP, INTERNAL}),
            "oauth": ("oauthserver.example.com", {HCP}),
            "oauth-internal": ("oauth.apps.demo.hypershift.local", {HCP, INTERNAL}),
        },
    ),
    (
        BOTH,
        False,
        {
            "konnectivity-server": (
                "konnectivity-server.apps.demo.hypershift.local",
                {HCP, INTERNAL},
            ),
            "oauth": ("oauthserver.example.com", set()),
            "oauth-internal": ("oauth.apps.demo.hypershift.local", {HCP, INTERNAL}),
        },
    ),
    (
        PRIVATE,
        True,
        {
            "konnectivity-server": (
                "konnectivity-server.apps.demo.hypershift.local",
                {HCP, INTERNAL},
            ),
            "kube-apiserver-private": ("apiserver.example.com", {HCP, INTERNAL, VISIBILITY}),
            "kube-apiserver-internal": ("api.demo.hypershift.local", {HCP, INTERNAL}),
            "oauth-private": ("oauthserver.example.com", {HCP, INTERNAL, VISIBILITY}),
            "oauth-internal": ("oauth.apps.demo.hypershift.local", {HCP, INTERNAL}),
        },
    ),
]


@pytest.mark.parametrize(("access", "api_route", "routes"), FIXTURES)
def test_routes_are_as_in_hypershifts_fixtures(
    access: EndpointAccess, api_route: bool, routes: dict[str, tuple[str, set[str]]]
) -> None:
    found = objects(cluster(access=access, services={API: ROUTE if api_route else LB}))
    made = {
        each.manifest["metadata"]["name"]: (
            each.manifest["spec"]["host"],
            set(each.manifest["metadata"].get("labels", {})),
        )
        for each in found
        if each.manifest["kind"] == "Route" and each.service is not ControlPlaneService.IGNITION
    }
    assert made == routes


def test_the_router_is_restricted_and_its_private_half_is_not() -> None:
    found = cluster(access=BOTH, services={API: ROUTE}, allowed_cidrs=("203.0.113.0/24",))
    assert one(found, "Service/router")["spec"]["loadBalancerSourceRanges"] == ["203.0.113.0/24"]
    private = one(found, "Service/private-router")
    assert "loadBalancerSourceRanges" not in private["spec"]
    assert private["spec"]["selector"] == {"app": "private-router"}
    assert private["spec"]["ports"] == [
        {"name": "https", "port": 443, "protocol": "TCP", "targetPort": "https"}
    ]


def test_a_shared_ingress_needs_no_load_balancer() -> None:
    services = {API: ROUTE}
    said: dict[str, Any] = {"shared_ingress": True, "allowed_cidrs": ("203.0.113.0/24",)}
    found = cluster(Platform.AZURE, BOTH, services, swift=True, **said)
    assert one(found, "Service/private-router")["spec"]["type"] == "ClusterIP"
    by_name = {each.name: each for each in endpoints(found)}
    assert by_name["kube-apiserver"].through == SHARED_INGRESS
    assert by_name["kube-apiserver"].restricted
    assert not by_name["kube-apiserver-internal"].restricted
    alone = cluster(Platform.AZURE, services=services, **said)
    assert not any("router" in each.key for each in objects(alone) if each.service is None)
    balanced = cluster(Platform.AZURE, **said)
    assert "loadBalancerSourceRanges" not in one(balanced, "Service/kube-apiserverlb")["spec"]


def test_the_ingress_of_the_management_cluster_serves_what_has_no_label() -> None:
    found = {each.name: each for each in endpoints(cluster())}
    assert found["oauth"].through == INGRESS
    assert (found["oauth"].sni, found["oauth"].by) == ("oauthserver.example.com", "Route/oauth")


def test_who_may_connect_comes_before_what_there_is_to_connect_to() -> None:
    kinds = [each.manifest["kind"] for each in objects(cluster())]
    assert kinds == sorted(kinds, key=("NetworkPolicy", "Service", "Route").index)


def test_purposes_are_sentences_after_a_name() -> None:
    for name, purpose in purposes(cluster(access=BOTH, services={API: ROUTE})).items():
        assert purpose.split()[0] in {"gives", "is", "leads", "leaves", "lets", "opens"}, name
        assert not purpose.endswith(".")
