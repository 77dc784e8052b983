from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from isthmus.errors import ConfigError
from isthmus.lab.plan import IPTABLES, NFT, service_rules, wall_rules
from isthmus.lab.topology import Allow, Attachment, LabHost, LabNetwork, LabService, Topology, Wall


def host(name: str, network: str, *addresses: str) -> LabHost:
    places = (Attachment(network=network, addresses=tuple(map(ip_address, addresses))),)
    return LabHost(name=name, attachments=places)


TOPOLOGY = Topology(
    name="two",
    title="",
    networks=(
        LabNetwork(name="east", cidrs=(ip_network("10.1.0.0/24"), ip_network("fd01::/64"))),
        LabNetwork(name="west", cidrs=(ip_network("10.2.0.0/24"), ip_network("fd02::/64"))),
    ),
    hosts=(
        replace(host("one", "east", "10.1.0.7", "fd01::7"), also=(ip_address("10.9.0.9"),)),
        host("two", "west", "10.2.0.7", "fd02::7"),
        host("four", "west", "10.2.0.4"),
    ),
    allows=(
        Allow(source="west", target="one", ports=(80, 443)),
        Allow(source="four", target="east"),
    ),
)
SERVICES = (
    LabService(address=ip_address("10.96.0.1"), port=80, to_host="two", to_port=8080),
    LabService(address=ip_address("fd96::1"), port=81, to_host="two", to_port=8081),
)


def test_the_wall_by_nft() -> None:
    (load,) = wall_rules(TOPOLOGY, NFT)
    assert load.argv == ("nft", "-f", "-")
    assert load.rules == (
        "table inet isthmus {\n"
        "  chain forward {\n"
        "    type filter hook forward priority 0; policy drop;\n"
        "    ct state established,related accept\n"
        "    ip saddr { 10.2.0.0/24 } ip daddr { 10.1.0.7, 10.9.0.9 }"
        " tcp dport { 80, 443 } accept\n"
        "    ip6 saddr { fd02::/64 } ip6 daddr { fd01::7 } tcp dport { 80, 443 } accept\n"
        "    ip saddr { 10.2.0.4 } ip daddr { 10.1.0.0/24 } accept\n"
        "    counter reject with icmpx type admin-prohibited\n"
        "  }\n"
        "  chain input {\n"
        "    type filter hook input priority 0; policy drop;\n"
        "    ct state established,related accept\n"
        "    meta l4proto { icmp, ipv6-icmp } accept\n"
        "    counter reject with icmpx type admin-prohibited\n"
        "  }\n"
        "}\n"
    )


def test_the_wall_by_iptables() -> None:
    v4, v6 = wall_rules(TOPOLOGY, IPTABLES)
    assert (v4.argv[0], v6.argv[0]) == ("iptables-restore", "ip6tables-restore")
    known = "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT\n"
    head = (
        f"*filter\n:INPUT DROP [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n-A FORWARD {known}"
    )
    assert v4.rules == (
        f"{head}"
        "-A FORWARD -s 10.2.0.0/24 -d 10.1.0.7 -p tcp -m tcp --dport 80 -j ACCEPT\n"
        "-A FORWARD -s 10.2.0.0/24 -d 10.1.0.7 -p tcp -m tcp --dport 443 -j ACCEPT\n"
        "-A FORWARD -s 10.2.0.0/24 -d 10.9.0.9 -p tcp -m tcp --dport 80 -j ACCEPT\n"
        "-A FORWARD -s 10.2.0.0/24 -d 10.9.0.9 -p tcp -m tcp --dport 443 -j ACCEPT\n"
        "-A FORWARD -s 10.2.0.4 -d 10.1.0.0/24 -j ACCEPT\n"
        f"-A INPUT {known}"
        "-A INPUT -p icmp -j ACCEPT\n"
        "-A FORWARD -j REJECT --reject-with icmp-admin-prohibited\n"
        "-A INPUT -j REJECT --reject-with icmp-admin-prohibited\n"
        "COMMIT\n"
    )
    assert v6.rules == (
        f"{head}"
        "-A FORWARD -s fd02::/64 -d fd01::7 -p tcp -m tcp --dport 80 -j ACCEPT\n"
        "-A FORWARD -s fd02::/64 -d fd01::7 -p tcp -m tcp --dport 443 -j ACCEPT\n"
        f"-A INPUT {known}"
        "-A INPUT -p ipv6-icmp -j ACCEPT\n"
        "-A FORWARD -j REJECT --reject-with icmp6-adm-prohibited\n"
        "-A INPUT -j REJECT --reject-with icmp6-adm-prohibited\n"
        "COMMIT\n"
    )


