"""Networks: where an address belongs, where a name does, and whom an agent may serve."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import ip_network

import pytest

from isthmus.dial.rules_connectivity import NetworkConnection, NetworkProtocol
from isthmus.dial.settings_networks import AgentsByNetwork, ClusterNetwork, Networks, Nowhere
from isthmus.settings.identifiers import Identifiers
from isthmus.values import AgentId, HostPort


def network(name: str, *cidrs: str, via: NetworkConnection | None = None) -> ClusterNetwork:
    return ClusterNetwork(name=name, cidrs=tuple(map(ip_network, cidrs)), via=via)


EAST = network("east", "10.1.0.0/16", "192.0.2.7/32", "fd00:1::/48")
WEST = network("west", "10.2.0.0/16", "fd00:2::/48")
BOTH = Networks([EAST, WEST])
ALONE = Networks([EAST])


def nobody(host: str) -> Collection[str]:
    return ()


def where(
    networks: Networks, host: str, asked: str = "", claims: Collection[str] = ()
) -> ClusterNetwork | str:
    found = networks.route(HostPort(host, 443), asked, lambda _: claims)
    return found.why if isinstance(found, Nowhere) else found


# Addresses.


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("10.1.0.0", EAST),
        ("10.1.255.255", EAST),
        ("192.0.2.7", EAST),
        ("10.2.3.4", WEST),
        ("fd00:1::1", EAST),
        ("FD00:0002:0::1", WEST),
        ("::ffff:10.1.2.3", EAST),  # the kernel connects to 10.1.2.3
        ("::ffff:a02:304", WEST),
    ],
)
def test_an_address_is_in_its_network(host: str, expected: ClusterNetwork) -> None:
    assert where(BOTH, host) is expected
    assert expected.holds(host)


@pytest.mark.parametrize(
    "host", ["10.3.0.0", "192.0.2.8", "127.0.0.1", "0.0.0.0", "::1", "fd00:3::1", "::10.1.2.3"]
)
def test_an_address_outside_of_every_network(host: str) -> None:
    assert where(BOTH, host) == (
        f"{host} is in none of the networks east (10.1.0.0/16, 192.0.2.7/32, fd00:1::/48),"
        " west (10.2.0.0/16, fd00:2::/48)"
    )


def test_everything_can_be_one_network() -> None:
    whole = network("all", "0.0.0.0/0", "::/0")
    for host in ("1.2.3.4", "::1", "::ffff:1.2.3.4"):
        assert where(Networks([whole]), host) is whole
    # What is written as IPv6 is looked for as what it is.
    assert "none of the networks" in str(
        where(Networks([network("six", "::/0")]), "::ffff:1.2.3.4")
    )


def test_the_client_may_say_what_the_address_says() -> None:
    assert where(BOTH, "10.1.2.3", asked="east") is EAST
    assert where(BOTH, "10.1.2.3", asked="EAST") is EAST
    why = where(BOTH, "10.1.2.3", asked="west")
    assert isinstance(why, str)
    assert why.startswith("10.1.2.3 is in network east (")
    assert "and the client asked for west (10.2.0.0/16" in why
    assert "none of the networks" in str(where(BOTH, "10.9.9.9", asked="east"))


def test_a_name_of_the_clients_own_says_nothing() -> None:
    # NetworkContext's names are those of the client's configuration: cluster, controlplane.
    assert where(BOTH, "10.1.2.3", asked="cluster") is EAST
    assert where(BOTH, "10.2.2.3", asked="cluster") is WEST
    assert "none of the networks" in str(where(BOTH, "10.9.9.9", asked="cluster"))
    assert where(ALONE, "db.example", asked="cluster") is EAST
    assert "and the client said 'cluster' and not in which of the networks east, west" in str(
        where(BOTH, "db.example", asked="cluster")
    )


def test_only_a_few_networks_are_shown() -> None:
    many = Networks(network(f"n{i}", f"10.{i}.0.0/16") for i in range(100))
    assert str(where(many, "11.0.0.1")).endswith("n7 (10.7.0.0/16) and 92 more")


# Overlaps.


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("10.1.0.0/16",), ("10.1.2.0/24",)),
        (("10.1.2.0/24",), ("10.0.0.0/8",)),
        (("10.1.0.0/16",), ("10.1.0.0/16",)),
        (("192.0.2.0/24", "fd00::/8"), ("10.0.0.0/8", "fd00:1::/48")),
        (("0.0.0.0/0",), ("10.0.0.0/8",)),
    ],
)
def test_an_overlap_names_both(first: tuple[str, ...], second: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="overlap") as caught:
        Networks([network("a", *first), network("b", *second)])
    text = str(caught.value)
    assert f"{second[-1]} of network b" in text
    assert f"{first[-1]} of network a" in text


def test_a_network_does_not_overlap_itself() -> None:
    with pytest.raises(
        ValueError, match=r"10\.1\.0\.0/16 of network a and 10\.0\.0\.0/8 of network a"
    ):
        Networks([network("a", "10.0.0.0/8", "10.1.0.0/16")])


def test_names_are_there_once() -> None:
    with pytest.raises(ValueError, match="network a is defined twice"):
        Networks([network("a", "10.0.0.0/8"), network("a", "11.0.0.0/8")])


def test_ipv4_is_not_listed_as_ipv6() -> None:
    with pytest.raises(ValueError, match=r"list it as 10\.0\.0\.0/8"):
        Networks([network("a", "::ffff:10.0.0.0/104")])


# Names.


def test_a_name_goes_to_the_only_network() -> None:
    assert where(ALONE, "db.example") is EAST
    assert where(ALONE, "db.example", asked="east") is EAST


def test_a_name_follows_the_agents_that_stand_for_it() -> None:
    assert where(BOTH, "db.example", claims=["west"]) is WEST
    why = str(where(BOTH, "db.example", claims=["west", "east"]))
    assert why == "agents of several networks stand for db.example: east, west"


def test_a_name_that_nobody_stands_for() -> None:
    why = str(where(BOTH, "db.example"))
    assert why.startswith("db.example is a name, no agent stands for it (host=db.example)")
    assert "east, west" in why


def test_a_client_says_where_a_name_is() -> None:
    assert where(BOTH, "db.example", asked="west", claims=["east"]) is WEST


# Agents.


@dataclass(eq=False)
class Link:
    agent_id: AgentId
    network: str = ""
    identifiers: Identifiers = field(default_factory=Identifiers)
    can_open: bool = True
    takes_dials: bool = True
    weight: float = 0.0
    zone: str = ""


def link(name: str, network: str = "", query: str = "") -> Link:
    return Link(AgentId(name), network, Identifiers.parse(query))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("cidr=10.1.0.0/16", EAST),
        ("cidr=10.2.3.0/24", WEST),
        ("ipv4=10.1.2.3", EAST),
        ("ipv6=fd00:2::5", WEST),
        ("host=10.1.2.3", EAST),
        ("ipv6=::ffff:10.2.3.4", WEST),
        ("cidr=::ffff:10.2.3.0/120", WEST),
        ("ipv4=10.1.2.3&ipv4=172.16.0.1", EAST),  # what is in no network matters to none
    ],
)
def test_an_agents_addresses_say_where_it_is(query: str, expected: ClusterNetwork) -> None:
    assert BOTH.network_of_agent("", Identifiers.parse(query)) is expected


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("", "names no network"),
        ("host=db.east", "names no network"),
        ("default-route=true", "names no network"),
        ("ipv4=172.16.0.1", "names no network"),
        ("ipv4=10.1.2.3&ipv4=10.2.3.4", "several networks: east, west"),
        ("cidr=10.0.0.0/8", "several networks: east, west"),
        ("cidr=10.1.2.0/24&cidr=fd00::/16", "several networks: east, west"),
        ("cidr=192.0.2.0/24", "names no network"),  # wider than the part of it that is east's
    ],
)
def test_an_agent_whose_network_is_not_clear_gets_none(query: str, why: str) -> None:
    found = BOTH.network_of_agent("", Identifiers.parse(query))
    assert isinstance(found, Nowhere)
    assert why in found.why
    assert "--agent-network" in found.why


def test_what_an_agent_names_counts_and_not_its_addresses() -> None:
    assert BOTH.network_of_agent("West", Identifiers.parse("cidr=10.1.0.0/16")) is WEST
    found = BOTH.network_of_agent("north", Identifiers.parse("cidr=10.1.0.0/16"))
    assert isinstance(found, Nowhere)
    assert "no network 'north'" in found.why


def test_with_one_network_an_agent_need_not_say_it() -> None:
    assert ALONE.network_of_agent("", Identifiers()) is EAST
    assert ALONE.network_of_agent("", Identifiers.parse("ipv4=10.2.0.1")) is EAST
    assert isinstance(ALONE.network_of_agent("west", Identifiers()), Nowhere)


class Field:
    def __init__(self, *networks: ClusterNetwork) -> None:
        self.strays: list[tuple[str, str]] = []
        self.agents: AgentsByNetwork[Link] = AgentsByNetwork(
            ("destHost", "default"),
            lambda n: 0,
            networks=Networks(networks),
            strayed=lambda link, why: self.strays.append((link.agent_id, why)),
        )

    def chosen(self, network: str, host: str = "10.1.2.3") -> str:
        found = self.agents.within(network).choose(HostPort(host, 1))
        return "" if found is None else found.agent_id


def test_agents_are_chosen_within_their_network_only() -> None:
    field = Field(EAST, WEST)
    east, west = link("e", "east"), link("w", query="cidr=10.2.0.0/16&host=db.example")
    field.agents.add(east)
    assert (field.chosen("east"), field.chosen("west")) == ("e", "")
    field.agents.add(west)
    assert (field.chosen("east"), field.chosen("west")) == ("e", "w")
    assert field.agents.standing_for("DB.example.") == ["west"]
    assert field.agents.standing_for("other.example") == []
    assert field.agents.ready_by_strategy() == {"destHost": 1, "default": 2}
    assert len(field.agents) == 2
    # As a whole it would have to cross.
    assert field.agents.choose(HostPort("10.1.2.3", 1)) is None
    field.agents.remove(east)
    assert (field.chosen("east"), field.chosen("west")) == ("", "w")
    field.agents.remove(west)
    assert field.agents.standing_for("db.example") == []
    assert field.agents.ready_by_strategy() == {"destHost": 0, "default": 0}
    assert field.strays == []


def test_a_stray_is_known_and_never_chosen() -> None:
    field = Field(
        EAST, network("near", "10.9.0.0/16", via=NetworkConnection(protocol=NetworkProtocol.DIRECT))
    )
    for one in (link("lost", "north"), link("dumb"), link("idle", "near")):
        field.agents.add(one)
    assert [agent for agent, _ in field.strays] == ["lost", "dumb", "idle"]
    assert field.strays[2][1] == "network near is not reached through agents"
    assert field.chosen("east") == field.chosen("near") == ""
    assert len(field.agents) == 3
    assert field.agents.ready_by_strategy() == {"destHost": 0, "default": 0}
