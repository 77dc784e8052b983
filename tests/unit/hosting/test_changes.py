"""From one plan to another: what goes, what comes, who notices, in which order."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import yaml
from clusters import LB, NODE_PORT, ROUTE, USED, Entries, cluster, published
from publishing_cases import AWS, AZURE, LINK, LINKED, REMOVED, SWIFT, TOPOLOGY, changed

from isthmus.hosting.changes import ChangeKind, ChangeStep, apply_steps, changes, claims
from isthmus.hosting.document import read
from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    Platform,
    Strategy,
)
from isthmus.hosting.plan import make_plan
from isthmus.hosting.shapes import Manifest, key

API, OAUTH = ControlPlaneService.API_SERVER, ControlPlaneService.OAUTH_SERVER
TUNNEL, IGNITION = ControlPlaneService.KONNECTIVITY, ControlPlaneService.IGNITION
PUBLIC, BOTH, PRIVATE = (
    EndpointAccess.PUBLIC,
    EndpointAccess.PUBLIC_AND_PRIVATE,
    EndpointAccess.PRIVATE,
)


def steps(old: HostedCluster, new: HostedCluster) -> tuple[ChangeStep, ...]:
    return changes(make_plan(old), make_plan(new))


def told(found: tuple[ChangeStep, ...]) -> list[str]:
    return [f"{each.act.value} {each.what}" for each in found]


def check(old: HostedCluster, new: HostedCluster) -> None:
    """The steps lead there, and at no time is a name or a node port claimed twice."""
    before, after = make_plan(old), make_plan(new)
    objects: tuple[Manifest, ...] = before.objects
    for step in changes(before, after):
        objects = apply_steps(objects, [step])
        held = [claim for each in objects for claim in claims(each)]
        assert len(held) == len(set(held)), step
    assert sorted(objects, key=key) == sorted(after.objects, key=key)


def test_nothing_changes_into_itself() -> None:
    assert steps(cluster(), cluster()) == ()


@pytest.mark.parametrize(("old", "new"), list(product(EndpointAccess, repeat=2)))
@pytest.mark.parametrize("strategy", [LB, ROUTE])
def test_every_topology_becomes_every_other(
    old: EndpointAccess, new: EndpointAccess, strategy: Strategy
) -> None:
    services = {API: strategy}
    check(cluster(access=old, services=services), cluster(access=new, services=services))


def test_going_private_tells_users_before_it_takes_their_load_balancer() -> None:
    found = steps(cluster(access=BOTH), cluster(access=PRIVATE))
    assert told(found) == [
        "move APIServer",
        "update Service/kube-apiserver",
        "delete Route/oauth",
        "create Route/oauth-private",
        "move OAuthServer",
        "delete NetworkPolicy/published-oauthserver",
    ]
    kubeconfigs, balancer, oauth = found[0], found[1], found[2]
    assert kubeconfigs.says == (
        "kubeconfigs: from apiserver.example.com:6443 to api.demo.hypershift.local:6443"
    )
    assert "address" in balancer.interrupts and "all its connections" in balancer.interrupts
    # HyperShift deletes the other Route first as well: both have one name.
    assert oauth.says == (
        "Route/oauth-private needs oauthserver.example.com, which only one object can have"
    )
    assert oauth.interrupts == "oauthserver.example.com leads nowhere"
    assert found[4].says == (
        "the DNS record of oauthserver.example.com: from ingress of the management cluster to"
        " Service/private-router"
    )


def test_going_private_moves_nodes_after_the_way_is_there() -> None:
    found = steps(cluster(), cluster(access=BOTH))
    names = told(found)
    assert names.index("create Service/kube-apiserver-private") < names.index("move APIServer")
    assert names.index("update Route/konnectivity-server") < names.index("move Konnectivity")
    agents = found[names.index("move Konnectivity")]
    assert agents.says == (
        "the agents of nodes: from konnectivity.example.com:443"
        " to konnectivity-server.apps.demo.hypershift.local:443"
    )
    assert "logs, exec" in agents.interrupts
    route = found[names.index("update Route/konnectivity-server")]
    assert route.interrupts == "konnectivity.example.com leads nowhere"


def test_a_strategy_cannot_change_where_hypershift_looks_after_it() -> None:
    found = steps(cluster(), cluster(services={API: ROUTE}))
    assert found[0].act is ChangeKind.REFUSE
    assert found[0].what == "spec.services"
    assert "APIServer would change" in found[0].says
    ibm = steps(cluster(Platform.IBMCLOUD), cluster(Platform.IBMCLOUD, services={API: ROUTE}))
    assert ChangeKind.REFUSE not in {each.act for each in ibm}
    assert "move APIServer" in told(ibm)


def test_a_port_changes_under_the_same_name() -> None:
    found = steps(cluster(), cluster(services={API: ROUTE}))
    moved = [
        each.says for each in found if each.act is ChangeKind.MOVE and each.what == "APIServer"
    ]
    assert "kubeconfigs: from apiserver.example.com:6443 to apiserver.example.com:443" in moved
    assert (
        "the DNS record of apiserver.example.com: from Service/kube-apiserver to Service/router"
        in moved
    )


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        (PUBLIC, BOTH, True),
        (BOTH, PUBLIC, True),
        (PRIVATE, PUBLIC, True),
        (BOTH, PRIVATE, False),
        (PRIVATE, BOTH, False),
    ],
)
def test_azure_does_not_go_between_public_and_the_rest(
    old: EndpointAccess, new: EndpointAccess, refused: bool
) -> None:
    found = steps(cluster(Platform.AZURE, old), cluster(Platform.AZURE, new))
    assert (found[0].what == "spec.platform.azure.topology") is refused
    assert any(each.act is not ChangeKind.REFUSE for each in found)
    check(cluster(Platform.AZURE, old), cluster(Platform.AZURE, new))


OPERATOR = "spec.operatorConfiguration.clusterNetworkOperator"
OVN = f"{OPERATOR}.ovnKubernetesConfig"
NETWORKING = "spec.networking"
ID = "12345678-1234-1234-1234-123456789012"
FIXED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "spec.clusterID": ({"spec.clusterID": ID}, {"spec.clusterID": ID.replace("1", "2")}),
    "spec.dns.baseDomain": ({}, {"spec.dns.baseDomain": "example.net"}),
    "spec.dns.baseDomainPrefix": (
        {"spec.dns.baseDomainPrefix": ""},
        {"spec.dns.baseDomainPrefix": "a"},
    ),
    **{
        f"{NETWORKING}.{kind}Network": ({}, {f"{NETWORKING}.{kind}Network[0].cidr": cidr})
        for kind, cidr in (
            ("machine", "10.1.0.0/16"),
            ("cluster", "10.136.0.0/14"),
            ("service", "172.30.0.0/16"),
        )
    },
    f"{NETWORKING}.networkType": ({}, {f"{NETWORKING}.networkType": "Calico"}),
    f"{NETWORKING}.allocateNodeCIDRs": (
        {f"{NETWORKING}.networkType": "Other"},
        {f"{NETWORKING}.allocateNodeCIDRs": "Enabled"},
    ),
    f"{NETWORKING}.apiServer.advertiseAddress": (
        {},
        {f"{NETWORKING}.apiServer.advertiseAddress": "172.20.0.2"},
    ),
    f"{NETWORKING}.apiServer.port": ({}, {f"{NETWORKING}.apiServer.port": 7443}),
    f"{OPERATOR}.disableMultiNetwork": (
        {f"{NETWORKING}.networkType": "Other"},
        {f"{OPERATOR}.disableMultiNetwork": True},
    ),
    OVN: ({f"{OVN}.mtu": 1400}, {OVN: REMOVED}),
    f"{OVN}.v4InternalSubnet": (
        {f"{OVN}.v4InternalSubnet": "100.64.0.0/16"},
        {f"{OVN}.v4InternalSubnet": "100.65.0.0/16"},
    ),
    f"{OVN}.ipv6.internalJoinSubnet": (
        {f"{OVN}.ipv6.internalJoinSubnet": "fd98::/64", f"{OVN}.mtu": 1400},
        {f"{OVN}.ipv6": REMOVED},
    ),
    "spec.services": ({}, {"spec.services": list(reversed(AWS["spec"]["services"]))}),
}
AZURE_FIXED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "spec.platform.azure.private.type": (
        {TOPOLOGY: "Private", LINK: LINKED},
        {LINK: SWIFT},
    ),
    "spec.platform.azure.topology": ({TOPOLOGY: "Public"}, {TOPOLOGY: REMOVED}),
}
MAY_CHANGE: dict[str, dict[str, Any]] = {
    "a machine network is added": {f"{NETWORKING}.machineNetwork": REMOVED},
    "a name of its own": {"spec.kubeAPIServerDNSName": "api.example.net"},
    "an id is given": {"spec.clusterID": ID},
    "other blocks": {f"{NETWORKING}.apiServer.allowedCIDRBlocks": ["192.0.2.0/24"]},
    "another region": {"spec.platform.aws.region": "eu-west-1"},
}


def refused(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What cannot change from one document to the other."""
    texts = (yaml.safe_dump(each) for each in (old, new))
    before, after = (make_plan(read(text, "c.yaml")) for text in texts)
    found = changes(before, after)
    return [each.what for each in found if each.act is ChangeKind.REFUSE]


