"""The address of an agent, in real namespaces: put and taken away, and who reaches it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from host_bed import (
    DROPPED,
    INTERFACE,
    REACHED,
    SERVICE_PORT,
    SERVICES,
    V4,
    V6,
    Address,
    Bed,
    made,
    only_firewall,
)

from isthmus.errors import ConfigError
from isthmus.net.host_links import ALIAS

FAMILIES = pytest.mark.parametrize("address", [V4, V6], ids=["v4", "v6"])
FIREWALLS = pytest.mark.parametrize("firewall", ["nft", "iptables"], indirect=True)
NO_SUCH_KIND = "isthmus-none"
OURS_ALONE = {"host": REACHED, "pod": REACHED, "neighbour": DROPPED}
EVERYBODY = dict.fromkeys(OURS_ALONE, REACHED)


@pytest.fixture
def bed() -> Iterator[Bed]:
    with made() as one:
        yield one


@pytest.fixture
def firewall(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Only these programs are there for whoever puts an address."""
    only_firewall(request.param, tmp_path, monkeypatch)
    name: str = request.param
    return name


@FIREWALLS
@FAMILIES
def test_it_is_put_and_taken_away(bed: Bed, address: Address, firewall: str) -> None:
    before = bed.state()
    here = bed.put(address)
    assert here.where == INTERFACE
    assert here.uplinks == ("uplink",)
    (link,) = json.loads(bed.ip(bed.node, "-j", "-d", "addr", "show", "dev", INTERFACE))
    (made,) = [one for one in link["addr_info"] if one["local"] == str(address)]
    assert made["prefixlen"] == address.max_prefixlen
    assert made["noprefixroute"] is True
    assert made["scope"] == ("host" if address.version == 4 else "global")
    assert link["ifalias"] == ALIAS
    assert "UP" in link["flags"]
    assert bed.rules()
    assert bed.on_node(here.refresh) == []
    bed.on_node(here.take_away)
    bed.on_node(here.take_away)
    assert bed.state() == before


@FAMILIES
def test_without_that_kind_of_interface_it_is_on_lo(bed: Bed, address: Address) -> None:
    before = bed.state()
    here = bed.put(address, kind=NO_SUCH_KIND)
    assert here.where == "lo"
    (said,) = bed.on_node(here.refresh)
    assert said == f"this kernel has no {NO_SUCH_KIND} interfaces: using lo for {address}"
    assert bed.on_node(here.refresh) == []
    assert str(address) in bed.ip(bed.node, "addr", "show", "dev", "lo")
    with bed.listens(address):
        assert bed.everybody(address) == OURS_ALONE
    bed.on_node(here.take_away)
    assert bed.state() == before


def test_it_can_be_on_lo_from_the_first(bed: Bed) -> None:
    here = bed.put(V4, interface="lo")
    assert here.where == "lo"
    assert "lo:isthmus" in bed.ip(bed.node, "addr", "show", "dev", "lo")
    bed.on_node(here.take_away)
    assert "lo:isthmus" not in bed.ip(bed.node, "addr", "show", "dev", "lo")
    assert "LOOPBACK,UP" in bed.ip(bed.node, "link", "show", "dev", "lo")


@FIREWALLS
@FAMILIES
def test_only_its_own_host_reaches_it(bed: Bed, address: Address, firewall: str) -> None:
    # Without the rule a neighbour that routes it here gets through, host scope or not.
    open_to_all = bed.put(address, uplinks=("none",))
    with bed.listens(address):
        assert bed.everybody(address) == EVERYBODY
    assert bed.rules() == []
    bed.on_node(open_to_all.take_away)
    here = bed.put(address)
    with bed.listens(address):
        assert bed.everybody(address) == OURS_ALONE
    bed.on_node(here.take_away)


@FIREWALLS
@FAMILIES
def test_so_it_is_behind_a_service_address(bed: Bed, address: Address, firewall: str) -> None:
    bed.translate(address)
    service = SERVICES[address.version]
    here = bed.put(address)
    with bed.listens(address):
        assert bed.everybody(service, SERVICE_PORT) == OURS_ALONE
    bed.on_node(here.take_away)
    here = bed.put(address, uplinks=("none",))
    with bed.listens(address):
        assert bed.everybody(service, SERVICE_PORT) == EVERYBODY


def test_the_rest_of_the_node_is_left_alone(bed: Bed) -> None:
    bed.put(V4)
    node = ip_address("10.60.0.1")
    with bed.listens(node):
        assert bed.reach(bed.neighbour, node) == REACHED


