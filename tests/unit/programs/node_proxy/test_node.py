"""What the node proxy knows of its node, and which rule settings follow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from isthmus.programs.node_proxy.node import HostFacts, OwnNode, find_detector
from isthmus.programs.node_proxy.rules.detectors import NOTHING_LOCAL, SourceRanges
from isthmus.programs.node_proxy.rules.model import IpFamily, NodeObject
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.settings.options import compose

V4, V6 = IpFamily.IPV4, IpFamily.IPV6
ADDRESSES = {V4: frozenset({"127.0.0.1", "10.0.0.1", "10.0.0.9"}), V6: frozenset({"::1"})}


class Bed:
    """A node, and how often it said that rules may have to be others."""

    def __init__(self, *, wait_s: float = 0.01, **given: Any) -> None:
        settings = compose(NodeProxySettings, **given)
        settings.validate()
        self.changes = 0
        self.node = OwnNode(
            settings, "node", find_detector(settings.detector_mode),
            HostFacts(addresses=dict(ADDRESSES)), self._changed, address_wait_s=wait_s,
        )  # fmt: skip

    def _changed(self) -> None:
        self.changes += 1


def node(*addresses: str, pod_cidrs: tuple[str, ...] = ()) -> NodeObject:
    return NodeObject(name="node", addresses=addresses, pod_cidrs=pod_cidrs)


def ready(bed: Bed, *heard: NodeObject) -> None:
    for each in heard:
        bed.node.heard(each)

    async def wait() -> None:
        async with asyncio.timeout(20):
            await bed.node.wait_ready([V4, V6])

    asyncio.run(wait())


def test_rules_follow_from_flags_and_node() -> None:
    bed = Bed(cluster_cidr=("10.1.0.0/16",), masquerade_all=True, iptables_masquerade_bit=3)
    ready(bed, node("10.0.0.1"))
    rules = bed.node.rules(V4)
    assert rules.detector == SourceRanges(("10.1.0.0/16",))
    assert (rules.node_ip, rules.masquerade_all, rules.masquerade_bit) == ("10.0.0.1", True, 3)
    assert rules.localhost_node_ports
    assert rules.node_port_addresses is None
    other = bed.node.rules(V6)
    assert other.detector is NOTHING_LOCAL
    assert not other.localhost_node_ports
    assert other.node_ip == "::1"


def test_without_an_address_it_goes_on_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    bed = Bed()
    ready(bed)
    assert bed.node.rules(V4).node_ip == "127.0.0.1"


def test_an_address_that_comes_later_is_followed() -> None:
    bed = Bed()
    ready(bed)
    bed.node.heard(node("10.0.0.1"))
    assert bed.changes == 1
    assert bed.node.rules(V4).node_ip == "10.0.0.1"
    bed.node.heard(node("10.0.0.1"))
    assert bed.changes == 1


def test_pod_ranges_are_waited_for_and_followed() -> None:
    bed = Bed(detect_local="node-cidr")
    bed.node.heard(node("10.0.0.1"))

    async def scenario() -> None:
        waiting = asyncio.create_task(bed.node.wait_ready([V4]))
        async with asyncio.timeout(20):
            # Long after the wait for an address is over.
            await asyncio.wait({waiting}, timeout=0.05)
            assert not waiting.done()
            bed.node.heard(node("10.0.0.1", pod_cidrs=("10.5.0.0/24",)))
            await waiting

    asyncio.run(scenario())
    assert bed.node.rules(V4).detector == SourceRanges(("10.5.0.0/24",))
    bed.node.heard(node("10.0.0.1", pod_cidrs=("10.6.0.0/24",)))
    assert bed.changes == 1
    assert bed.node.rules(V4).detector == SourceRanges(("10.6.0.0/24",))
    bed.node.heard(node("10.0.0.1"))  # none at all: what was there holds
    bed.node.heard(None)
    assert bed.changes == 1


def test_nftables_waits_a_while_for_the_ranges_of_cluster_ips() -> None:
    bed = Bed(proxy_mode="nftables", wait_s=20.0)
    bed.node.heard(node("10.0.0.1"))

    async def scenario() -> None:
        waiting = asyncio.create_task(bed.node.wait_ready([V4]))
        async with asyncio.timeout(20):
            await asyncio.wait({waiting}, timeout=0.05)
            assert not waiting.done()
            bed.node.heard_service_cidrs(("10.96.0.0/12",))
            await waiting

    asyncio.run(scenario())
    assert bed.node.rules(V4).service_cidrs == ("10.96.0.0/12",)


def test_an_api_without_ranges_of_cluster_ips_delays_nothing_for_long() -> None:
    bed = Bed(proxy_mode="nftables")
    ready(bed, node("10.0.0.1"))
    assert bed.node.rules(V4).service_cidrs == ()


def test_given_node_ranges_need_no_node() -> None:
    bed = Bed(detect_local="node-cidr", node_cidr=("10.5.0.0/24", "10.6.0.0/24"))
    ready(bed, node("10.0.0.1", pod_cidrs=("10.9.0.0/24",)))
    assert bed.node.rules(V4).detector == SourceRanges(("10.5.0.0/24", "10.6.0.0/24"))
    bed.node.heard(node("10.0.0.1", pod_cidrs=("10.8.0.0/24",)))
    assert bed.changes == 0


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ({"nodeport_addresses": ("10.0.0.0/8",)}, ("10.0.0.1", "10.0.0.9")),
        ({"nodeport_addresses": ("primary",)}, ("10.0.0.1",)),
        ({"proxy_mode": "nftables"}, ("10.0.0.1",)),
        ({"nodeport_addresses": ("127.0.0.0/8",)}, ("127.0.0.1",)),
        (
            {"nodeport_addresses": ("127.0.0.0/8",), "iptables_localhost_nodeports": False},
            (),
        ),
        ({"nodeport_addresses": ("127.0.0.0/8",), "proxy_mode": "nftables"}, ()),
        ({}, None),
    ],
)
def test_where_node_ports_are_taken(
    given: dict[str, Any], addresses: tuple[str, ...] | None
) -> None:
    bed = Bed(**given)
    ready(bed, node("10.0.0.1"))
    assert bed.node.rules(V4).node_port_addresses == addresses


def test_other_addresses_of_the_host_matter_only_within_the_ranges() -> None:
    bed = Bed(nodeport_addresses=("10.0.0.0/8",))
    ready(bed, node("10.0.0.1"))
    bed.node.heard_addresses({V4: ADDRESSES[V4] | {"192.168.0.1"}, V6: frozenset()})
    assert bed.changes == 0
    bed.node.heard_addresses({V4: ADDRESSES[V4] | {"10.0.0.10"}, V6: frozenset()})
    assert bed.changes == 1
    assert bed.node.rules(V4).node_port_addresses == ("10.0.0.1", "10.0.0.9", "10.0.0.10")


def test_service_ranges_are_handed_on() -> None:
    bed = Bed(proxy_mode="nftables")
    ready(bed, node("10.0.0.1"))
    bed.node.heard_service_cidrs(("10.96.0.0/12",))
    bed.node.heard_service_cidrs(("10.96.0.0/12",))
    assert bed.changes == 1
    assert bed.node.rules(V4).service_cidrs == ("10.96.0.0/12",)
