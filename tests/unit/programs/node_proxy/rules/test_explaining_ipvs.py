"""What becomes of a packet with ipvs: the sets, the rules and the virtual servers of the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from explaining_cases import HERE, NODE, THERE, backed, packet, view_of
from hypothesis import given
from hypothesis import strategies as st

from isthmus.programs.node_proxy.rules.detectors import LocalTrafficDetector, SourceRanges
from isthmus.programs.node_proxy.rules.explaining import PacketExplanation, Reason, explain
from isthmus.programs.node_proxy.rules.explaining_flow import Flow, Origin, Packet, PacketVerdict
from isthmus.programs.node_proxy.rules.explaining_iptables import IpvsWalk, SetMembers
from isthmus.programs.node_proxy.rules.ipvs.plan import IpvsOptions, plan, rules
from isthmus.programs.node_proxy.rules.ipvs.sets import IP_PORT_NET
from isthmus.programs.node_proxy.rules.model import BackedPort, IpFamily, PortProtocol
from isthmus.programs.node_proxy.rules.settings import RuleSettings

POD, FAR_POD, OUTSIDE = "10.180.0.9", "10.180.1.3", "203.0.113.7"
LB, EXTERNAL = "198.51.100.9", "198.51.100.20"
PODS = SourceRanges(("10.180.0.0/24",))
BOTH = (HERE, THERE)
VIEW = view_of(
    backed("plain", "172.30.0.1", BOTH, node_port=30001),
    backed("local", "172.30.0.2", BOTH, node_port=30002, external_local=True,
           load_balancer_ips=(LB,), source_ranges=("203.0.113.0/24",),
           external_ips=(EXTERNAL,), health_check_node_port=31000),
    backed("empty", "172.30.0.3", ()),
    backed("sticky", "172.30.0.4", BOTH, affinity_s=60),
    backed("inner", "172.30.0.5", BOTH, internal_local=True),
)  # fmt: skip


def asked(
    source: str, destination: str, port: int = 80, *, detector: LocalTrafficDetector = PODS,
    ports: Sequence[BackedPort] = (), scheduler: str = "rr",
) -> PacketExplanation:  # fmt: skip
    view = view_of(*ports) if ports else VIEW
    settings = RuleSettings(family=IpFamily.IPV4, detector=detector, node_ip=NODE)
    made = plan(view, settings, IpvsOptions(scheduler=scheduler), [NODE])
    walk = IpvsWalk(made, rules(made, settings), settings)
    here = frozenset({NODE}) | walk.addresses
    origin = Origin.NODE if source in here else Origin.OUTSIDE
    origin = Origin.POD if source == POD or source in HERE else origin
    found = packet(source, destination, port, origin=origin)
    return explain(walk, replace(found, here=here), view)


@pytest.mark.parametrize(
    ("source", "destination", "port", "ends", "why"),
    [
        (POD, "172.30.0.1", 80, BOTH, Reason.POD),
        (OUTSIDE, "172.30.0.1", 80, BOTH, Reason.NOT_LOCAL),
        ("172.30.0.1", "172.30.0.1", 80, BOTH, Reason.NOT_LOCAL),  # as the node sends it
        (OUTSIDE, NODE, 30001, BOTH, Reason.EXTERNAL),
        (POD, NODE, 30001, BOTH, Reason.EXTERNAL),
        (OUTSIDE, NODE, 30002, (HERE,), Reason.KEPT),
        (OUTSIDE, LB, 80, (HERE,), Reason.KEPT),
        (OUTSIDE, EXTERNAL, 80, (HERE,), Reason.KEPT),
        (OUTSIDE, "172.30.0.5", 80, (HERE,), Reason.NOT_LOCAL),
    ],
)  # fmt: skip
def test_where_it_goes_and_why(
    source: str, destination: str, port: int, ends: Sequence[str], why: Reason
) -> None:
    found = asked(source, destination, port)
    assert found.verdict is PacketVerdict.TRANSLATED
    assert {each.endpoint for each in found.outcomes} == set(ends)
    assert {each.chance for each in found.outcomes} == {1 / len(ends)}
    masqueraded = why not in (Reason.POD, Reason.KEPT)
    for each in found.outcomes:
        assert (each.masqueraded, each.reasons) == (masqueraded, (why,))


def test_an_endpoint_that_is_balanced_to_itself_is_masqueraded() -> None:
    found = asked("10.180.0.2", "172.30.0.1")
    by_end = {each.endpoint: each for each in found.outcomes}
    assert (by_end[HERE].masqueraded, by_end[HERE].reasons) == (True, (Reason.HAIRPIN,))
    assert not by_end[THERE].masqueraded


@pytest.mark.parametrize(
    ("source", "destination", "port", "verdict"),
    [
        (OUTSIDE, "172.30.0.3", 80, PacketVerdict.REFUSED),  # a server without a destination
        (OUTSIDE, "172.30.0.1", 81, PacketVerdict.REFUSED),  # a port that it does not have
        ("192.0.2.77", LB, 80, PacketVerdict.DROPPED),  # in no source range
        (LB, LB, 80, PacketVerdict.DROPPED),  # the node itself neither
        (OUTSIDE, NODE, 22, PacketVerdict.UNTOUCHED),
        (OUTSIDE, "192.0.2.2", 80, PacketVerdict.UNTOUCHED),
        ("127.0.0.1", "127.0.0.1", 30001, PacketVerdict.UNTOUCHED),
    ],
)
def test_what_is_not_translated(
    source: str, destination: str, port: int, verdict: PacketVerdict
) -> None:
    assert asked(source, destination, port).verdict is verdict


def test_the_health_check_port_is_known_as_such() -> None:
    found = asked(OUTSIDE, NODE, 31000)
    assert found.verdict is PacketVerdict.UNTOUCHED
    assert (str(found.service), found.reached_by) == ("ns/local:p", "health check node port")
    assert found.outcomes[0].steps[-1].does.startswith("accept")


def test_what_chance_and_memory_decide_is_a_note() -> None:
    (note,) = asked(POD, "172.30.0.4").notes
    assert "60 s" in note
    (note,) = asked(POD, "172.30.0.1", scheduler="sh").notes
    assert "scheduler sh" in note


@pytest.mark.parametrize(
    ("detector", "why"),
    [
        (SourceRanges(("10.180.0.0/24", "10.181.0.0/24")), Reason.NOT_LOCAL),
        (SourceRanges(()), Reason.NODE),
    ],
)
def test_the_node_is_masqueraded_whatever_tells_local_traffic(
    detector: LocalTrafficDetector, why: Reason
) -> None:
    found = asked("172.30.0.1", "172.30.0.1", detector=detector)
    assert {(each.masqueraded, each.reasons) for each in found.outcomes} == {(True, (why,))}


@given(
    st.ip_addresses(v=4), st.integers(1, 65535), st.sampled_from(PortProtocol),
    st.lists(st.integers(0, 32), max_size=4),
)  # fmt: skip
def test_a_set_of_networks_has_who_is_in_one(
    source: object, port: int, protocol: PortProtocol, bits: list[int]
) -> None:
    entries = {f"{LB},{protocol.value}:{port},10.0.0.0/{each}" for each in bits}
    members = SetMembers(IP_PORT_NET, frozenset(entries))
    found = Packet(
        family=IpFamily.IPV4, source=str(source), destination=LB, port=port, protocol=protocol,
        origin=Origin.OUTSIDE,
    )  # fmt: skip
    first = int.from_bytes(source.packed)  # type: ignore[attr-defined]  # an address
    inside = any(first >> 32 - each == 10 << 24 >> 32 - each for each in bits)
    assert members.has(Flow(packet=found), "dst,dst,src") is inside