@pytest.mark.parametrize("field", [*FIXED, *AZURE_FIXED])
def test_what_is_immutable_does_not_change(field: str) -> None:
    base, (first, then) = (AWS, FIXED[field]) if field in FIXED else (AZURE, AZURE_FIXED[field])
    old = changed(base, first)
    assert refused(old, old) == []
    assert field in refused(old, changed(old, then))


@pytest.mark.parametrize("what", MAY_CHANGE)
def test_the_rest_may_change(what: str) -> None:
    new = changed(AWS, MAY_CHANGE[what])
    assert refused(AWS, new) == refused(new, AWS) == []


def test_the_order_of_the_services_is_compared_too() -> None:
    there = make_plan(cluster())
    back = replace(there.cluster, services=tuple(reversed(there.cluster.services)))
    (step,) = changes(there, make_plan(back))
    assert (step.act, step.what) == (ChangeKind.REFUSE, "spec.services")
    assert "the order" in step.says


def test_another_platform_or_name_is_another_cluster() -> None:
    other = replace(cluster(), name="other", control_plane="clusters-other")
    assert steps(cluster(), other)[0].what == "metadata"
    found = steps(cluster(), cluster(Platform.GCP, BOTH))
    assert found[0].what == "spec.platform.type"


def test_errors_are_refused() -> None:
    bad = cluster(services={OAUTH: LB})
    assert told(steps(cluster(), bad))[0] == "refuse document"
    assert "the old document" in steps(bad, cluster())[0].says


