"""What becomes of a packet by our rules: refusals, source ranges, chances, IPv6, node ports.

The flows are those of kube-proxy's own TestLoadBalancer, TestNodePorts and TestNoEndpointsReject.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from explaining_cases import (
    BACKENDS,
    HERE,
    NODE,
    THERE,
    backed,
    endpoint,
    packet,
    rules_of,
    view_of,
)

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy.rules.detectors import LocalMatch, SourceRanges
from isthmus.programs.node_proxy.rules.explaining import (
    ExplainedNode,
    PacketExplanation,
    PacketTarget,
    Reason,
    explain,
    merged,
    packet_to,
    taken_for_local,
)
from isthmus.programs.node_proxy.rules.explaining_flow import Origin, Packet, PacketVerdict, walk
from isthmus.programs.node_proxy.rules.explaining_iptables import parse_rule
from isthmus.programs.node_proxy.rules.explaining_nftables import RuleReader
from isthmus.programs.node_proxy.rules.model import IpFamily, PortProtocol, ServiceView
from isthmus.programs.node_proxy.rules.settings import RuleSettings

PODS = SourceRanges(("10.180.0.0/16", "fd00:10::/32"))
OUTSIDE = "203.0.113.7"
LB = "198.51.100.9"


def asked(backend: str, view: ServiceView, found: Packet, **rest: Any) -> PacketExplanation:
    settings = RuleSettings(**{"family": view.family, "detector": PODS, "node_ip": NODE, **rest})
    return explain(rules_of(backend, view, settings), found, view)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("affinity_s", [0, 10])
def test_every_endpoint_has_the_same_chance(backend: str, count: int, affinity_s: int) -> None:
    ends = [f"10.180.1.{each}:80" for each in range(count)]
    view = view_of(backed("a", "172.30.0.1", ends, affinity_s=affinity_s))
    found = asked(backend, view, packet(OUTSIDE, "172.30.0.1"))
    assert {each.endpoint for each in found.outcomes} == set(ends)
    assert all(each.chance == pytest.approx(1 / count) for each in found.outcomes)
    assert bool(found.notes) == bool(affinity_s)
    assert str(found.service) == "ns/a:p"
    assert found.reached_by == "cluster IP"


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_endpoints_it_is_refused(backend: str) -> None:
    view = view_of(
        backed("a", "172.30.0.1", [], node_port=30001, external_ips=("198.51.100.1",),
               load_balancer_ips=(LB,)),
    )  # fmt: skip
    for address, port in (("172.30.0.1", 80), (NODE, 30001), ("198.51.100.1", 80), (LB, 80)):
        found = asked(backend, view, packet(OUTSIDE, address, port))
        assert found.verdict is PacketVerdict.REFUSED, address
    own = packet(NODE, NODE, 30001, origin=Origin.NODE, interface="")
    assert asked(backend, view, own).verdict is PacketVerdict.REFUSED


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_endpoints_elsewhere_only_it_is_dropped(backend: str) -> None:
    view = view_of(
        backed("in", "172.30.0.1", [THERE], internal_local=True),
        backed("out", "172.30.0.2", [THERE], external_local=True, node_port=30002),
    )
    assert asked(backend, view, packet(OUTSIDE, "172.30.0.1")).verdict is PacketVerdict.DROPPED
    assert asked(backend, view, packet(OUTSIDE, NODE, 30002)).verdict is PacketVerdict.DROPPED
    pod = packet("10.180.0.4", NODE, 30002, origin=Origin.POD)
    assert asked(backend, view, pod).outcomes[0].endpoint == THERE


@pytest.mark.parametrize("backend", BACKENDS)
def test_source_ranges(backend: str) -> None:
    ranges = ("203.0.113.0/25", "192.0.2.0/24")
    view = view_of(
        backed("a", "172.30.0.1", load_balancer_ips=(LB,), source_ranges=ranges, node_port=30001),
    )

    def verdict(source: str, address: str = LB, port: int = 80, **rest: Any) -> PacketVerdict:
        return asked(backend, view, packet(source, address, port, **rest)).verdict

    assert verdict(OUTSIDE) is PacketVerdict.TRANSLATED
    assert verdict("203.0.113.200") is PacketVerdict.DROPPED
    # A node port is not the balancer's to restrict, and pods are outsiders to it.
    assert verdict("203.0.113.200", NODE, 30001) is PacketVerdict.TRANSLATED
    assert verdict("10.180.0.4", origin=Origin.POD) is PacketVerdict.DROPPED
    # The node may have the balancer's address itself.
    assert verdict(LB, origin=Origin.NODE, interface="") is PacketVerdict.TRANSLATED


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_protocol_is_another_port(backend: str) -> None:
    view = view_of(
        backed("tcp", "172.30.0.1", [HERE]),
        backed("udp", "172.30.0.1", [THERE], protocol=PortProtocol.UDP),
    )
    for protocol, where in ((PortProtocol.TCP, HERE), (PortProtocol.UDP, THERE)):
        found = asked(backend, view, packet(OUTSIDE, "172.30.0.1", protocol=protocol))
        assert [each.endpoint for each in found.outcomes] == [where]
    other = asked(backend, view, packet(OUTSIDE, "172.30.0.1", protocol=PortProtocol.SCTP))
    assert other.service is None
    # nftables refuses ports that a cluster IP does not have.
    refused = PacketVerdict.REFUSED if backend == "nftables" else PacketVerdict.UNTOUCHED
    assert other.verdict is refused


@pytest.mark.parametrize("backend", BACKENDS)
def test_ipv6(backend: str) -> None:
    there = "[fd00:10:1::3]:80"
    view = view_of(backed("a", "fd00:96::1", [there], node_port=30001), family=IpFamily.IPV6)
    for address, port, reason in (
        ("fd00:96::1", 80, Reason.NOT_LOCAL),
        ("2001:db8::1", 30001, Reason.EXTERNAL),
    ):
        found = asked(backend, view, packet("2001:db8:9::1", address, port), node_ip="2001:db8::1")
        (only,) = found.outcomes
        assert (only.endpoint, only.masqueraded, only.reasons) == (there, True, (reason,))
    pod = packet("fd00:10::7", "fd00:96::1", origin=Origin.POD)
    assert not asked(backend, view, pod).outcomes[0].masqueraded


@pytest.mark.parametrize(("localhost", "source"), [(True, "127.0.0.1"), (False, "127.0.0.1")])
def test_node_ports_on_localhost(localhost: bool, source: str) -> None:
    view = view_of(backed("a", "172.30.0.1", node_port=30001))
    own = packet(source, "127.0.0.1", 30001, origin=Origin.NODE, interface="")
    found = asked("iptables", view, own, localhost_node_ports=localhost)
    assert found.verdict is (PacketVerdict.TRANSLATED if localhost else PacketVerdict.UNTOUCHED)
    assert asked("nftables", view, own).verdict is PacketVerdict.UNTOUCHED


def test_neighbours_do_not_reach_localhost() -> None:
    found = asked("iptables", view_of(), packet(OUTSIDE, "127.0.0.1", 22))
    assert found.verdict is PacketVerdict.DROPPED
    assert found.outcomes[0].steps[-1].chain == "KUBE-FIREWALL"


@pytest.mark.parametrize("backend", BACKENDS)
def test_node_ports_at_some_addresses_only(backend: str) -> None:
    view = view_of(backed("a", "172.30.0.1", node_port=30001))
    here = frozenset({NODE, "192.0.2.2"})
    for address, verdict in (
        (NODE, PacketVerdict.TRANSLATED),
        ("192.0.2.2", PacketVerdict.UNTOUCHED),
    ):
        found = asked(
            backend, view, packet(OUTSIDE, address, 30001, here=here), node_port_addresses=(NODE,)
        )
        assert found.verdict is verdict


def test_nftables_drops_what_no_service_has() -> None:
    cidrs = ("172.30.0.0/16", "fd00:96::/112")
    found = asked("nftables", view_of(), packet(OUTSIDE, "172.30.9.9"), service_cidrs=cidrs)
    assert found.verdict is PacketVerdict.DROPPED


def test_the_health_check_port_passes() -> None:
    view = view_of(backed("a", "172.30.0.1", external_local=True, health_check_node_port=31000))
    found = asked("iptables", view, packet(OUTSIDE, NODE, 31000))
    assert found.verdict is PacketVerdict.UNTOUCHED
    assert (str(found.service), found.reached_by) == ("ns/a:p", "health check node port")
    assert found.outcomes[0].steps[-1].does.startswith("accept")


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_are_the_rules_in_their_order(backend: str) -> None:
    view = view_of(backed("a", "172.30.0.1"))
    found = asked(backend, view, packet(OUTSIDE, "172.30.0.1"))
    first, second = (each.steps for each in found.outcomes)
    assert first[: found.shared_steps] == second[: found.shared_steps]
    assert first[found.shared_steps] != second[found.shared_steps]
    sent = [number for number, step in enumerate(first) if step.does.startswith("DNAT to")]
    marked = [number for number, step in enumerate(first) if step.marks]
    assert marked < sent
    assert "source" in first[-1].does


def test_merged_outcomes_have_no_steps() -> None:
    view = view_of(backed("a", "172.30.0.1"))
    found = merged(asked("iptables", view, packet(OUTSIDE, "172.30.0.1")))
    assert {each.endpoint for each in found} == {HERE, THERE}
    assert {each.steps for each in found} == {()}


@dataclass(frozen=True)
class ByDscp:
    """A detector of another package, with a match that nobody here knows."""

    bridge_ports: None = None

    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        return (
            LocalMatch(
                iptables=("-m", "dscp", "--dscp", "10"),
                iptables_not=("-m", "dscp", "!", "--dscp", "10"),
                nft="ip dscp 10",
                nft_not="ip dscp != 10",
            ),
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_match_that_nobody_knows_is_said(backend: str) -> None:
    view = view_of(backed("a", "172.30.0.1"))
    with pytest.raises(ConfigError, match=r"cannot explain .* in the rule: .*dscp"):
        asked(backend, view, packet(OUTSIDE, "172.30.0.1"), detector=ByDscp())


def test_rules_that_are_none_of_ours() -> None:
    with pytest.raises(ConfigError, match="cannot explain the match --tcp-flags"):
        parse_rule("-p tcp --tcp-flags SYN,ACK SYN -j ACCEPT")
    reader = RuleReader("tcp flags syn accept", lambda container, key: None)
    with pytest.raises(ConfigError, match="cannot explain tcp"):
        list(reader.read(_flow()))


def test_nftables_rule_for_the_moment_of_a_change_is_known_and_never_a_way() -> None:
    rule = "meta l4proto tcp dnat to 10.180.1.1:80"
    (reading,) = RuleReader(rule, lambda container, key: None).read(_flow())
    assert reading.does == ("DNAT to 10.180.1.1:80",)
    ends = ["10.180.1.1:80", "10.180.1.2:80"]
    found = asked(
        "nftables", view_of(backed("a", "172.30.0.1", ends)), packet(OUTSIDE, "172.30.0.1")
    )
    assert [each.chance for each in found.outcomes] == [0.5, 0.5]
    assert not any(step.rule == rule for each in found.outcomes for step in each.steps)


def test_a_chain_that_leads_to_itself_ends() -> None:
    from isthmus.programs.node_proxy.rules.explaining_flow import Continuation, RuleEffect

    with pytest.raises(ConfigError, match="chain a jumps to itself"):
        list(walk(lambda name: [name],
                  lambda name, rule, flow: [RuleEffect(flow, Continuation.JUMP, "a")], "a",
                  _flow()))  # fmt: skip


def _flow() -> Any:
    from isthmus.programs.node_proxy.rules.explaining_flow import Flow

    return Flow(packet=packet(OUTSIDE, "172.30.0.1"))


def test_a_source_is_known_for_what_it_is() -> None:
    view = view_of(backed("a", "172.30.0.1", [endpoint("10.77.0.1:80", local=True)]))
    settings = RuleSettings(family=IpFamily.IPV4, detector=PODS, node_ip=NODE)
    place = ExplainedNode(
        view=view, settings=settings, here=frozenset({NODE}), pod_cidrs=("10.180.0.0/24",)
    )
    to = PacketTarget.parse("172.30.0.1:80")
    for source, origin in (
        ("node", Origin.NODE),
        (NODE, Origin.NODE),
        ("127.0.0.1", Origin.NODE),
        ("10.180.0.77", Origin.POD),
        ("10.180.1.77", Origin.OUTSIDE),
        ("10.77.0.1", Origin.POD),
        (OUTSIDE, Origin.OUTSIDE),
    ):
        assert packet_to(to, source, place).origin is origin, source
    assert packet_to(to, "node", place).source == NODE
    assert packet_to(to, NODE, place, interface="eth0").origin is Origin.OUTSIDE
    forged = packet_to(to, "10.180.1.77", place)
    assert taken_for_local(forged, settings)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.96.0.1:80", ("10.96.0.1", 80, PortProtocol.TCP)),
        ("10.96.0.1:53/udp", ("10.96.0.1", 53, PortProtocol.UDP)),
        ("10.96.0.1:53/SCTP", ("10.96.0.1", 53, PortProtocol.SCTP)),
        ("[FD00::0:1]:443", ("fd00::1", 443, PortProtocol.TCP)),
    ],
)
def test_destinations(text: str, found: tuple[str, int, PortProtocol]) -> None:
    read = PacketTarget.parse(text)
    assert (read.address, read.port, read.protocol) == found


@pytest.mark.parametrize("text", ["", "10.96.0.1", "x:80", "10.96.0.1:0", "10.96.0.1:80/icmp"])
def test_what_is_no_destination(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^DST: "):
        PacketTarget.parse(text)


def test_a_node_without_an_address() -> None:
    settings = RuleSettings(family=IpFamily.IPV4, detector=PODS, node_ip="127.0.0.1")
    place = ExplainedNode(view=view_of(), settings=settings, here=frozenset())
    with pytest.raises(ConfigError, match="--bind-address"):
        packet_to(PacketTarget.parse("172.30.0.1:80"), "node", place)
    own = packet_to(PacketTarget.parse("127.0.0.1:30001"), "node", place)
    assert (own.source, own.origin) == ("127.0.0.1", Origin.NODE)


LOST = view_of(
    backed("none", "172.30.0.1", [], node_port=30001, load_balancer_ips=(LB,),
           source_ranges=("192.0.2.0/24",), external_ips=("198.51.100.1",)),
    backed("far", "172.30.0.2", [THERE, HERE]),
    backed("ports", "172.30.0.3", node_port=30003),
)  # fmt: skip
T, R, D, U = (
    PacketVerdict.TRANSLATED,
    PacketVerdict.REFUSED,
    PacketVerdict.DROPPED,
    PacketVerdict.UNTOUCHED,
)


@pytest.mark.parametrize(
    ("source", "address", "port", "verdicts"),
    [
        ("127.0.0.1", "127.0.0.1", 30003, (T, U)),
        (OUTSIDE, "127.0.0.1", 22, (D, U)),
        (OUTSIDE, "172.30.0.3", 81, (U, R)),
        (OUTSIDE, "172.30.9.9", 80, (U, D)),
        (NODE, "198.51.100.1", 80, (U, R)),
        (OUTSIDE, LB, 80, (R, D)),
        (OUTSIDE, "192.0.2.2", 30001, (R, U)),
    ],
)
def test_the_two_modes_differ_where_it_is_documented(
    source: str, address: str, port: int, verdicts: tuple[PacketVerdict, PacketVerdict]
) -> None:
    """The table of docs/how-to/node-proxy-explain.md, but for its last row."""
    own = source in (NODE, "127.0.0.1")
    sent = packet(
        source, address, port,
        origin=Origin.NODE if own else Origin.OUTSIDE, interface="" if own else "eth0",
        here=frozenset({NODE, "192.0.2.2"}),
    )  # fmt: skip
    more = {"node_port_addresses": (NODE, "127.0.0.1"), "service_cidrs": ("172.30.0.0/16",)}
    found = tuple(asked(backend, LOST, sent, **more).verdict for backend in BACKENDS)
    assert found == verdicts


def test_nftables_knows_hairpins_of_this_node_only() -> None:
    sent = packet("10.180.1.3", "172.30.0.2", origin=Origin.OUTSIDE)
    for backend, masqueraded in (("iptables", True), ("nftables", False)):
        found = {each.endpoint: each for each in asked(backend, LOST, sent).outcomes}
        assert found[THERE].masqueraded is masqueraded
