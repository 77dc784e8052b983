from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.errors import ConfigError
from isthmus.lab.plan import (
    PREFIX,
    Hop,
    Names,
    addresses_seen,
    host_routes,
    host_settings,
    hosts_file,
    ports_of,
    versions,
    wall_settings,
)
from isthmus.lab.topology import Attachment, LabHost, LabNetwork, LabRoute, LabService, Topology


def network(name: str, *cidrs: str, gateway: bool = True) -> LabNetwork:
    return LabNetwork(name=name, cidrs=tuple(map(ip_network, cidrs)), gateway=gateway)


def at(name: str, *addresses: str) -> Attachment:
    return Attachment(network=name, addresses=tuple(map(ip_address, addresses)))


TOPOLOGY = Topology(
    name="three",
    title="",
    networks=(
        network("front", "10.1.0.0/24", "fd01::/64"),
        network("inner", "10.2.0.0/24", gateway=False),
        network("back", "10.3.0.0/24"),
    ),
    hosts=(
        LabHost(
            name="router",
            attachments=(at("inner", "10.2.0.5"), at("back", "10.3.0.5"), at("front", "10.1.0.5")),
            also=(ip_address("10.99.0.1"),),
        ),
        LabHost(name="web", attachments=(at("front", "10.1.0.7", "fd01::7"),)),
        LabHost(name="inside", attachments=(at("inner", "10.2.0.9"),)),
    ),
    names=(("web.svc", ip_address("10.96.0.1")),),
)

names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-", min_size=1, max_size=40)


def test_names_begin_with_the_labs_prefix() -> None:
    lab = Names("a1b2c3")
    assert lab.prefix == f"{PREFIX}a1b2c3-" == "isthmus-lab-a1b2c3-"
    assert lab.wall == "isthmus-lab-a1b2c3-wall"
    assert lab.host("pod") == "isthmus-lab-a1b2c3-pod"
    assert lab.bridge("pods") == "pods"


def test_no_host_is_taken_for_the_wall() -> None:
    with pytest.raises(ValueError, match="wall"):
        Names("a1b2c3").host("wall")


@given(st.sets(st.tuples(names, names), min_size=2, max_size=40))
def test_ports_are_short_and_no_two_are_the_same(links: set[tuple[str, str]]) -> None:
    lab = Names("a1b2c3")
    ports = {lab.port(host, link) for host, link in links}
    assert len(ports) == len(links)
    assert all(re.fullmatch(r"[a-z0-9-]{1,15}", port) for port in ports)
    assert ports == {Names("ffffff").port(host, link) for host, link in links}


def test_a_host_and_a_network_cannot_be_mixed_up_in_a_port() -> None:
    assert Names("a").port("ab", "c") != Names("a").port("a", "bc")


def test_shared_networks_come_first_then_those_with_a_gateway() -> None:
    def seen(asking: str) -> list[str]:
        return [str(one) for one in addresses_seen(TOPOLOGY, asking, "router")]

    assert seen("web") == ["10.1.0.5", "10.3.0.5", "10.2.0.5", "10.99.0.1"]
    assert seen("inside") == ["10.2.0.5", "10.3.0.5", "10.1.0.5", "10.99.0.1"]
    assert seen("router") == ["10.2.0.5", "10.3.0.5", "10.1.0.5", "10.99.0.1"]


def test_a_hosts_file_has_every_host_and_the_names() -> None:
    assert hosts_file(TOPOLOGY, "web") == (
        "127.0.0.1 localhost\n"
        "::1 localhost ip6-localhost ip6-loopback\n"
        "10.1.0.5 router\n"
        "10.3.0.5 router\n"
        "10.2.0.5 router\n"
        "10.99.0.1 router\n"
        "10.1.0.7 web\n"
        "fd01::7 web\n"
        "10.2.0.9 inside\n"
        "10.96.0.1 web.svc\n"
    )


def test_versions_are_those_of_the_addresses() -> None:
    assert versions(TOPOLOGY) == (4, 6)
    only = replace(TOPOLOGY, networks=TOPOLOGY.networks[1:], hosts=TOPOLOGY.hosts[2:])
    assert versions(only) == (4,)


def test_the_default_route_goes_by_the_first_network_with_a_gateway() -> None:
    v4, v6 = ip_network("0.0.0.0/0"), ip_network("::/0")
    assert host_routes(TOPOLOGY, TOPOLOGY.host("router")) == [Hop(v4, ip_address("10.3.0.1"))]
    assert host_routes(TOPOLOGY, TOPOLOGY.host("web")) == [
        Hop(v4, ip_address("10.1.0.1")),
        Hop(v6, ip_address("fd01::1")),
    ]
    assert host_routes(TOPOLOGY, TOPOLOGY.host("inside")) == []


def test_a_route_goes_by_the_address_on_the_shared_network() -> None:
    route = LabRoute(to=ip_network("10.3.0.0/24"), via="router")
    inside = replace(TOPOLOGY.host("inside"), routes=(route,))
    assert host_routes(TOPOLOGY, inside) == [Hop(route.to, ip_address("10.2.0.5"))]


