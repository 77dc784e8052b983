"""A plan's lab is a topology that can be read, with a wall that does what the plan says."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from isthmus.errors import ConfigError
from isthmus.hosting.lab_topology import lab_topology
from isthmus.hosting.lab_topology_hosts import LabNetworks, inside, outside
from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    Platform,
    Publishing,
    PublishPlan,
)
from isthmus.hosting.plan import make_plan
from isthmus.lab.reading import read
from isthmus.lab.topology import AttemptFailure, Expectation, Topology
from isthmus.values import HostPort
from tests.unit.hosting.clusters import LB, NODE_PORT, ROUTE, cluster, published
from tests.unit.hosting.every_plan import every_plan

API, OAUTH = ControlPlaneService.API_SERVER, ControlPlaneService.OAUTH_SERVER
TUNNEL, IGNITION = ControlPlaneService.KONNECTIVITY, ControlPlaneService.IGNITION
# Reading takes its time; these differ most.
SOME = [name for name in every_plan() if name.split("-")[0] in ("AWS", "Agent", "IBMCloud")]


def plan_of(
    platform: Platform = Platform.AWS, access: EndpointAccess = EndpointAccess.PUBLIC, **said: Any
) -> PublishPlan:
    plan = make_plan(cluster(platform, access, **said))
    assert not plan.errors
    return plan


def topology(plan: PublishPlan, **said: Any) -> Topology:
    return read(lab_topology(plan, **said), name="plan", source="here")


def address(found: Topology, host: str) -> str:
    return str(found.host(host).addresses[0])


def targets(found: Topology) -> list[str]:
    attempts = [step.attempt for step in found.steps if isinstance(step, Expectation)]
    return [each.target.removeprefix("https://").rstrip("/") for each in attempts]


def expected(found: Topology, host: str, target: str) -> bool | None:
    """Whether a host is to reach a target; None where nothing is said about it."""
    for step in found.steps:
        if not isinstance(step, Expectation) or step.attempt.source != host:
            continue
        if step.attempt.target.removeprefix("https://").rstrip("/") == target:
            assert step.fails in (None, (AttemptFailure.UNREACHABLE,))
            return step.fails is None
    return None


@pytest.mark.parametrize("name", SOME)
def test_every_plan_is_a_topology(name: str) -> None:
    plan = every_plan()[name]
    found = topology(plan)
    hosts = {host.name for host in found.hosts}
    assert {"kube-apiserver", "node", "pod", "user", "operator", "component"} < hosts
    for endpoint in plan.endpoints:
        for host in ("node", "user", "operator", "component"):
            assert expected(found, host, str(endpoint.target)) is not None


@pytest.mark.parametrize(
    "entry",
    [
        published(API, LB),
        published(API, ROUTE),
        published(API, NODE_PORT, node_address="192.0.2.10"),
        published(API, NODE_PORT, node_address="192.0.2.10", node_port=0),
    ],
    ids=["LoadBalancer", "Route", "NodePort", "NodePort of the platform's choice"],
)
def test_a_further_name_of_kube_apiserver_is_at_the_address_of_the_first(entry: Publishing) -> None:
    name = "k8s.example.net"
    plan = plan_of(Platform.NONE, services={API: entry}, api_dns_name=name)
    first = next(each for each in plan.endpoints if each.service is API)
    found = topology(plan)
    known = {named: str(address) for named, address in found.names}
    assert known[name] == known.get(first.address, first.address)
    (port,) = {HostPort.parse(target).port for target in targets(found) if name in target}
    assert any(target == str(HostPort(first.address, port)) for target in targets(found))
    for host in ("node", "user", "operator"):
        reached = expected(found, host, f"{name}:{port}")
        assert reached is expected(found, host, str(HostPort(first.address, port)))
    let_in = {address(found, rule.target) for rule in found.allows if rule.source == "user"}
    assert (known[name] in let_in) is expected(found, "user", f"{name}:{port}")


def test_what_nobody_on_the_internet_reaches() -> None:
    found = topology(plan_of(access=EndpointAccess.PRIVATE, services={API: ROUTE}))
    names = [name for name, _ in found.names if name.endswith((".example.com", ".local"))]
    assert len(names) == 6
    for name in names:
        assert expected(found, "user", f"{name}:443") is False
        assert expected(found, "node", f"{name}:443") is True
    assert not [each for each in found.allows if each.source == "user"]


def test_cidr_blocks_divide_people() -> None:
    found = topology(plan_of(allowed_cidrs=("198.51.100.0/24", "192.0.2.10/32")))
    target = "apiserver.example.com:6443"
    assert expected(found, "user", target) is True
    assert expected(found, "stranger", target) is False
    assert address(found, "user") == "198.51.100.77"
    assert address(found, "stranger") == "203.0.113.77"
    assert address(found, "node") == "192.0.2.10"  # the narrowest: a NAT gateway's
    assert expected(found, "stranger", "oauthserver.example.com:443") is True


def test_nodes_that_were_forgotten_must_reach_it_and_the_wall_does_not_let_them() -> None:
    plan = plan_of(allowed_cidrs=("198.51.100.0/24",))
    found = topology(plan, nodes_from="192.0.2.10")
    assert expected(found, "node", "apiserver.example.com:6443") is True
    through = {(each.source, each.target) for each in found.allows}
    assert ("user", "kube-apiserver-balancer") in through
    assert ("node", "kube-apiserver-balancer") not in through


def test_the_wall_is_by_the_objects_and_not_by_the_endpoints() -> None:
    """So that endpoints that promise too much are found out."""
    plan = plan_of(allowed_cidrs=("198.51.100.0/24",))
    through = {(each.source, each.target) for each in topology(plan).allows}
    objects = [yaml.safe_load(yaml.safe_dump(dict(each))) for each in plan.objects]
    for each in objects:
        each["spec"].pop("loadBalancerSourceRanges", None)
    wide = PublishPlan(cluster=plan.cluster, endpoints=plan.endpoints, objects=tuple(objects))
    found = topology(wide)
    wider = {(each.source, each.target) for each in found.allows}
    assert ("stranger", "kube-apiserver-balancer") in wider - through
    assert expected(found, "stranger", "apiserver.example.com:6443") is False


def test_blocks_that_hold_by_a_policy_let_the_machines_in() -> None:
    entries: dict[ControlPlaneService, Any] = {
        each: published(each, NODE_PORT, node_address="nodes.example.com")
        for each in (API, OAUTH, TUNNEL, IGNITION)
    }
    said = cluster(Platform.AGENT, services=entries, allowed_cidrs=("198.51.100.0/24",))
    found = topology(make_plan(said, keep_sources=True))
    assert address(found, "node").startswith("10.0.")
    for service, may in (("user", True), ("stranger", False), ("node", True)):
        assert expected(found, service, "nodes.example.com:30000") is may


def test_the_plans_own_parts_run() -> None:
    found = topology(plan_of(services={API: ROUTE}, access=EndpointAccess.PRIVATE))
    commands = {one.name: " ".join(one.command) for one in found.processes}
    assert set(commands) == {"server", "agent", "apiserver-proxy", "private-router-sni"}
    assert "--proxy-server-host=konnectivity-server.apps.demo.hypershift.local" in commands["agent"]
    assert "--proxy-strategies=destHost,defaultRoute" in commands["server"]
    files = dict(found.files)
    assert "api.demo.hypershift.local:443" in files["apiserver-proxy.yaml"]
    assert "default: kube-apiserver" in files["sni-routes.private-router.yaml"]


def test_what_the_platform_chooses_is_made_up() -> None:
    services: dict[ControlPlaneService, Any] = {
        each: published(each, LB if each is API else ROUTE, hostname="")
        for each in (API, OAUTH, TUNNEL, IGNITION)
    }
    found = topology(plan_of(Platform.KUBEVIRT, services=services))
    assert expected(found, "user", "kube-apiserver.demo.lab.internal:6443") is True
    ports: dict[ControlPlaneService, Any] = {
        each: published(each, NODE_PORT, node_port=0) for each in (API, OAUTH, TUNNEL, IGNITION)
    }
    (node,) = [
        host for host in topology(plan_of(Platform.AGENT, services=ports)).hosts
        if host.name == "management-node"
    ]  # fmt: skip
    assert len({one.port for one in node.services}) == 4


def test_node_ports_may_be_in_the_machines_network() -> None:
    entries: dict[ControlPlaneService, Any] = {
        each: published(each, NODE_PORT, node_address="10.0.0.20")
        for each in (API, OAUTH, TUNNEL, IGNITION)
    }
    found = topology(plan_of(Platform.AGENT, services=entries))
    assert found.host("management-node").attachments[0].network == "guest"
    assert expected(found, "user", "10.0.0.20:30000") is False


def test_everything_may_be_ipv6() -> None:
    six: dict[str, Any] = {
        "service_cidrs": ("fd02::/112",),
        "cluster_cidrs": ("fd01::/48",),
        "machine_cidrs": ("fd05::/64",),
        "advertise_address": "fd00::1",
    }
    found = topology(plan_of(Platform.AGENT, **six))
    for host in found.hosts:
        assert {one.version for one in host.addresses} == {6}


@pytest.mark.parametrize(
    ("nodes_from", "says"),
    [("nat.example.com", "--nodes-from takes an address"), ("10.0.0.1", "no host of a lab can")],
)
def test_an_address_that_a_lab_cannot_have_is_one_sentence(nodes_from: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        lab_topology(plan_of(), nodes_from=nodes_from)


def test_networks_keep_clear_of_each_other() -> None:
    ground = LabNetworks(4, ("10.208.0.0/13", "10.216.0.0/14"))
    ground.free_network("one")
    assert str(ground.networks["one"]) == "10.220.0.0/24"
    assert ground.place("near", "10.220.1.5") == "near"
    assert not ground.networks["near"].overlaps(ground.networks["one"])
    assert ground.place("near", "10.220.0.7") == "one"
    assert ground.place("near", "172.16.5.1") == "near-2"  # the first is a gateway's: a wider one
    assert str(ground.networks["near-2"]) == "172.16.0.0/20"
    assert ground.next_address("one") == "10.220.0.10"
    assert ground.next_address("one") == "10.220.0.11"


def test_allowed_blocks_are_kept_clear_of_where_that_can_be() -> None:
    for avoided, free in (("10.208.0.0/12", "172.24.0.0/24"), ("0.0.0.0/0", "10.208.0.0/24")):
        ground = LabNetworks(4, (), (avoided,))
        ground.free_network("one")
        assert str(ground.networks["one"]) == free
    with pytest.raises(ConfigError, match="leave no addresses"):
        LabNetworks(4, ("0.0.0.0/0",)).free_network("one")


def test_a_small_machine_network_is_enough() -> None:
    ground = LabNetworks(4, ())
    ground.network_of("tiny", "192.168.0.8/29")
    assert [ground.next_address("tiny") for _ in range(2)] == ["192.168.0.10", "192.168.0.11"]


@pytest.mark.parametrize(
    ("blocks", "wide", "narrow", "out"),
    [
        (["0.0.0.0/0"], "203.0.113.77", "203.0.113.77", ""),
        (["10.1.0.0/16"], "10.1.0.10", "10.1.0.10", "203.0.113.77"),
        (["10.1.0.0/16", "192.0.2.5/32"], "10.1.0.10", "192.0.2.5", "203.0.113.77"),
        (["203.0.113.0/24"], "203.0.113.77", "203.0.113.10", "198.51.100.77"),
    ],
)
def test_addresses_in_blocks_and_outside(
    blocks: list[str], wide: str, narrow: str, out: str
) -> None:
    assert inside(blocks, 4, narrow=False) == wide
    assert inside(blocks, 4, narrow=True) == narrow
    assert outside(blocks, 4) == out


def test_blocks_of_another_ip_are_said() -> None:
    with pytest.raises(ConfigError, match="no block is IPv6"):
        inside(["10.0.0.0/8"], 6, narrow=True)


def test_node_ports_that_there_are_not_enough_of_are_said() -> None:
    ports: dict[ControlPlaneService, Any] = {
        each: published(each, NODE_PORT, node_port=0) for each in (API, OAUTH, TUNNEL, IGNITION)
    }
    plan = plan_of(Platform.AGENT, services=ports, node_port_range=(31000, 31002))
    with pytest.raises(ConfigError, match="31000-31002 has too few ports"):
        lab_topology(plan)


@pytest.mark.parametrize("cidr", ["169.254.0.0/16", "127.0.0.0/8", "240.0.0.0/8", "0.0.0.0/8"])
def test_networks_that_are_not_for_hosts_are_left_out(cidr: str) -> None:
    for said in ({"cluster_cidrs": (cidr,)}, {"machine_cidrs": (cidr,)}):
        found = topology(plan_of(**said))
        assert cidr not in {str(one) for each in found.networks for one in each.cidrs}


def test_a_lab_has_one_version_of_ip() -> None:
    entries: dict[ControlPlaneService, Any] = {
        each: published(
            each, NODE_PORT, node_address="2001:db8::5" if each is OAUTH else "10.9.9.9"
        )
        for each in (API, OAUTH, TUNNEL, IGNITION)
    }
    plan = plan_of(Platform.AGENT, services=entries)
    with pytest.raises(ConfigError, match="2001:db8::5 is not IPv4"):
        lab_topology(plan)
    with pytest.raises(ConfigError, match="2001:db8::7 is not IPv4"):
        lab_topology(plan_of(), nodes_from="2001:db8::7")


def test_every_service_inside_has_somebody_behind_it() -> None:
    """On Azure kube-apiserver has two, and the second has a port of its own."""
    plan = plan_of(Platform.AZURE, EndpointAccess.PUBLIC_AND_PRIVATE)
    inside = [each.port for each in plan.endpoints if each.by.startswith("Service/kube-apiserver")]
    assert set(inside) == {6443, 7443}
    document = yaml.safe_load(lab_topology(plan))
    assert set(document["hosts"]["kube-apiserver"]["serve"]["https"]) == {6443, 7443}


def test_an_address_is_of_one_host() -> None:
    entries: dict[ControlPlaneService, Any] = {
        each: published(each, NODE_PORT, node_address="10.9.9.9") for each in (OAUTH, TUNNEL)
    }
    plan = plan_of(Platform.NONE, services=entries)
    with pytest.raises(ConfigError, match=r"10\.9\.9\.9 .* two hosts"):
        lab_topology(plan, nodes_from="10.9.9.9")
