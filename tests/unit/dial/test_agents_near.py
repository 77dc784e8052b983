"""Choosing a near agent: node, zone, own zone, anybody, and never so that one melts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.dial.rules_agents import Agents
from isthmus.net.rules_near import (
    NEAR_MORE,
    NEAR_TIMES,
    CidrTable,
    LinkPool,
    Nearness,
    host_of,
    is_worth_it,
)
from isthmus.settings.identifiers import Identifiers
from isthmus.values import AgentId, HostPort

POD = HostPort("10.1.7.5", 443)


@dataclass(eq=False)
class Link:
    """What choosing knows of a link."""

    agent_id: AgentId
    identifiers: Identifiers = field(default_factory=Identifiers)
    zone: str = ""
    can_open: bool = True
    takes_dials: bool = True
    weight: float = 0.0


def link(name: str, query: str = "", zone: str = "", **more: object) -> Link:
    return Link(AgentId(name), Identifiers.parse(query), zone, **more)  # type: ignore[arg-type]


def agents(
    links: Sequence[Link],
    *,
    zone: str = "",
    cidrs: dict[str, str] | None = None,
    strategies: tuple[str, ...] = ("default",),
    near: bool = True,
) -> Agents[Link]:
    nearness = Nearness.of(zone, cidrs or {}) if near else None
    made: Agents[Link] = Agents(strategies, random.Random(1).randrange, nearness)
    for each in links:
        made.add(each)
    return made


def chosen(from_: Agents[Link], target: HostPort = POD, times: int = 80) -> set[str]:
    found = {from_.choose(target) for _ in range(times)}
    return {"" if each is None else each.agent_id for each in found}


def fleet() -> list[Link]:
    return [
        link("node", "ipv4=10.0.0.7&cidr=10.1.7.0/24", "a"),
        link("same", "ipv4=10.0.0.8&cidr=10.1.8.0/24", "a"),
        link("home", "ipv4=10.0.0.9&cidr=10.1.9.0/24", "b"),
        link("far", "ipv4=10.0.0.10&cidr=10.1.10.0/24", "c"),
    ]


# The order of preference.


def test_node_then_zone_then_own_zone_then_anybody() -> None:
    links = fleet()
    all_ = agents(links, zone="b", cidrs={"10.1.0.0/21": "a"})
    for expected, gone in (("node", 0), ("same", 1), ("home", 2), ("far", 3)):
        assert chosen(all_) == {expected}
        links[gone].takes_dials = False
    assert chosen(all_) == {"node", "same", "home", "far"}  # all drain: any that can be opened


@pytest.mark.parametrize("host", ["10.0.0.7", "::ffff:10.0.0.7", "10.1.7.200"])
def test_the_agent_that_stands_for_the_address(host: str) -> None:
    assert chosen(agents(fleet()), HostPort(host, 1)) == {"node"}


def test_the_zone_of_a_destination_is_that_of_the_agents_that_stand_for_it() -> None:
    links = fleet()
    links[0].takes_dials = False  # it still says where the node is
    assert chosen(agents(links)) == {"same"}


def test_what_flags_say_of_a_zone_wins() -> None:
    links = fleet()
    links[0].takes_dials = False
    assert chosen(agents(links, cidrs={"10.1.7.0/24": "c"})) == {"far"}


def test_a_zone_that_nobody_knows_or_nobody_is_in_means_the_own_one() -> None:
    elsewhere = HostPort("192.0.2.1", 1)
    assert chosen(agents(fleet(), zone="b"), elsewhere) == {"home"}
    assert chosen(agents(fleet(), zone="b", cidrs={"192.0.2.0/24": "z"}), elsewhere) == {"home"}
    everybody = {"node", "same", "home", "far"}
    assert chosen(agents(fleet(), zone="z"), elsewhere) == everybody
    assert chosen(agents(fleet()), elsewhere) == everybody


def test_two_zones_that_claim_one_network_tell_nothing() -> None:
    links = [link("a", "cidr=10.1.0.0/16", "a"), link("b", "cidr=10.1.0.0/16", "b"), link("c")]
    assert chosen(agents(links)) == {"a", "b"}
    for each in links[:2]:
        each.takes_dials = False
    assert chosen(agents(links)) == {"c"}


def test_it_can_be_switched_off() -> None:
    assert chosen(agents(fleet(), zone="b", near=False)) == {"node", "same", "home", "far"}


def test_within_the_default_route_only_those_that_offer_it() -> None:
    links = [
        link("node", "cidr=10.1.7.0/24", "a"),
        link("route-a", "default-route=true", "a"),
        link("route-b", "default-route=true", "b"),
    ]
    all_ = agents(links, strategies=("defaultRoute",))
    assert chosen(all_) == {"route-a"}
    all_.add(link("route-node", "default-route=true&cidr=10.1.7.0/24", "a"))
    assert chosen(all_) == {"route-node"}


def test_within_those_that_name_the_host_the_one_of_the_own_zone() -> None:
    links = [link("a", "host=db", "a"), link("b", "host=db", "b"), link("c", "", "b")]
    all_ = agents(links, zone="b", strategies=("destHost",))
    assert chosen(all_, HostPort("DB.", 1)) == {"b"}


def test_a_stuck_agent_that_names_the_host_waits_for_one_that_does_not() -> None:
    links = [link("stuck", "ipv4=10.1.7.5", takes_dials=False), link("any")]
    all_ = agents(links, strategies=("destHost", "default"))
    assert chosen(all_) == {"any"}
    all_.remove(links[1])
    assert chosen(all_) == {"stuck"}


# What one of them has to do.


def test_a_near_agent_gets_more_but_does_not_melt() -> None:
    links = [link("near", "cidr=10.1.0.0/16"), *(link(f"far{i}") for i in range(9))]
    all_ = agents(links)
    for _ in range(5000):
        found = all_.choose(POD)
        assert found is not None
        found.weight += 1
    far = [each.weight for each in links[1:]]
    assert NEAR_MORE < links[0].weight <= NEAR_MORE + NEAR_TIMES * max(far) + 1
    assert min(far) > 300


@given(near=st.floats(0, 1e6), other=st.floats(0, 1e6), more=st.floats(0, 1e6))
def test_more_load_here_or_less_there_never_makes_it_worth_it(
    near: float, other: float, more: float
) -> None:
    assert is_worth_it(near, near)
    if not is_worth_it(near, other):
        assert not is_worth_it(near + more, other)
        assert near > other
    if is_worth_it(near, other):
        assert is_worth_it(near, other + more)


# Whatever there is.

QUERIES = (
    "", "ipv4=10.1.7.5", "cidr=10.1.7.0/24", "cidr=10.1.0.0/16", "default-route=true",
    "cidr=10.0.0.0/8&default-route=true", "host=node1",
)  # fmt: skip
LINKS = st.lists(
    st.builds(
        lambda query, zone, state, weight: link(
            "x", query, zone, can_open=state > 0, takes_dials=state > 1, weight=weight
        ),
        st.sampled_from(QUERIES),
        st.sampled_from(["", "a", "b", "c"]),
        st.sampled_from([0, 1, 2, 2]),
        st.sampled_from([0.0, 1.0, 100.0, 1000.0]),
    ),
    max_size=24,
)
STRATEGIES = st.lists(
    st.sampled_from(["default", "destHost", "defaultRoute"]), min_size=1, max_size=3, unique=True
)
HOSTS = st.sampled_from(["10.1.7.5", "10.1.7.6", "10.2.0.1", "192.0.2.1", "node1", "node2"])


def allowed_by(strategy: str, links: Sequence[Link], host: str) -> list[Link]:
    """Who may be chosen, by looking at everybody: the narrowest claim counts."""
    if strategy == "default":
        return list(links)
    if strategy == "defaultRoute":
        return [it for it in links if it.identifiers.default_route]
    exact = [it for it in links if host in (*it.identifiers.ipv4, *it.identifiers.host)]
    if exact or not host[0].isdigit():
        return exact
    for cidr in ("10.1.7.0/24", "10.1.0.0/16", "10.0.0.0/8"):
        found = [it for it in links if cidr in it.identifiers.cidr]
        if found and ip_address(host) in ip_network(cidr):
            return found
    return []


@given(
    links=LINKS, strategies=STRATEGIES, host=HOSTS, near=st.booleans(), seed=st.integers(0, 99),
    tried=st.sets(st.integers(0, 23), max_size=3),
)  # fmt: skip
def test_one_that_can_serve_is_found_whenever_there_is_one(
    links: list[Link], strategies: list[str], host: str, near: bool, seed: int, tried: set[int]
) -> None:
    nearness = Nearness.of("b", {"192.0.2.0/24": "c"}) if near else None
    all_: Agents[Link] = Agents(strategies, random.Random(seed).randrange, nearness)
    for each in links:
        all_.add(each)
    failed = [each for at, each in enumerate(links) if at in tried]
    left = [
        [it for it in allowed_by(strategy, links, host) if it not in failed]
        for strategy in strategies
    ]
    found = all_.choose(HostPort(host, 1), failed)
    first = next((some for some in left if any(it.takes_dials for it in some)), None)
    if first is not None:
        assert found in first and found.takes_dials
    elif any(it.can_open for some in left for it in some):
        assert found is not None and found.can_open and any(found in some for some in left)
    else:
        assert found is None


@given(links=LINKS, host=HOSTS, seed=st.integers(0, 99))
def test_nobody_further_is_chosen_while_a_nearer_one_has_little_to_do(
    links: list[Link], host: str, seed: int
) -> None:
    for each in links:
        each.weight = min(each.weight, NEAR_MORE)  # worth it for every one of them
    all_: Agents[Link] = Agents(["default"], random.Random(seed).randrange, Nearness.of("b", {}))
    for each in links:
        all_.add(each)
    naming = allowed_by("destHost", links, host)
    zones = {it.zone for it in naming if it.zone}
    there = zones.pop() if len(zones) == 1 else None
    tiers = [
        naming,
        [it for it in links if it.zone == there],
        [it for it in links if it.zone == "b"],
        links,
    ]
    nearest = next((tier for tier in tiers if any(it.takes_dials for it in tier)), None)
    found = all_.choose(HostPort(host, 1))
    if nearest is not None:
        assert found in nearest


# The indexes.


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_a_pool_is_a_set_with_its_zones(steps: list[tuple[bool, int]]) -> None:
    links = [link(str(number), zone="ab"[number % 2]) for number in range(10)]
    pool: LinkPool[Link] = LinkPool()
    kept: set[Link] = set()
    for add, number in steps:
        each = links[number]
        (pool.add if add else pool.remove)(each, each.zone)
        (kept.add if add else kept.discard)(each)
        assert set(pool.members) == kept and len(pool) == len(kept)
        assert {zone: set(part.members) for zone, part in pool.by_zone.items()} == {
            zone: {it for it in kept if it.zone == zone} for zone in {it.zone for it in kept}
        }


def test_the_narrowest_network_of_either_version() -> None:
    table: CidrTable[str] = CidrTable()
    for cidr in ("10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0", "2001:db8::/32", "10.1.2.3/32"):
        table.put(cidr, cidr)
    for host, found in (
        ("10.1.2.3", "10.1.2.3/32"), ("10.1.2.4", "10.1.0.0/16"), ("10.2.0.1", "10.0.0.0/8"),
        ("192.0.2.1", "0.0.0.0/0"), ("2001:db8::1", "2001:db8::/32"), ("::1", None),
        ("::ffff:10.1.2.4", "10.1.0.0/16"), ("name.example", None),
    ):  # fmt: skip
        assert table.narrowest(host_of(host)) == found
    for cidr in list(table.values()):
        table.drop(cidr)
    assert not table and table.narrowest(host_of("10.1.2.3")) is None


def test_a_thousand_agents_leave_nothing_behind() -> None:
    links = [
        link(str(i), f"host=n{i}&cidr=10.{i // 256}.{i % 256}.0/24", f"z{i % 3}")
        for i in range(1000)
    ]
    all_ = agents(links)
    for i in (0, 400, 999):
        assert chosen(all_, HostPort(f"10.{i // 256}.{i % 256}.9", 1), 5) == {str(i)}
        assert all_.stand_for(f"n{i}")
    for each in links:
        all_.remove(each)
    assert len(all_) == 0 and all_.choose(POD) is None and not all_.stand_for("n5")
    assert all_.ready_by_strategy() == {"default": 0}
