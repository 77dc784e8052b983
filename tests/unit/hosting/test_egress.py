"""What leaves the control plane: the policies, asked as a network that enforces them would be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

import pytest
import yaml
from clusters import NODE_PORT, ROUTE, USED, cluster

from isthmus.hosting.changes import interruption
from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    ManagementNetwork,
    Platform,
)
from isthmus.hosting.objects import objects
from isthmus.hosting.own_parts import own_parts
from isthmus.hosting.plan import make_plan

API = ControlPlaneService.API_SERVER
NAME = "kubernetes.io/metadata.name"
PRIVATE, BOTH = EndpointAccess.PRIVATE, EndpointAccess.PUBLIC_AND_PRIVATE
KNOWN = ManagementNetwork(api=("10.0.0.1", "10.0.0.2"), ranges=("10.128.0.0/14", "172.30.0.0/16"))
V6 = replace(KNOWN, api=("10.0.0.1", "fd00:1::1"), ranges=("10.128.0.0/14", "fd00:2::/48"))
MACHINE = {"kubevirt.io": "virt-launcher"}


class Target(NamedTuple):
    """Where a pod goes: an address, or a pod with labels in a namespace with labels."""

    address: str = ""
    port: int = 443
    labels: Mapping[str, str] = {}
    namespace: Mapping[str, str] | None = None


MANAGEMENT_API = Target("10.0.0.2", 6443)
SOMEBODY_S_POD = Target("10.130.0.7", 8080)
WORLD = Target("198.51.100.7")
NEIGHBOUR = Target(labels={"app": "etcd"}, port=2379)
API_POD = Target(labels={"app": "kube-apiserver"}, port=6443)
DNS = Target(labels={"dns": "default"}, port=5353, namespace={NAME: "openshift-dns"})
KUBE_DNS = Target(labels={"k8s-app": "kube-dns"}, port=53, namespace={NAME: "kube-system"})


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """As apimachinery has it: NotIn holds for a label that is not there."""
    for each in selector.get("matchExpressions", []):
        value = labels.get(each["key"])
        holds = {
            "In": lambda value=value, each=each: value in each["values"],
            "NotIn": lambda value=value, each=each: value not in each["values"],
            "DoesNotExist": lambda value=value: value is None,
        }[each["operator"]]
        if not holds():
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def lets(peer: Mapping[str, Any], to: Target) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        if not to.address or ip_address(to.address) not in ip_network(block["cidr"]):
            return False
        return not any(
            ip_address(to.address) in ip_network(each) for each in block.get("except", ())
        )
    if to.address:
        return False
    if "namespaceSelector" not in peer:
        return to.namespace is None and selects(peer["podSelector"], to.labels)
    there = to.namespace is not None and selects(peer["namespaceSelector"], to.namespace)
    return there and selects(peer.get("podSelector", {}), to.labels)


def may(given: HostedCluster, labels: Mapping[str, str], to: Target) -> bool:
    """Pods that no policy for what leaves selects may go anywhere."""
    made = [each.manifest for each in objects(given)]
    policies = [each["spec"] for each in made if each["kind"] == "NetworkPolicy"]
    own = [
        spec
        for spec in policies
        if "Egress" in spec["policyTypes"] and selects(spec["podSelector"], labels)
    ]
    return not own or any(
        any(lets(peer, to) for peer in rule["to"])
        and ("ports" not in rule or any(each["port"] == to.port for each in rule["ports"]))
        for spec in own
        for rule in spec["egress"]
    )


def test_nothing_is_kept_away_from_what_is_not_known() -> None:
    for platform in (Platform.AWS, Platform.KUBEVIRT):
        made = [each.manifest for each in objects(cluster(platform))]
        assert not any("egress" in each["spec"] for each in made)


def test_only_pods_that_need_it_reach_the_management_clusters_api_server() -> None:
    given = cluster(management=KNOWN)
    etcd = {"app": "etcd"}
    for to in (MANAGEMENT_API, Target("10.0.0.1", 443), SOMEBODY_S_POD):
        assert not may(given, etcd, to)
    for to in (WORLD, NEIGHBOUR, DNS, KUBE_DNS):
        assert may(given, etcd, to)
    assert not may(given, etcd, Target(labels={"app": "x"}, namespace={NAME: "somebody"}))
    needs = {"app": "operator", "hypershift.openshift.io/need-management-kas-access": "true"}
    for labels in (needs, {"name": "aws-ebs-csi-driver-operator"}):
        assert may(given, labels, MANAGEMENT_API)
    # HyperShift labels those pods everywhere, and has the policy on AWS alone.
    assert may(cluster(Platform.GCP, PRIVATE, management=KNOWN), etcd, MANAGEMENT_API)


@pytest.mark.parametrize("platform", [Platform.AWS, Platform.AZURE, Platform.GCP])
def test_a_router_reaches_what_it_leads_to(platform: Platform) -> None:
    given = cluster(platform, BOTH, services={API: ROUTE}, management=KNOWN)
    router = {"app": "private-router"}
    for to in (API_POD, WORLD, DNS, Target(labels={"app": "metrics-proxy"}, port=9443)):
        assert may(given, router, to)
    for to in (MANAGEMENT_API, SOMEBODY_S_POD):
        assert not may(given, router, to)
    if platform is not Platform.AWS:  # where pods of the namespace may reach each other
        assert not may(given, router, NEIGHBOUR)
    bare = cluster(Platform.AGENT, services={API: ROUTE}, management=KNOWN)
    assert may(bare, router, MANAGEMENT_API)


def test_guest_nodes_that_are_pods_get_out_and_to_what_nodes_need() -> None:
    ports = dict.fromkeys(USED, NODE_PORT)
    given = cluster(Platform.KUBEVIRT, services=ports, management=KNOWN)
    first = replace(given.services[0], node_address="10.129.0.9")
    given = replace(given, services=(first, *given.services[1:]))
    ingress = Target(namespace={"network.openshift.io/policy-group": "ingress"})
    for to in (WORLD, API_POD, DNS, ingress, Target(labels=MACHINE), Target("10.129.0.9", 30000)):
        assert may(given, MACHINE, to)
    for to in (MANAGEMENT_API, SOMEBODY_S_POD, NEIGHBOUR, Target("172.30.0.1")):
        assert not may(given, MACHINE, to)
    assert may(given, {"app": "etcd"}, MANAGEMENT_API)


def test_ipv6_is_let_out_where_the_management_clusters_is_known() -> None:
    away = Target("2001:db8::1")
    assert not may(cluster(management=KNOWN), {"app": "etcd"}, away)
    given = cluster(management=V6)
    assert may(given, {"app": "etcd"}, away)
    for address in ("fd00:1::1", "fd00:2::7", "10.0.0.1"):
        assert not may(given, {"app": "etcd"}, Target(address))


def test_a_policy_that_changes_is_said() -> None:
    def policy(management: ManagementNetwork) -> Mapping[str, Any]:
        made = objects(cluster(management=management))
        (found,) = [each.manifest for each in made if each.key == "NetworkPolicy/management-api"]
        return found

    assert interruption(policy(KNOWN), policy(KNOWN)) == ""
    assert "let out" in interruption(policy(KNOWN), policy(V6))


METRICS = "Route/metrics-proxy"


@pytest.mark.parametrize(
    ("given", "host", "labels"),
    [
        (cluster(), "metrics-proxy-demo.example.com", 0),
        (cluster(services={API: ROUTE}), "metrics-proxy-demo.example.com", 1),
        (cluster(access=PRIVATE), "metrics-proxy.apps.demo.hypershift.local", 2),
        (cluster(Platform.AGENT, services=dict.fromkeys(USED, NODE_PORT)), "", 0),
    ],
)
def test_metrics_have_a_route_where_they_are_forwarded(
    given: HostedCluster, host: str, labels: int
) -> None:
    assert METRICS not in {each.key for each in objects(given)}
    made = {each.key: each.manifest for each in objects(replace(given, forwards_metrics=True))}
    assert made["Service/metrics-proxy"]["spec"]["ports"] == [
        {"name": "https", "port": 443, "protocol": "TCP", "targetPort": 9443}
    ]
    route = made[METRICS]
    assert route["spec"].get("host", "") == host
    assert len(route["metadata"].get("labels", {})) == labels
    # Its own router is a neighbour; the ingress has to be let in.
    assert ("NetworkPolicy/metrics-proxy" in made) is (labels == 0)


def test_a_router_knows_the_metrics() -> None:
    given = cluster(access=PRIVATE, services={API: ROUTE}, forwards_metrics=True)
    files = own_parts(make_plan(given)).files
    routes = yaml.safe_load(files["sni-routes.private-router.yaml"])["routes"]
    assert routes[-1] == {
        "name": "metrics-proxy",
        "hosts": ["metrics-proxy.apps.demo.hypershift.local"],
        "backends": ["metrics-proxy.clusters-demo.svc.cluster.local:443"],
    }
    config, _ = yaml.safe_load_all(files["router.yaml"])
    assert routes[-1] in yaml.safe_load(config["data"]["routes.yaml"])["routes"]
