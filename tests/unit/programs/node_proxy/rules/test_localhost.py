"""Node ports on localhost: the endpoints of the rules, and clients that stay with theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from explaining_cases import HERE, NODE, THERE, backed, endpoint, packet, rules_of, view_of

from isthmus.programs.node_proxy.rules.explaining import explain
from isthmus.programs.node_proxy.rules.explaining_flow import Origin, PacketVerdict
from isthmus.programs.node_proxy.rules.localhost import (
    MOST_TRIES,
    Affinity,
    LocalhostPort,
    localhost_ports,
)
from isthmus.programs.node_proxy.rules.model import Endpoint, PortProtocol
from isthmus.programs.node_proxy.rules.settings import RuleSettings
from isthmus.values import HostPort

AT = HostPort("127.0.0.1", 30080)
LEAVING = endpoint("10.180.0.9:80", ready=False, terminating=True)
FAR_LEAVING = endpoint("10.180.1.9:80", ready=False, terminating=True)


@pytest.mark.parametrize("external_local", [False, True])
@pytest.mark.parametrize("internal_local", [False, True])
@pytest.mark.parametrize(
    "ends",
    [(), (HERE,), (THERE,), (HERE, THERE), (LEAVING,), (LEAVING, THERE), (LEAVING, FAR_LEAVING)],
    ids=str,
)
def test_endpoints_are_those_of_the_rules_for_the_node(
    ends: Sequence[str | Endpoint], internal_local: bool, external_local: bool
) -> None:
    policies: dict[str, Any] = {"internal_local": internal_local, "external_local": external_local}
    view = view_of(backed("a", "172.30.0.1", ends, node_port=AT.port, **policies))
    settings = RuleSettings(family=view.family, node_ip=NODE)
    for backend in ("nftables", "iptables"):
        found = explain(
            rules_of(backend, view, settings),
            packet(NODE, NODE, AT.port, origin=Origin.NODE, interface=""),
            view,
        )
        by_rules = {
            each.endpoint for each in found.outcomes if each.verdict is PacketVerdict.TRANSLATED
        }
        port = localhost_ports(view).get(AT)
        assert set(map(str, port.endpoints if port else ())) == by_rules


def test_only_tcp_ports_with_endpoints_that_are_elsewhere_than_on_loopback() -> None:
    here = endpoint("127.0.0.1:30080", local=True)
    any_address = endpoint("0.0.0.0:10249")  # to dial it is to dial the node itself
    ends = [here, any_address, endpoint("10.180.1.3:80")]
    view = view_of(
        backed("a", "172.30.0.1", ends, node_port=30080),
        backed("b", "172.30.0.2", ends[:2], node_port=30081),
        backed("c", "172.30.0.3", node_port=30082, protocol=PortProtocol.UDP),
        backed("d", "172.30.0.4"),
    )
    (only,) = localhost_ports(view).values()
    assert (only.at, only.endpoints) == (AT, (HostPort("10.180.1.3", 80),))


def port(*hosts: str, affinity_s: int = 0) -> LocalhostPort:
    ends = [f"{each}:80" for each in hosts]
    view = view_of(backed("a", "172.30.0.1", ends, node_port=AT.port, affinity_s=affinity_s))
    return localhost_ports(view)[AT]


def test_every_endpoint_may_be_first_and_a_few_others_are_tried() -> None:
    five = port(*(f"10.180.1.{each}" for each in range(5)))
    orders = [Affinity(lambda _, i=i: i).order(five, "127.0.0.1", now=0) for i in range(5)]
    assert [each[0] for each in orders] == list(five.endpoints)
    assert all(len(set(each)) == MOST_TRIES for each in orders)


def test_a_client_stays_until_it_was_away_too_long_or_its_endpoint_is_gone() -> None:
    choices = iter([1, 0, 0])
    affinity = Affinity(lambda _: next(choices))
    both = port("10.180.1.1", "10.180.1.2", affinity_s=10)
    one, two = both.endpoints
    assert affinity.order(both, "127.0.0.1", now=0) == [two]
    assert affinity.order(both, "127.0.0.1", now=9) == [two]
    assert affinity.order(both, "127.0.0.1", now=18) == [two]  # each connection renews it
    assert affinity.order(both, "127.0.0.1", now=28) == [one]
    less = port("10.180.1.2", affinity_s=10)
    assert affinity.order(less, "127.0.0.1", now=29) == [two]
    affinity.forget({})
    assert len(affinity) == 0


def test_clients_that_change_their_address_are_forgotten_oldest_first() -> None:
    affinity = Affinity(lambda _: 0, most=3)
    sticky = port("10.180.1.1", affinity_s=600)
    for last in range(100):
        affinity.order(sticky, f"127.0.0.{last}", now=float(last))
    assert len(affinity) == 3
