"""iptables and nftables do the same to any packet, but for what kube-proxy's modes do differently.

Those differences are spelled out in ``differs``, each with its reason; whatever else differs is a
mistake in one of the backends, or in explaining.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.detectors import (
    NOTHING_LOCAL,
    BridgePorts,
    Interfaces,
    SourceRanges,
)
from isthmus.programs.node_proxy.rules.explaining import PacketExplanation, explain, merged
from isthmus.programs.node_proxy.rules.explaining_flow import Origin, Packet
from isthmus.programs.node_proxy.rules.explaining_iptables import IptablesRules
from isthmus.programs.node_proxy.rules.explaining_nftables import NftablesRules
from isthmus.programs.node_proxy.rules.iptables.ruleset import IptablesRenderer
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
    ServiceView,
)
from isthmus.programs.node_proxy.rules.nftables.ruleset import NftablesRenderer
from isthmus.programs.node_proxy.rules.settings import RuleSettings
from isthmus.programs.node_proxy.rules.tracker import categorize_endpoints

NODE, SECOND = "192.0.2.1", "192.0.2.2"
LOCAL_PODS = [f"10.1.0.{each}" for each in range(3)]
OTHER_PODS = [f"10.1.1.{each}" for each in range(3)]
RANGES = ("192.0.2.0/24", "203.0.113.0/24")


@st.composite
def backed_ports(draw: st.DrawFn, number: int) -> BackedPort:
    """A port whose addresses nobody else has."""
    protocol = draw(st.sampled_from(list(PortProtocol)))
    port = ServicePort(
        key=PortKey(ServiceName("ns", f"s{number}"), draw(st.sampled_from(["", "p"])), protocol),
        cluster_ip=f"172.30.0.{number}",
        port=80,
        node_port=draw(st.sampled_from([0, 30000 + number])),
        external_ips=tuple(draw(st.lists(st.just(f"198.51.100.{number}"), max_size=1))),
        load_balancer_ips=tuple(draw(st.lists(st.just(f"198.51.100.1{number}"), max_size=1))),
        source_ranges=tuple(draw(st.lists(st.sampled_from(RANGES), max_size=2, unique=True))),
        affinity_s=draw(st.sampled_from([0, 0, 10])),
        internal_local=draw(st.booleans()),
        external_local=draw(st.booleans()),
    )
    ready = draw(st.sampled_from(["all", "some", "none"]))
    ends = []
    for address in (NODE, *LOCAL_PODS, *OTHER_PODS):
        if draw(st.booleans()):
            well = ready == "all" or (ready == "some" and draw(st.booleans()))
            leaving = not well and draw(st.booleans())
            near = address not in OTHER_PODS
            ends.append(
                Endpoint(
                    ip=address, port=8080, local=near, ready=well, serving=well or leaving,
                    terminating=leaving,
                )
            )  # fmt: skip
    found = tuple(sorted(ends, key=str))
    chosen = categorize_endpoints(found, port, node_name="here", zone="")
    return BackedPort(port=port, backends=chosen)


@st.composite
def views(draw: st.DrawFn) -> ServiceView:
    ports = [draw(backed_ports(number)) for number in range(draw(st.integers(1, 3)))]
    return ServiceView(family=IpFamily.IPV4, ports={each.port.key: each for each in ports})


SETTINGS = st.builds(
    RuleSettings,
    family=st.just(IpFamily.IPV4),
    detector=st.sampled_from(
        [
            NOTHING_LOCAL,
            SourceRanges(("10.1.0.0/16",)),
            SourceRanges(("10.1.0.0/24", "10.9.0.0/24")),
            Interfaces(prefixes=("veth",)),
            Interfaces(names=("cbr0", "cbr1")),
            BridgePorts(),
            BridgePorts(("veth", "cali")),
        ]
    ),
    masquerade_all=st.booleans(),
    masquerade_bit=st.sampled_from([14, 5]),
    node_ip=st.sampled_from(["", NODE]),
    node_port_addresses=st.sampled_from([None, (), (NODE,), (NODE, SECOND, "127.0.0.1")]),
)


@st.composite
def packets(draw: st.DrawFn, view: ServiceView) -> Packet:
    """What is mostly for a port of the view, by one of its addresses, and may be by another."""
    origin = draw(st.sampled_from(list(Origin)))
    here = [NODE, SECOND, "127.0.0.1"]
    source = {
        Origin.NODE: st.sampled_from([*here, "198.51.100.10"]),
        Origin.POD: st.sampled_from(LOCAL_PODS),
        Origin.OUTSIDE: st.sampled_from(["203.0.113.9", "233.252.0.1", *OTHER_PODS]),
    }
    bridge_port = draw(st.sampled_from(["veth0", "cali0", "tap0", ""]))
    interface = "cbr0" if bridge_port else draw(st.sampled_from(["veth0", "eth0"]))
    port = draw(st.sampled_from([each.port for each in view.ports.values()]))
    places = [(ip, port.port) for ip in addresses(port)]
    places += [(ip, port.node_port) for ip in here if port.node_port]
    stray = draw(st.integers(0, 9)) == 0
    destination, number = draw(st.sampled_from(places))
    return Packet(
        family=IpFamily.IPV4,
        source=draw(source[origin]),
        destination=draw(st.sampled_from(LOCAL_PODS)) if stray else destination,
        port=81 if draw(st.integers(0, 9)) == 0 else number,
        protocol=PortProtocol.TCP if draw(st.integers(0, 9)) == 0 else port.key.protocol,
        origin=origin,
        interface="" if origin is Origin.NODE else interface,
        bridge_port="" if origin is Origin.NODE else bridge_port,
        here=frozenset(here),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[ServiceView, RuleSettings, Packet]:
    view = draw(views())
    return view, draw(SETTINGS), draw(packets(view))


def addresses(port: ServicePort) -> tuple[str, ...]:
    return (port.cluster_ip, *port.external_ips, *port.load_balancer_ips)


def both(
    view: ServiceView, settings: RuleSettings, packet: Packet
) -> tuple[PacketExplanation, PacketExplanation]:
    first = IptablesRules(IptablesRenderer(settings).render(view).ruleset)
    renderer = NftablesRenderer(settings)
    renderer.advance(view)
    second = NftablesRules(renderer.ruleset(), settings)
    return explain(first, packet, view), explain(second, packet, view)


def summary(found: PacketExplanation) -> object:
    return {
        (each.verdict, each.endpoint, each.masqueraded, round(each.chance, 6))
        for each in merged(found)
    }


def differs(view: ServiceView, settings: RuleSettings, packet: Packet) -> str:
    """Why the two may differ; empty if they may not."""
    if packet.destination == "127.0.0.1":
        return "nftables has no node ports on localhost, and no need to protect it"
    cluster_ips = {each.port.cluster_ip for each in view.ports.values()}
    backed = asked(view, packet)
    if packet.destination in cluster_ips and backed is None:
        return "nftables refuses ports of a cluster IP that it does not have"
    if backed is None:
        return ""
    if packet.source in OTHER_PODS and packet.source in {e.ip for e in backed.backends.reachable}:
        return "nftables knows hairpins of endpoints of this node only"
    port, local = backed.port, bool(backed.backends.local)
    lacking = not backed.backends.exist or (port.external_local and not local)
    if lacking and packet.destination in (*port.external_ips, *port.load_balancer_ips):
        if packet.origin is Origin.NODE:
            return "iptables refuses external addresses without endpoints to others only"
        if port.source_ranges and packet.destination in port.load_balancer_ips:
            return "nftables looks at source ranges first, endpoints or not"
    if lacking and packet.port == port.node_port and settings.node_port_addresses is not None:
        return "iptables refuses node ports without endpoints at every address"
    return ""


def asked(view: ServiceView, packet: Packet) -> BackedPort | None:
    """The port that a packet is for."""
    for each in view.ports.values():
        if each.port.key.protocol is packet.protocol:
            if packet.port == each.port.port and packet.destination in addresses(each.port):
                return each
            if packet.port == each.port.node_port and packet.destination in packet.here:
                return each
    return None


@given(cases())
def test_both_backends_do_the_same(case: tuple[ServiceView, RuleSettings, Packet]) -> None:
    view, settings, packet = case
    first, second = both(view, settings, packet)
    for found in (first, second):
        assert sum(each.chance for each in found.outcomes) == pytest.approx(1)
        assert len({each.verdict for each in found.outcomes}) == 1
    if not differs(view, settings, packet):
        assert summary(first) == summary(second)
