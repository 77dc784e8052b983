"""Who may connect: the policies, asked as a network that enforces them would be."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

import pytest
from clusters import LB, NODE_PORT, ROUTE, USED, cluster

from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    Platform,
    Strategy,
)
from isthmus.hosting.objects import objects

API, OAUTH, TUNNEL = (
    ControlPlaneService.API_SERVER,
    ControlPlaneService.OAUTH_SERVER,
    ControlPlaneService.KONNECTIVITY,
)
NAME = "kubernetes.io/metadata.name"
GROUP = "network.openshift.io/policy-group"


class Peer(NamedTuple):
    """Who connects: an address outside, or a pod with labels in a namespace with labels."""

    address: str = ""
    labels: Mapping[str, str] = {}
    namespace: Mapping[str, str] | None = None


OUTSIDE = Peer("198.51.100.7")
STRANGER = Peer(labels={"app": "other"}, namespace={NAME: "somebody"})
NEIGHBOUR = Peer(labels={"app": "etcd"})
OPERATOR = Peer(labels={"app": "operator"}, namespace={NAME: "hypershift"})
INGRESS = Peer(labels={}, namespace={GROUP: "ingress"})
MONITORING = Peer(labels={}, namespace={GROUP: "monitoring"})
MACHINE = Peer(labels={"kubevirt.io": "virt-launcher"})


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "NotIn"
        if labels.get(expression["key"]) in expression["values"]:
            return False
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def lets(peer: Mapping[str, Any], who: Peer) -> bool:
    if "ipBlock" in peer:
        return bool(who.address) and ip_address(who.address) in ip_network(peer["ipBlock"]["cidr"])
    if who.address:
        return False
    if "namespaceSelector" in peer:
        return who.namespace is not None and selects(peer["namespaceSelector"], who.namespace)
    return who.namespace is None and selects(peer["podSelector"], who.labels)


def may(
    given: HostedCluster, who: Peer, app: str, port: int, *, keep_sources: bool = False
) -> bool:
    """As networking.k8s.io/v1 has it: selected pods let in only what some policy lets in."""
    made = [each.manifest for each in objects(given, keep_sources=keep_sources)]
    policies = [each["spec"] for each in made if each["kind"] == "NetworkPolicy"]
    policies = [each for each in policies if "Ingress" in each["policyTypes"]]
    own = [spec for spec in policies if selects(spec["podSelector"], {"app": app})]
    assert own, "a pod that no policy selects is open to everybody"
    return any(
        ("from" not in rule or any(lets(peer, who) for peer in rule["from"]))
        and ("ports" not in rule or any(each["port"] == port for each in rule["ports"]))
        for spec in own
        for rule in spec["ingress"]
    )


AGENT = cluster(Platform.AGENT, services=dict.fromkeys(USED, NODE_PORT))
ROUTED = cluster(services={API: ROUTE})


@pytest.mark.parametrize(
    "given", [AGENT, ROUTED, cluster(), cluster(access=EndpointAccess.PRIVATE)]
)
def test_nobody_else_reaches_what_is_not_published(given: HostedCluster) -> None:
    for who in (OUTSIDE, STRANGER, INGRESS, OPERATOR):
        assert not may(given, who, "etcd", 2379)
        assert not may(given, who, "kube-apiserver", 8090)
    assert may(given, NEIGHBOUR, "kube-apiserver", 6443)
    assert may(given, MONITORING, "etcd", 2379)
    assert may(given, OPERATOR, "kube-apiserver", 6443)


def test_an_api_server_with_a_route_is_reached_through_its_router_only() -> None:
    for who in (OUTSIDE, STRANGER, INGRESS):
        assert not may(ROUTED, who, "kube-apiserver", 6443)
        assert not may(ROUTED, who, "kube-apiserver", 8091)
        assert may(ROUTED, who, "private-router", 8443)
    assert may(ROUTED, Peer(labels={"app": "private-router"}), "kube-apiserver", 6443)


def test_a_load_balancer_opens_one_port() -> None:
    assert may(cluster(), OUTSIDE, "kube-apiserver", 6443)
    assert not may(cluster(), OUTSIDE, "kube-apiserver", 8091)
    assert may(cluster(), INGRESS, "kube-apiserver", 8091)
    assert may(cluster(), INGRESS, "oauth-openshift", 6443)
    assert not may(cluster(), OUTSIDE, "oauth-openshift", 6443)


def test_a_private_cluster_opens_its_router() -> None:
    given = cluster(access=EndpointAccess.PRIVATE, services={API: ROUTE})
    assert may(given, OUTSIDE, "private-router", 8443)
    for app, port in (
        ("kube-apiserver", 6443),
        ("kube-apiserver", 8091),
        ("oauth-openshift", 6443),
    ):
        assert not may(given, OUTSIDE, app, port)
        assert not may(given, INGRESS, app, port)


@pytest.mark.parametrize(
    ("app", "port"),
    [
        ("kube-apiserver", 6443),
        ("kube-apiserver", 8091),
        ("oauth-openshift", 6443),
        ("ignition-server-proxy", 8443),
    ],
)
def test_node_ports_open_what_they_lead_to(app: str, port: int) -> None:
    assert may(AGENT, OUTSIDE, app, port)
    assert not may(AGENT, OUTSIDE, app, port + 1)


@pytest.mark.parametrize("strategy", [NODE_PORT, LB])
def test_kept_sources_let_the_blocks_and_the_machines_in(strategy: Strategy) -> None:
    services = {**dict.fromkeys(USED, NODE_PORT), TUNNEL: strategy}
    given = cluster(Platform.AGENT, services=services, allowed_cidrs=("203.0.113.0/24",))
    for app, port in (
        ("kube-apiserver", 6443),
        ("kube-apiserver", 8091),
        ("oauth-openshift", 6443),
    ):
        assert may(given, OUTSIDE, app, port)
        assert not may(given, OUTSIDE, app, port, keep_sources=True)
        assert not may(given, STRANGER, app, port, keep_sources=True)
        assert may(given, Peer("203.0.113.9"), app, port, keep_sources=True)
        assert may(given, Peer("10.0.3.4"), app, port, keep_sources=True)


def test_guest_nodes_that_are_pods_reach_what_nodes_need() -> None:
    given = cluster(Platform.KUBEVIRT)
    assert may(given, MACHINE, "kube-apiserver", 6443)
    assert may(given, MACHINE, "kube-apiserver", 8091)
    assert may(given, MACHINE, "ignition-server-proxy", 8443)
    assert not may(given, MACHINE, "etcd", 2379)
    assert not may(given, MACHINE, "kube-apiserver", 8090)
    assert may(given, NEIGHBOUR, "etcd", 2379)


def test_a_shared_ingress_is_let_in() -> None:
    given = cluster(Platform.AZURE, services={API: ROUTE}, shared_ingress=True)
    shared = Peer(labels={}, namespace={NAME: "hypershift-sharedingress"})
    assert may(given, shared, "kube-apiserver", 6443)
    assert not may(given, shared, "etcd", 2379)
    assert not may(given, INGRESS, "kube-apiserver", 6443)


@pytest.mark.parametrize(("said", "ports"), [(6443, {6443}), (443, {6443}), (7443, {6443, 7443})])
def test_the_pods_port_follows_the_document(said: int, ports: set[int]) -> None:
    given = cluster(api_port=said)
    assert {
        port for port in (443, 6443, 7443) if may(given, OUTSIDE, "kube-apiserver", port)
    } == ports
