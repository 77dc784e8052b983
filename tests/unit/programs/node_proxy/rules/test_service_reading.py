"""Services and Nodes as the API has them, read: kube-proxy's TestServiceToServiceMap, and more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.model import (
    IpFamily,
    NodeObject,
    PortKey,
    PortProtocol,
    ServiceObject,
    ServicePort,
)
from isthmus.programs.node_proxy.rules.reading import (
    canonical_address,
    canonical_network,
    read_node,
    read_service,
    read_service_cidrs,
    service_key,
)
from isthmus.programs.node_proxy.rules.tracker import service_ports

V4, V6 = IpFamily.IPV4, IpFamily.IPV6
NAME = ServiceName("ns", "svc")
FOUR, SIX = "10.0.0.1", "2001:db8:85a3::8a2e:370:7334"
BALANCER = {"status": {"loadBalancer": {"ingress": [{"ip": "8.8.8.8"}, {"ip": "2001:db8::8"}]}}}


def obj(*ports: dict[str, Any], top: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    given = {"clusterIP": FOUR, "ports": list(ports or ({"name": "p", "port": 80},)), **spec}
    return {"metadata": {"namespace": "ns", "name": "svc"}, "spec": given, **(top or {})}


def read(given: dict[str, Any]) -> ServiceObject:
    notes: list[str] = []
    found = read_service(json.dumps(given).encode(), notes)
    assert found is not None
    assert notes == []
    assert read_service(given, []) == found  # a mapping gives the same
    return found


def one(given: dict[str, Any], family: IpFamily = V4) -> ServicePort:
    (port,) = service_ports(read(given), family)
    return port


NOT_OURS = {
    "headless": obj(clusterIP="None"),
    "without an address": obj(clusterIP=""),
    "without a spec": {"metadata": {"namespace": "ns", "name": "svc"}},
    "another name": obj(type="ExternalName", externalName="far.example.com"),
    "something else's": {
        **obj(),
        "metadata": {
            "namespace": "ns",
            "name": "svc",
            "labels": {"service.kubernetes.io/service-proxy-name": ""},
        },
    },
}


@pytest.mark.parametrize("given", NOT_OURS.values(), ids=NOT_OURS.keys())
def test_services_that_are_not_ours_have_no_ports(given: dict[str, Any]) -> None:
    assert read(given) == ServiceObject(name=NAME)
    assert service_ports(read(given), V4) == []


def test_every_port_is_one() -> None:
    found = service_ports(
        read(
            obj(
                {"name": "p1", "port": 1234, "protocol": "UDP"},
                {"name": "p2", "port": 1235, "protocol": "SCTP", "nodePort": 30001},
                {"port": 80, "protocol": None},
            )
        ),
        V4,
    )
    assert found == [
        ServicePort(key=PortKey(NAME, "p1", PortProtocol.UDP), cluster_ip=FOUR, port=1234),
        ServicePort(
            key=PortKey(NAME, "p2", PortProtocol.SCTP), cluster_ip=FOUR, port=1235, node_port=30001
        ),
        ServicePort(key=PortKey(NAME, "", PortProtocol.TCP), cluster_ip=FOUR, port=80),
    ]
    assert [str(each.key) for each in found] == ["ns/svc:p1", "ns/svc:p2", "ns/svc"]


@pytest.mark.parametrize(
    ("spec", "four", "six"),
    [
        ({"clusterIP": FOUR}, FOUR, ""),
        ({"clusterIP": SIX}, "", SIX),
        ({"clusterIP": "2001:db8:85a3:0:0:8a2e:370:7334"}, "", SIX),
        ({"clusterIPs": [FOUR], "ipFamilies": ["IPv4"]}, FOUR, ""),
        ({"clusterIPs": [FOUR, SIX], "ipFamilies": ["IPv4", "IPv6"]}, FOUR, SIX),
        ({"clusterIP": SIX, "clusterIPs": [SIX, FOUR], "ipFamilies": ["IPv6", "IPv4"]}, FOUR, SIX),
        ({"clusterIP": SIX, "clusterIPs": [SIX, FOUR], "ipFamilies": ["IPv6"]}, "", SIX),
        ({"clusterIPs": [FOUR, SIX]}, FOUR, SIX),
    ],
)
def test_each_family_has_its_address(spec: dict[str, Any], four: str, six: str) -> None:
    found = read(obj(**spec))
    assert found.cluster_ip(V4) == four
    assert found.cluster_ip(V6) == six
    assert bool(service_ports(found, V4)) == bool(four)
    assert bool(service_ports(found, V6)) == bool(six)


def test_addresses_and_ranges_are_those_of_the_family() -> None:
    given = obj(
        clusterIPs=[FOUR, SIX],
        externalIPs=["1.2.3.4", "2001:db8::4", "", "010.0.0.7"],
        loadBalancerSourceRanges=[" 10.1.2.9/28", "2001:db8::1/32 ", "0.0.0.0/1"],
        top=BALANCER,
    )
    four, six = one(given), one(given, V6)
    assert four.external_ips == ("1.2.3.4", "10.0.0.7")
    assert six.external_ips == ("2001:db8::4",)
    assert four.load_balancer_ips == ("8.8.8.8",)
    assert six.load_balancer_ips == ("2001:db8::8",)
    assert four.source_ranges == ("10.1.2.0/28", "0.0.0.0/1")
    assert six.source_ranges == ("2001:db8::/32",)


@pytest.mark.parametrize(
    ("ranges", "four", "six"),
    [
        (["0.0.0.0/0", "10.0.0.0/8"], (), ()),
        (["0.0.0.0/0", "fd00::/8"], (), ("fd00::/8",)),
        (["10.0.0.0/8", "::/0"], ("10.0.0.0/8",), ()),
        (["1.2.3.4/0"], (), ()),
    ],
)
def test_a_range_of_all_is_no_restriction(ranges: list[str], four: Any, six: Any) -> None:
    given = obj(clusterIPs=[FOUR, SIX], loadBalancerSourceRanges=ranges)
    assert one(given).source_ranges == four
    assert one(given, V6).source_ranges == six


@pytest.mark.parametrize(("mode", "taken"), [(None, True), ("VIP", True), ("Proxy", False)])
def test_only_load_balancers_that_keep_the_destination_count(mode: str | None, taken: bool) -> None:
    ingress = [{"ip": "8.8.8.8", "ipMode": mode}, {"hostname": "lb.example.com"}]
    given = obj(type="LoadBalancer", top={"status": {"loadBalancer": {"ingress": ingress}}})
    assert bool(one(given).load_balancer_ips) == taken


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({"sessionAffinity": "None"}, 0),
        ({"sessionAffinity": "ClientIP"}, 10800),
        (
            {
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}},
            },
            7,
        ),
        ({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}}}, 0),
    ],
)
def test_clients_are_remembered_for_a_time(spec: dict[str, Any], seconds: int) -> None:
    assert one(obj(**spec)).affinity_s == seconds


LOCAL = {"externalTrafficPolicy": "Local", "healthCheckNodePort": 345}


@pytest.mark.parametrize(
    ("spec", "local", "health"),
    [
        ({"type": "LoadBalancer", **LOCAL}, True, 345),
        ({"type": "NodePort", **LOCAL}, True, 0),
        ({"type": "ClusterIP", "externalIPs": ["1.2.3.4"], **LOCAL}, True, 0),
        ({"type": "ClusterIP", **LOCAL}, False, 0),
        ({**LOCAL}, False, 0),
        ({"type": "LoadBalancer", "healthCheckNodePort": 345}, False, 0),
        ({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}, True, 0),
    ],
)
def test_local_policy_is_for_what_comes_from_outside(
    spec: dict[str, Any], local: bool, health: int
) -> None:
    port = one(obj(**spec))
    assert port.external_local == local
    assert port.health_check_node_port == health


@pytest.mark.parametrize(("policy", "local"), [(None, False), ("Cluster", False), ("Local", True)])
def test_internal_policy(policy: str | None, local: bool) -> None:
    assert one(obj(internalTrafficPolicy=policy)).internal_local == local


def test_what_is_wrong_is_left_out_and_said() -> None:
    notes: list[str] = []
    given = obj(
        {"name": "p", "port": 0},
        {"name": "p", "port": 80, "protocol": "ICMP"},
        {"name": 'x" -j ACCEPT', "port": 80},
        {"name": "fine", "port": 80, "nodePort": 70000},
        externalIPs=["1.2.3.400", "nonsense"],
        loadBalancerSourceRanges=["10.0.0.0", "10.0.0.0/33", "10.0.0.0/255.0.0.0"],
    )
    found = read_service(given, notes)
    assert found is not None
    (port,) = service_ports(found, V4)
    assert port == ServicePort(
        key=PortKey(NAME, "fine", PortProtocol.TCP), cluster_ip=FOUR, port=80
    )
    assert notes[0] == "Service ns/svc: invalid external IP: '1.2.3.400'"
    assert len(notes) == 8


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"metadata": {"name": "a b", "namespace": "ns"}}',
        b'{"metadata": {"name": "svc"}}',
        b'{"metadata": {"name": "\xff"}}',
        b'{"metadata": {"name": "svc", "namespace": "ns"}, "spec": 5}',
        b'{"x": ' + b"[" * 100_000,
        {"metadata": {"name": 5}},
    ],
)
def test_no_service_is_none_and_said(given: Any) -> None:
    notes: list[str] = []
    assert read_service(given, notes) is None
    (note,) = notes
    assert note.startswith("Service")
    assert len(note) < 300


def test_notes_have_an_end() -> None:
    notes: list[str] = []
    assert read_service(obj(externalIPs=["x" * 1000] * 1000), notes) is not None
    assert len(notes) == 20
    assert max(map(len, notes)) < 300


def test_a_name_is_read_of_what_else_cannot_be() -> None:
    assert service_key(b'{"metadata": {"name": "svc", "namespace": "ns"}, "spec": 5}') == NAME
    assert service_key(b"{}") is None


def test_a_file_need_not_say_the_namespace() -> None:
    given = {"metadata": {"name": "svc"}, "spec": {"clusterIP": FOUR}}
    found = read_service(given, [], from_file=True)
    assert found is not None
    assert found.name == ServiceName("default", "svc")


def test_a_node_is_read() -> None:
    given = {
        "metadata": {
            "name": "node-1",
            "labels": {"topology.kubernetes.io/zone": "a"},
            "deletionTimestamp": "2024-01-01T00:00:00Z",
        },
        "spec": {
            "podCIDR": "10.1.0.0/24",
            "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"],
            "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}],
        },
        "status": {
            "addresses": [
                {"type": "ExternalIP", "address": "1.2.3.4"},
                {"type": "Hostname", "address": "node-1"},
                {"type": "InternalIP", "address": "192.168.0.1"},
                {"type": "InternalIP", "address": "fd00::1"},
            ]
        },
    }
    found = read_node(json.dumps(given).encode(), [])
    assert found == NodeObject(
        name="node-1",
        addresses=("192.168.0.1", "fd00::1", "1.2.3.4"),
        pod_cidrs=("10.1.0.0/24", "fd00:1::/64"),
        labels={"topology.kubernetes.io/zone": "a"},
        taints=("ToBeDeletedByClusterAutoscaler",),
        deleting=True,
    )
    assert found.addresses_of(V4) == ("192.168.0.1", "1.2.3.4")
    assert read_node({"metadata": {"name": "n"}}, []) == NodeObject(name="n")
    assert read_node({"metadata": {}}, []) is None


def test_service_cidrs_are_read() -> None:
    given = {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12", "x"]}}
    notes: list[str] = []
    assert read_service_cidrs(given, notes) == ("kubernetes", ("10.96.0.0/12",))
    assert notes == ["ServiceCIDR kubernetes: invalid network: 'x'"]
    assert read_service_cidrs(b"5", []) is None


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("010.000.0.01", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("fe80::1%eth0", ""),
        ("10.0.0", ""),
        ("10.0.0.256", ""),
        ("10.0.0.1.1", ""),
        ("10.0.0.-1", ""),
        ("10.0.0.٣", ""),
        (" 10.0.0.1", ""),
        ("", ""),
        (":", ""),
    ],
)
def test_addresses_are_written_in_one_way(text: str, canonical: str) -> None:
    assert canonical_address(text) == canonical


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("10.1.2.3/8", "10.0.0.0/8"),
        (" 10.0.0.0/8 ", "10.0.0.0/8"),
        ("010.0.0.0/8", "10.0.0.0/8"),
        ("FD00::1/8", "fd00::/8"),
        ("::/0", "::/0"),
        # As Go has them, an IPv4 network in both respects.
        ("::ffff:1.2.3.4/120", "1.2.3.0/24"),
        ("::ffff:0:0/96", "0.0.0.0/0"),
        ("::ffff:1.2.3.4/64", "::/64"),
        ("10.0.0.0/", ""),
        ("10.0.0.0/+8", ""),
        ("10.0.0.0/33", ""),
        ("/8", ""),
        ("fd00::/129", ""),
        ("fe80::1%eth0/64", ""),
    ],
)
def test_networks_are_written_in_one_way(text: str, canonical: str) -> None:
    assert canonical_network(text) == canonical


@pytest.mark.parametrize("given", [86401, 2**32, 10**20])
def test_clients_are_not_remembered_for_longer_than_the_api_allows(given: int) -> None:
    # The kernel would refuse it, and with it the rules of every Service.
    config = {"clientIP": {"timeoutSeconds": given}}
    notes: list[str] = []
    found = read_service(obj(sessionAffinity="ClientIP", sessionAffinityConfig=config), notes)
    assert found is not None and found.affinity_s == 86400
    assert [f" {given} s " in each and "86400 s" in each for each in notes] == [True]


def test_a_balancer_of_which_no_source_range_can_be_read_is_not_open_to_all() -> None:
    notes: list[str] = []
    given = obj(type="LoadBalancer", loadBalancerSourceRanges=["10.0.0.1", " "], top=BALANCER)
    found = read_service(given, notes)
    assert found is not None and found.load_balancer_ips == () and found.cluster_ips == (FOUR,)
    assert notes[0] == "Service ns/svc: invalid network: '10.0.0.1'"
    assert "load balancer IPs ignored" in notes[1] and len(notes) == 2
    some = read(obj(type="LoadBalancer", loadBalancerSourceRanges=[" "], top=BALANCER))
    assert some.load_balancer_ips == ("8.8.8.8", "2001:db8::8")
