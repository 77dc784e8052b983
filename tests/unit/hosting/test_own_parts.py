"""Isthmus' own parts of a plan: right addresses, right names, and documents that are read back."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
import yaml

from isthmus.dial import settings_connectivity as connectivity
from isthmus.errors import ConfigError
from isthmus.hosting.model import ControlPlaneService, EndpointAccess, Platform, PublishPlan
from isthmus.hosting.own_parts import OwnParts, PartChoices, command_lines, own_parts
from isthmus.hosting.own_parts import egress_selector as egress_of
from isthmus.hosting.own_parts_names import (
    advertise_address,
    certificates,
    no_proxy,
    shared_addresses,
)
from isthmus.hosting.plan import make_plan
from isthmus.hosting.shapes import key
from isthmus.programs.apiserver_proxy import settings_file as apiserver_proxy_file
from isthmus.programs.sni_router import settings_routes as sni_routes
from isthmus.programs.sni_router.rules import Found, Miss
from isthmus.values import HostPort
from tests.unit.hosting.clusters import LB, NODE_PORT, ROUTE, cluster, published
from tests.unit.hosting.every_plan import every_plan

ROUTER = "Service/private-router"
API, TUNNEL = ControlPlaneService.API_SERVER, ControlPlaneService.KONNECTIVITY


def plan_of(
    platform: Platform = Platform.AWS, access: EndpointAccess = EndpointAccess.PUBLIC, **said: Any
) -> PublishPlan:
    plan = make_plan(cluster(platform, access, **said))
    assert not plan.errors
    return plan


def arguments(text: str, container: int = 0) -> list[str]:
    (document,) = [each for each in yaml.safe_load_all(text) if each["kind"] != "ServiceAccount"]
    spec = document["spec"].get("template", document)["spec"]
    return list(spec["containers"][container]["args"])


def test_agents_come_to_the_address_that_nodes_see() -> None:
    public = arguments(own_parts(plan_of()).files["konnectivity-agent.yaml"])
    assert public[:3] == [
        "agent",
        "--proxy-server-host=konnectivity.example.com",
        "--proxy-server-port=443",
    ]
    private = command_lines(plan_of(access=EndpointAccess.PRIVATE))["agent"]
    assert "--proxy-server-host=konnectivity-server.apps.demo.hypershift.local" in private
    ports = {each: published(each, NODE_PORT) for each in (API, TUNNEL)}
    nodes = command_lines(plan_of(Platform.AGENT, services=ports))["agent"]
    assert nodes[2:4] == ("--proxy-server-host=nodes.example.com", "--proxy-server-port=30003")


def test_the_server_is_as_in_hypershift() -> None:
    files = own_parts(plan_of(), PartChoices(replicas=5, image="example.com/isthmus:2")).files
    args = arguments(files["konnectivity-server.patch.yaml"], 1)
    wanted = (
        "--mode=http-connect --server-port=8090 --agent-port=8091 --health-port=2041"
        " --admin-port=8093 --proxy-strategies=destHost,defaultRoute --server-count=5"
    )
    assert set(wanted.split()) < set(args)
    assert "--cluster-ca-cert=/etc/konnectivity/ca/ca.crt" in args  # or anybody is an agent
    assert "image: example.com/isthmus:2" in files["konnectivity-server.patch.yaml"]
    assert "image: example.com/isthmus:2" in files["konnectivity-agent.yaml"]


def test_only_the_plan_has_the_service_for_agents() -> None:
    plan = plan_of()
    (local,) = yaml.safe_load_all(own_parts(plan).files["konnectivity-local.yaml"])
    assert local["metadata"] == {"name": "konnectivity-server-local", "namespace": "clusters-demo"}
    assert "Service/konnectivity-server" in map(key, plan.objects)


def test_the_egress_selector_is_one() -> None:
    plan = plan_of()
    text = egress_of(plan, PartChoices())
    (config_map,) = yaml.safe_load_all(own_parts(plan).files["konnectivity-egress.yaml"])
    assert config_map["data"] == {"config.yaml": text}
    found = connectivity.read(text, name="here")
    assert str(found.networks["cluster"].connection.tcp) == "konnectivity-server-local:8090"


# The others are as Agent is; a release tries the other clouds, whose topologies are those of AWS.
DAILY = ("AWS", "Agent", "IBMCloud")
NIGHTLY = ("Azure", "GCP")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(one, marks=pytest.mark.nightly if one.startswith(NIGHTLY) else ())
        for one in every_plan()
        if one.startswith(DAILY + NIGHTLY)
    ],
)
def test_every_document_is_read_back(name: str) -> None:
    plan = every_plan()[name]
    parts = own_parts(plan)
    assert not parts.missing
    proxy = apiserver_proxy_file.parse(parts.files["apiserver-proxy.yaml"], "here")
    assert proxy.listen == (("172.20.0.1", 6443),)
    routes = [text for each, text in parts.files.items() if each.startswith("sni-routes.")]
    assert len(routes) == len(shared_addresses(plan))
    for text in routes:
        sni_routes.parse(text, "here")


def test_nodes_forward_to_what_is_private_where_there_is_such() -> None:
    for access, upstream in (
        (EndpointAccess.PUBLIC, "apiserver.example.com:443"),
        (EndpointAccess.PRIVATE, "api.demo.hypershift.local:443"),
    ):
        text = own_parts(plan_of(access=access, services={API: ROUTE})).files[
            "apiserver-proxy.yaml"
        ]
        proxy = apiserver_proxy_file.parse(text, "here")
        assert list(map(str, proxy.upstreams)) == [upstream]
        assert proxy.through is None and proxy.proxy_protocol is None


def test_a_proxy_is_on_the_way_of_nodes_that_come_by_the_internet() -> None:
    said: dict[str, Any] = {
        "proxy_for_https": "http://proxy.example.net:3128",
        "no_proxy": (".example.net",),
    }
    for access, goes in ((EndpointAccess.PUBLIC, True), (EndpointAccess.PRIVATE, False)):
        parts = own_parts(plan_of(access=access, **said))
        proxy = apiserver_proxy_file.parse(parts.files["apiserver-proxy.yaml"], "here")
        assert (proxy.through is not None) is goes
        assert "value: http://proxy.example.net:3128" in parts.files["konnectivity-agent.yaml"]
    rack: dict[ControlPlaneService, Any] = {
        each: published(each, NODE_PORT, node_address="192.168.100.10")
        for each in (API, ControlPlaneService.OAUTH_SERVER, TUNNEL, ControlPlaneService.IGNITION)
    }
    # HyperShift knows no private way there, so that its nodes ask the proxy.
    parts = own_parts(plan_of(Platform.AGENT, services=rack, **said))
    proxy = apiserver_proxy_file.parse(parts.files["apiserver-proxy.yaml"], "here")
    assert proxy.through is not None
    exempt = plan_of(**{**said, "no_proxy": ("172.31.0.0/16",)})
    proxy = apiserver_proxy_file.parse(own_parts(exempt).files["apiserver-proxy.yaml"], "here")
    assert proxy.through is not None and proxy.proxy_for(proxy.upstreams[0]) is None


def shared_ingress(**said: Any) -> OwnParts:
    plan = make_plan(
        cluster(Platform.AZURE, services={API: ROUTE}, shared_ingress=True,
                azure_workload_identities=False, **said)
    )  # fmt: skip
    assert not plan.errors, plan.errors
    return own_parts(plan)


def test_a_shared_ingress_hears_which_cluster_it_is() -> None:
    parts = shared_ingress(cluster_id="4711")
    proxy = apiserver_proxy_file.parse(parts.files["apiserver-proxy.yaml"], "here")
    assert proxy.upstreams == (HostPort("apiserver.example.com", 6443),)
    assert [(each.type, each.value) for each in proxy.proxy_protocol or ()] == [(0x20, b"4711")]
    without = shared_ingress()
    assert "apiserver-proxy.yaml" not in without.files
    assert len(without.missing) == 1 and "spec.clusterID" in without.missing[0]


def test_a_shared_ingress_sees_to_the_allowed_blocks() -> None:
    blocks = ("192.0.2.0/24", "2001:db8::/64")
    parts = shared_ingress(cluster_id="4711", allowed_cidrs=blocks)
    table = sni_routes.parse(parts.files["sni-routes.shared-ingress.yaml"], "here")
    assert {each.allowed_cidrs for each in table.routes} == {tuple(map(ip_network, blocks))}
    found = table.find("kubernetes.default.svc", tlv=b"4711", source=ip_address("192.0.2.7"))
    assert isinstance(found, Found) and found.route.name == "clusters-demo.kube-apiserver.pods"
    assert table.find("kubernetes.default.svc", source=ip_address("192.0.2.7")) is Miss.UNKNOWN_NAME
    refused = table.find("apiserver.example.com", source=ip_address("198.51.100.7"))
    assert refused is Miss.NOT_ALLOWED
    # Where the plan has a Service with source ranges in front, the router may see other sources.
    own = plan_of(access=EndpointAccess.PUBLIC_AND_PRIVATE, services={API: ROUTE},
                  allowed_cidrs=blocks[:1])  # fmt: skip
    assert "allowedCIDRs" not in own_parts(own).files["sni-routes.router.yaml"]


def test_names_lead_to_services_and_pods_names_to_the_apiserver() -> None:
    plan = plan_of(access=EndpointAccess.PRIVATE, services={API: ROUTE})
    text = own_parts(plan).files["sni-routes.private-router.yaml"]
    table = sni_routes.parse(text, "here")
    for name, backend in (
        ("apiserver.example.com", "kube-apiserver.clusters-demo.svc.cluster.local:6443"),
        ("api.demo.hypershift.local", "kube-apiserver.clusters-demo.svc.cluster.local:6443"),
        (
            "konnectivity-server.apps.demo.hypershift.local",
            "konnectivity-server.clusters-demo.svc.cluster.local:8091",
        ),
        ("kubernetes.default.svc", "kube-apiserver.clusters-demo.svc.cluster.local:6443"),
        ("", "kube-apiserver.clusters-demo.svc.cluster.local:6443"),
    ):
        found = table.find(name, ())
        assert isinstance(found, Found) and list(map(str, found.route.backends)) == [backend]


def test_an_ingress_of_many_clusters_has_no_default() -> None:
    (shared,) = shared_addresses(plan_of())
    assert shared.through == "ingress of the management cluster" and not shared.default
    assert {each.service for each in shared.routes} == set(ControlPlaneService) & {
        ControlPlaneService.OAUTH_SERVER, TUNNEL, ControlPlaneService.IGNITION,
    }  # fmt: skip


def test_public_and_private_names_are_at_addresses_of_their_own() -> None:
    plan = plan_of(access=EndpointAccess.PUBLIC_AND_PRIVATE, services={API: ROUTE})
    hosts = {
        each.name: {host for route in each.routes for host in route.hosts}
        for each in shared_addresses(plan)
    }
    assert "apiserver.example.com" in hosts["router"]
    assert "api.demo.hypershift.local" in hosts["private-router"]
    assert not hosts["router"] & hosts["private-router"]


def test_the_router_has_all_names_and_is_where_its_services_lead() -> None:
    plan = plan_of(access=EndpointAccess.PUBLIC_AND_PRIVATE, services={API: ROUTE})
    config, workload = yaml.safe_load_all(own_parts(plan).files["router.yaml"])
    table = sni_routes.parse(config["data"]["routes.yaml"], "here")
    names = ("apiserver.example.com", "api.demo.hypershift.local", "oauthserver.example.com")
    assert all(isinstance(table.find(name, ()), Found) for name in names)
    template = workload["spec"]["template"]
    services = [each for each in plan.objects if key(each) in ("Service/router", ROUTER)]
    assert len(services) == 2
    for each in services:
        assert each["spec"]["selector"].items() <= template["metadata"]["labels"].items()
        ports = {one["name"] for one in template["spec"]["containers"][0]["ports"]}
        assert each["spec"]["ports"][0]["targetPort"] in ports
    assert "router.yaml" not in own_parts(plan_of()).files  # the ingress is not ours


# Reference: serving certificates of kube-apiserver and of both sides of konnectivity's server.
def test_certificates_have_the_names_of_hypershift_and_of_the_plan() -> None:
    found = {
        each.name: each for each in certificates(plan_of(access=EndpointAccess.PUBLIC_AND_PRIVATE))
    }
    api = found["kube-apiserver"]
    inside = "localhost kubernetes kubernetes.default.svc.cluster.local openshift.default.svc"
    assert {*inside.split(), "apiserver.example.com", "api.demo.hypershift.local"} < {*api.names}
    assert api.addresses == ("127.0.0.1", "::1", "172.31.0.1", "172.20.0.1")
    assert found["konnectivity-server"].names[:2] == ("localhost", "konnectivity-server-local")
    cluster_side = found["konnectivity-cluster"].names
    assert "konnectivity-server.clusters-demo.svc" in cluster_side
    assert "konnectivity-server.apps.demo.hypershift.local" in cluster_side


def test_an_address_of_a_node_is_in_certificates() -> None:
    entry = published(TUNNEL, NODE_PORT, node_address="192.168.7.10")
    plan = plan_of(Platform.AGENT, services={TUNNEL: entry})
    found = {each.name: each for each in certificates(plan)}
    assert found["konnectivity-cluster"].addresses == ("192.168.7.10",)


def test_no_proxy_is_as_in_hypershift() -> None:
    said = cluster(no_proxy=("corp.example",), region="eu-central-1", machine_cidrs=("0.0.0.0/0",))
    wanted = (
        ".cluster.local .eu-central-1.compute.internal .hypershift.local .svc 10.132.0.0/14"
        " 127.0.0.1 169.254.169.254 172.31.0.0/16 corp.example localhost"
    )
    assert no_proxy(said) == tuple(wanted.split())
    assert ".ec2.internal" in no_proxy(cluster(region="us-east-1"))
    assert "169.254.169.254" not in no_proxy(cluster(Platform.AGENT))
    assert "168.63.129.16" in no_proxy(cluster(Platform.AZURE))


def test_the_address_that_nodes_have_follows_the_services() -> None:
    assert advertise_address(cluster(advertise_address="")) == "172.20.0.1"
    assert advertise_address(cluster(advertise_address="", service_cidrs=("fd02::/112",))) == (
        "fd00::1"
    )


def test_what_the_platform_chooses_is_said_and_not_guessed() -> None:
    parts = own_parts(plan_of(services={API: published(API, LB, hostname="")}))
    assert "apiserver-proxy.yaml" not in parts.files
    assert len(parts.missing) == 1
    assert parts.missing[0].endswith(" --address kube-apiserver=HOST")
    assert "konnectivity-agent.yaml" in parts.files


def test_a_wrong_image_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^--image takes an image"):
        own_parts(plan_of(), PartChoices(image="no image"))


def test_a_namespace_may_be_as_long_as_kubernetes_has_them() -> None:
    long = "clusters-" + "n" * 54
    parts = own_parts(plan_of(control_plane=long))
    (config_map,) = yaml.safe_load_all(parts.files["konnectivity-egress.yaml"])
    assert config_map["metadata"]["namespace"] == long