def test_uplinks_are_exactly_those_named(bed: Bed) -> None:
    bed.put(V4, uplinks=("cni0", "not-there-yet"))
    with bed.listens(V4):
        assert bed.everybody(V4) == {"host": REACHED, "pod": DROPPED, "neighbour": REACHED}


@FAMILIES
def test_an_accepted_connection_tells_its_uplink(bed: Bed, address: Address) -> None:
    here = bed.put(address)
    bed.node_runs("nft", "flush", "ruleset")
    with bed.listens(address) as listener:
        for source, uplink in ((bed.node, ""), (bed.pod, ""), (bed.neighbour, "uplink")):
            assert bed.reach(source, address) == REACHED
            connection, _ = listener.accept()
            with connection:
                assert here.uplink_of(connection) == uplink


def test_a_subnet_that_it_lies_in_is_told(bed: Bed) -> None:
    here = bed.put(ip_address("10.50.0.77"))
    (said,) = bed.on_node(here.refresh)
    assert "is in the subnet 10.50.0.1/24 of cni0" in said


def test_a_host_without_an_uplink_is_told(bed: Bed) -> None:
    bed.ip(bed.node, "link", "del", "uplink")
    here = bed.put(V4)
    assert bed.on_node(here.refresh) == ["this host has no uplink yet: no packets are dropped"]


@pytest.mark.parametrize("firewall", ["neither"], indirect=True)
def test_without_a_firewall_it_does_not_start(bed: Bed, firewall: str) -> None:
    before = bed.state()
    with pytest.raises(ConfigError, match=r"neither nft nor iptables .* --uplink-interface=none"):
        bed.put(V4)
    assert bed.state() == before
    here = bed.put(V4, uplinks=("none",))
    assert bed.on_node(here.refresh) == []


def test_an_interface_that_is_not_ours_is_left_alone(bed: Bed) -> None:
    bed.ip(bed.node, "link", "add", INTERFACE, "type", "bridge")
    before = bed.state()
    with pytest.raises(ConfigError, match=f"--bind-interface {INTERFACE} already exists"):
        bed.put(V4)
    assert bed.state() == before


@pytest.mark.parametrize(
    ("text", "interface"),
    [("10.60.0.1", "uplink"), ("fd60::1", "uplink"), ("10.50.0.1", "cni0")],
)
@pytest.mark.parametrize("named", [False, True])
def test_an_address_of_somebody_else_is_left_alone(
    bed: Bed, text: str, interface: str, named: bool
) -> None:
    before = bed.state()
    with pytest.raises(
        ConfigError, match=rf"--bind-address {text} is already an address of {interface}"
    ):
        bed.put(ip_address(text), interface=interface if named else INTERFACE)
    assert bed.state() == before


@pytest.mark.parametrize("uplinks", [(), ("cni0",)])
@pytest.mark.parametrize("text", ["10.61.0.1", "fd61::1"])
def test_a_nodes_own_address_is_never_cut_off(
    bed: Bed, text: str, uplinks: tuple[str, ...]
) -> None:
    # As clouds give them: alone, without a subnet.
    bed.ip(bed.node, "addr", "add", text, "dev", "uplink")
    with pytest.raises(ConfigError, match="choose an unused one"):
        bed.put(ip_address(text), interface="uplink", uplinks=uplinks)


@FAMILIES
def test_an_address_of_our_shape_is_used_and_left_there(bed: Bed, address: Address) -> None:
    how = ("scope", "host") if address.version == 4 else ("nodad",)
    bed.ip(bed.node, "link", "add", "own", "type", "bridge")
    bed.ip(bed.node, "link", "set", "own", "up")
    bed.ip(bed.node, "addr", "add", f"{address}", "dev", "own", *how)
    before = bed.state()
    here = bed.put(address, interface="own")
    with bed.listens(address):
        assert bed.everybody(address) == OURS_ALONE
    bed.on_node(here.take_away)
    assert bed.state() == before


def test_both_families_share_an_interface(bed: Bed) -> None:
    before = bed.state()
    four, six = bed.put(V4), bed.put(V6)
    bed.on_node(four.take_away)
    assert str(V6) in bed.ip(bed.node, "addr", "show", "dev", INTERFACE)
    bed.on_node(six.take_away)
    assert bed.state() == before


def test_ipv6_that_is_turned_off_is_a_sentence(bed: Bed) -> None:
    bed.node_runs("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")
    before = bed.state()
    with pytest.raises(ConfigError, match=f"IPv6 is turned off on {INTERFACE}"):
        bed.put(V6)
    assert bed.state() == before
