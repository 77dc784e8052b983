"""Choosing a link: strategies in order, the less loaded of two, and who is left when all is bad."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from isthmus.dial.rules_agents import Agents
from isthmus.settings.identifiers import Identifiers
from isthmus.values import AgentId, HostPort


@dataclass(eq=False)
class Link:
    """What choosing knows of a link."""

    agent_id: AgentId
    identifiers: Identifiers = field(default_factory=Identifiers)
    can_open: bool = True
    takes_dials: bool = True
    weight: float = 0.0
    zone: str = ""


def link(name: str, query: str = "", **more: object) -> Link:
    return Link(AgentId(name), Identifiers.parse(query), **more)  # type: ignore[arg-type]


def agents(*links: Link, strategies: tuple[str, ...] = ("default",)) -> Agents[Link]:
    made: Agents[Link] = Agents(strategies, random.Random(1).randrange)
    for each in links:
        made.add(each)
    return made


ANY = HostPort("10.1.2.3", 443)


def chosen(from_: Agents[Link], target: HostPort = ANY, times: int = 60) -> set[str]:
    found = {from_.choose(target) for _ in range(times)}
    return {"" if each is None else each.agent_id for each in found}


def test_nobody_is_there() -> None:
    assert agents().choose(ANY) is None
    assert len(agents()) == 0


def test_everybody_gets_a_share() -> None:
    assert chosen(agents(link("a"), link("b"), link("c"))) == {"a", "b", "c"}


def test_the_less_loaded_of_two() -> None:
    both = agents(link("busy", weight=100), link("idle"))
    picks = [both.choose(ANY) for _ in range(400)]
    busy = sum(each is not None and each.agent_id == "busy" for each in picks)
    assert 50 < busy < 150  # only when both picks are the busy one: a quarter


def test_who_drains_or_is_stuck_is_not_chosen_while_another_can_be() -> None:
    bad, good = link("bad", takes_dials=False), link("good")
    both = agents(bad, good)
    assert chosen(both) == {"good"}
    both.remove(good)
    assert chosen(both) == {"bad"}
    bad.can_open = False
    assert chosen(both) == {""}


def test_who_failed_this_dial_is_not_asked_again() -> None:
    a, b = link("a"), link("b")
    both = agents(a, b)
    assert {both.choose(ANY, [a]) for _ in range(20)} == {b}
    assert both.choose(ANY, [a, b]) is None


def test_a_removed_link_is_forgotten_everywhere() -> None:
    gone = link("gone", "host=node1&ipv4=10.0.0.1&cidr=10.0.0.0/8&default-route=true")
    all_ = agents(gone, strategies=("destHost", "defaultRoute", "default"))
    assert all_.ready_by_strategy() == {"destHost": 1, "defaultRoute": 1, "default": 1}
    all_.remove(gone)
    all_.remove(gone)  # twice is no mistake
    for host in ("node1", "10.0.0.1", "10.9.9.9", "elsewhere"):
        assert all_.choose(HostPort(host, 1)) is None
    assert all_.ready_by_strategy() == {"destHost": 0, "defaultRoute": 0, "default": 0}
    assert list(all_) == []


@pytest.mark.parametrize(
    ("host", "who"),
    [
        ("node1", "named"),
        ("NODE1.", "named"),
        ("10.0.0.1", "exact"),
        ("10.0.5.5", "narrow"),
        ("10.200.0.1", "wide"),
        ("192.0.2.1", "any"),
        ("node2", "any"),
    ],
)
def test_the_agent_that_names_the_target(host: str, who: str) -> None:
    all_ = agents(
        link("any"),
        link("named", "host=node1"),
        link("exact", "ipv4=10.0.0.1"),
        link("narrow", "cidr=10.0.0.0/16"),
        link("wide", "cidr=10.0.0.0/8"),
        strategies=("destHost", "default"),
    )
    found = chosen(all_, HostPort(host, 80))
    assert who in found if who == "any" else found == {who}


def test_strategies_are_tried_in_order_and_only_those_given() -> None:
    route = link("route", "default-route=true")
    named = link("named", "host=node1")
    both = agents(named, route, strategies=("destHost", "defaultRoute"))
    assert chosen(both, HostPort("node1", 1)) == {"named"}
    assert chosen(both, HostPort("other", 1)) == {"route"}
    both.remove(route)
    assert chosen(both, HostPort("other", 1)) == {""}
    assert both.ready_by_strategy() == {"destHost": 1, "defaultRoute": 0}


def test_two_links_of_one_agent_are_one_agent() -> None:
    assert agents(link("a"), link("a")).ready_by_strategy() == {"default": 1}


def test_agents_that_cannot_be_asked_are_not_ready() -> None:
    query = "host=node1&default-route=true&cidr=10.0.0.0/8"
    both = agents(
        link("draining", query, can_open=False, takes_dials=False),
        link("stuck", query, takes_dials=False),
        strategies=("destHost", "defaultRoute", "default"),
    )
    assert both.ready_by_strategy() == {"destHost": 1, "defaultRoute": 1, "default": 1}
    both.remove(next(each for each in both if each.agent_id == "stuck"))
    assert both.ready_by_strategy() == {"destHost": 0, "defaultRoute": 0, "default": 0}