@pytest.mark.parametrize(
    ("host", "route", "said"),
    [
        ("inside", LabRoute(to=ip_network("10.3.0.0/24"), via="web"), "IPv4"),
        ("web", LabRoute(to=ip_network("fd09::/64"), via="router"), "IPv6"),
    ],
)
def test_a_route_by_somebody_out_of_reach_is_an_error(
    host: str, route: LabRoute, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"{host}: no route to {route.to} .*{said}"):
        host_routes(TOPOLOGY, replace(TOPOLOGY.host(host), routes=(route,)))


def test_a_service_has_a_way_out_where_there_is_no_gateway() -> None:
    service = LabService(address=ip_address("10.96.0.1"), port=80, to_host="router", to_port=8080)
    twice = (service, replace(service, port=443))
    inside = replace(TOPOLOGY.host("inside"), services=twice)
    assert host_routes(TOPOLOGY, inside) == [Hop(ip_network("10.96.0.1/32"), link="inner")]
    web = replace(TOPOLOGY.host("web"), services=twice)
    assert [hop.to.prefixlen for hop in host_routes(TOPOLOGY, web)] == [0, 0]


def test_who_forwards() -> None:
    route = LabRoute(to=ip_network("10.3.0.0/24"), via="router")
    service = LabService(address=ip_address("10.96.0.1"), port=80, to_host="router", to_port=8080)
    router, web, inside = TOPOLOGY.hosts
    topology = replace(
        TOPOLOGY,
        hosts=(router, replace(web, services=(service,)), replace(inside, routes=(route,))),
    )
    keys = ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding")
    for host, forwards in (("router", True), ("web", True), ("inside", False)):
        settings = host_settings(topology, topology.host(host))
        assert [settings.get(key) == "1" for key in keys] == [forwards] * 2, host
    assert [wall_settings(topology)[key] for key in keys] == ["1", "1"]


def test_a_hosts_own_settings_come_last() -> None:
    topology = replace(TOPOLOGY, congestion_control="bbr")
    key = "net.ipv4.tcp_congestion_control"
    web = topology.host("web")
    assert host_settings(topology, web)[key] == "bbr"
    assert host_settings(topology, replace(web, sysctls=((key, "reno"),)))[key] == "reno"
    assert key not in host_settings(TOPOLOGY, web)


def test_nothing_is_set_of_a_version_that_is_not_used() -> None:
    only = replace(TOPOLOGY, networks=TOPOLOGY.networks[1:], hosts=TOPOLOGY.hosts[2:])
    assert not [key for key in wall_settings(only) if "ipv6" in key]


def behind(bridge: str) -> Topology:
    """A host that is the router of two others, and is on a network of the wall."""
    pods = replace(
        network("pods", "10.8.0.0/24", "fd08::/64", gateway=False),
        behind="node", bridge=bridge, ports="veth",
    )  # fmt: skip
    more = replace(network("more", "10.9.0.0/24", gateway=False), behind="node", ports="veth")
    places = (at("front", "10.1.0.5"), at("pods", "10.8.0.1", "fd08::1"), at("more", "10.9.0.1"))
    return replace(
        TOPOLOGY,
        networks=(*TOPOLOGY.networks, pods, more),
        hosts=(
            LabHost(name="pod", attachments=(at("pods", "10.8.0.7", "fd08::7"),)),
            LabHost(name="node", attachments=places),
            LabHost(name="old", attachments=(at("pods", "10.8.0.8"), at("more", "10.9.0.8"))),
        ),
    )


def test_a_host_routes_for_the_networks_behind_it() -> None:
    topology = behind("cni0")
    assert host_settings(topology, topology.host("node"))["net.ipv4.ip_forward"] == "1"
    assert "net.ipv4.ip_forward" not in host_settings(topology, topology.host("pod"))
    assert [str(hop.via) for hop in host_routes(topology, topology.host("pod"))] == [
        "10.8.0.1",
        "fd08::1",
    ]
    assert [str(hop.via) for hop in host_routes(topology, topology.host("node"))] == ["10.1.0.1"]


def test_who_has_a_cable_to_the_router_knows_the_way_to_it() -> None:
    topology = behind("")
    hops = [
        (str(hop.to), str(hop.via), hop.link) for hop in host_routes(topology, topology.hosts[0])
    ]
    assert hops == [
        ("10.8.0.1/32", "None", "pods"),
        ("fd08::1/128", "None", "pods"),
        ("0.0.0.0/0", "10.8.0.1", ""),
        ("::/0", "fd08::1", ""),
    ]


def test_ports_of_a_router_are_numbered_through_all_its_networks() -> None:
    assert ports_of(behind("cni0"), "node") == {
        ("pod", "pods"): "veth1",
        ("old", "pods"): "veth2",
        ("old", "more"): "veth3",
    }
    assert ports_of(behind("cni0"), "pod") == {}