@pytest.mark.parametrize("firewall", [NFT, IPTABLES])
def test_a_wall_that_drops_says_nothing(firewall: str) -> None:
    for load in wall_rules(replace(TOPOLOGY, wall=Wall.DROP), firewall):
        assert "reject" not in load.rules.lower()
        assert load.rules.lower().replace("counter drop", "").count("drop") == 2


def test_a_topology_without_ipv6_has_no_rules_for_it() -> None:
    v4 = tuple(replace(one, cidrs=one.cidrs[:1]) for one in TOPOLOGY.networks)
    only = replace(TOPOLOGY, networks=v4, hosts=TOPOLOGY.hosts[2:], allows=())
    assert [load.argv[0] for load in wall_rules(only, IPTABLES)] == ["iptables-restore"]


def test_services_by_nft() -> None:
    one = replace(TOPOLOGY.host("one"), services=SERVICES)
    (load,) = service_rules(TOPOLOGY, one, NFT)
    translated = (
        "    ip daddr 10.96.0.1 tcp dport 80 dnat ip to 10.2.0.7:8080\n"
        "    ip6 daddr fd96::1 tcp dport 81 dnat ip6 to [fd02::7]:8081\n"
    )
    assert load.rules == (
        "table inet isthmus {\n"
        "  chain prerouting {\n"
        f"    type nat hook prerouting priority -100; policy accept;\n{translated}"
        "  }\n"
        "  chain output {\n"
        f"    type nat hook output priority -100; policy accept;\n{translated}"
        "  }\n"
        "  chain postrouting {\n"
        "    type nat hook postrouting priority 100; policy accept;\n"
        '    oifname != "lo" ct status dnat masquerade\n'
        "  }\n"
        "}\n"
    )


def test_services_by_iptables() -> None:
    one = replace(TOPOLOGY.host("one"), services=SERVICES)
    v4, v6 = service_rules(TOPOLOGY, one, IPTABLES)
    chains = "".join(
        f":{chain} ACCEPT [0:0]\n" for chain in ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING")
    )
    back = "-A POSTROUTING ! -o lo -m conntrack --ctstate DNAT -j MASQUERADE\nCOMMIT\n"
    to = "-d 10.96.0.1 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.2.0.7:8080\n"
    assert v4.rules == f"*nat\n{chains}-A PREROUTING {to}-A OUTPUT {to}{back}"
    to = "-d fd96::1 -p tcp -m tcp --dport 81 -j DNAT --to-destination [fd02::7]:8081\n"
    assert v6.rules == f"*nat\n{chains}-A PREROUTING {to}-A OUTPUT {to}{back}"


@pytest.mark.parametrize("firewall", [NFT, IPTABLES])
def test_a_host_without_services_has_no_rules(firewall: str) -> None:
    assert service_rules(TOPOLOGY, TOPOLOGY.host("one"), firewall) == []


def test_a_service_may_lead_to_an_address() -> None:
    service = replace(SERVICES[0], to_host="", to_address=ip_address("10.99.0.1"))
    (load,) = service_rules(TOPOLOGY, replace(TOPOLOGY.host("one"), services=(service,)), NFT)
    assert "ip daddr 10.96.0.1 tcp dport 80 dnat ip to 10.99.0.1:8080\n" in load.rules


def test_a_service_needs_an_address_of_its_family() -> None:
    wrong = replace(SERVICES[1], to_host="four")
    with pytest.raises(ConfigError, match=r"one: service fd96::1: four has no IPv6 address"):
        service_rules(TOPOLOGY, replace(TOPOLOGY.host("one"), services=(wrong,)), NFT)


@pytest.mark.parametrize("firewall", [NFT, IPTABLES])
def test_no_text_of_the_topology_gets_into_rules(firewall: str) -> None:
    evil = "accept; } table inet x {"
    hosts = (replace(TOPOLOGY.host("one"), name=evil, services=SERVICES), *TOPOLOGY.hosts[1:])
    topology = replace(
        TOPOLOGY, name=evil, title=evil, hosts=hosts, allows=(Allow(source=evil, target="two"),)
    )
    loads = wall_rules(topology, firewall) + service_rules(topology, hosts[0], firewall)
    assert loads
    assert not any("x {" in load.rules for load in loads)