def test_node_ports_that_change_places_go_first() -> None:
    ports = dict.fromkeys(USED, NODE_PORT)
    old = cluster(Platform.AGENT, services=ports)
    swapped: Entries = {
        **ports,
        API: published(API, NODE_PORT, node_port=30003),
        TUNNEL: published(TUNNEL, NODE_PORT, node_port=30000),
    }
    new = cluster(Platform.AGENT, services=swapped)
    check(old, new)
    names = told(steps(old, new))
    deleted = [each for each in names if each.startswith("delete Service/")]
    assert len(deleted) == 1
    assert names.index(deleted[0]) < names.index(deleted[0].replace("delete", "create"))


def test_node_ports_can_be_handed_on_without_deleting() -> None:
    ports = dict.fromkeys(USED, NODE_PORT)
    old = cluster(Platform.AGENT, services=ports)
    moved: Entries = {
        **ports,
        API: published(API, NODE_PORT, node_port=30003),
        TUNNEL: published(TUNNEL, NODE_PORT, node_port=31000),
    }
    new = cluster(Platform.AGENT, services=moved)
    check(old, new)
    names = told(steps(old, new))
    assert names.index("update Service/konnectivity-server") < names.index(
        "update Service/kube-apiserver"
    )
    assert not any(each.startswith("delete") for each in names)


def test_a_name_that_a_plan_has_twice_takes_nothing_from_anybody() -> None:
    twice = published(OAUTH, ROUTE, hostname="api.demo.hypershift.local")
    old = cluster(services={API: ROUTE})
    new = make_plan(cluster(services={API: ROUTE, OAUTH: twice}))
    assert not new.errors
    found = changes(make_plan(old), new)
    assert ChangeKind.DELETE not in {each.act for each in found}
    made = apply_steps(make_plan(old).objects, found)
    assert sorted(made, key=key) == sorted(new.objects, key=key)


def test_other_blocks_cut_connections_and_nothing_else() -> None:
    old = cluster(allowed_cidrs=("203.0.113.0/24",))
    (step,) = steps(old, replace(old, allowed_cidrs=("198.51.100.0/24",)))
    assert (step.act, step.what) == (ChangeKind.UPDATE, "Service/kube-apiserver")
    assert "no longer allowed" in step.interrupts


def test_keeping_sources_is_a_change_too() -> None:
    given = cluster(
        Platform.AGENT,
        services=dict.fromkeys(USED, NODE_PORT),
        allowed_cidrs=("203.0.113.0/24",),
    )
    found = changes(make_plan(given), make_plan(given, keep_sources=True))
    assert {each.act for each in found} == {ChangeKind.UPDATE}
    assert found[0].what == "NetworkPolicy/published-apiserver"
    assert "cannot connect" in found[0].interrupts
    assert "stop answering" in found[-1].interrupts


def test_what_is_new_comes_before_what_changes() -> None:
    acts = [each.act for each in steps(cluster(), cluster(access=BOTH))]
    assert ChangeKind.CREATE in acts
    assert acts.index(ChangeKind.UPDATE) > max(
        i for i, act in enumerate(acts) if act is ChangeKind.CREATE
    )
    assert acts.index(ChangeKind.DELETE) > max(
        i for i, act in enumerate(acts) if act is ChangeKind.UPDATE
    )


def test_steps_that_nobody_notices_say_so() -> None:
    found = steps(cluster(), cluster(access=BOTH))
    for each in found:
        if each.act is ChangeKind.CREATE:
            assert each.interrupts == ""
        if each.act is ChangeKind.MOVE:
            assert each.manifest is None and each.interrupts
