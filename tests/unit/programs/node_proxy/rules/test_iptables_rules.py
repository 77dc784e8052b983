"""Rulesets for iptables, every kind of Service in every kind of settings, as whole texts.

Run with UPDATE_GOLDEN=1 to write what is expected anew, and read the difference. The rules of
``every-kind`` are those of kube-proxy's own TestOverallIPTablesRules, line by line the same as
there but for their order and the zeros of the mark.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.rules.detectors import BridgePorts, Interfaces, SourceRanges
from isthmus.programs.node_proxy.rules.iptables import base
from isthmus.programs.node_proxy.rules.iptables.ports import probability
from isthmus.programs.node_proxy.rules.iptables.ruleset import IptablesRenderer, IptablesRuleset
from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
    ServiceView,
)
from isthmus.programs.node_proxy.rules.settings import LARGE_CLUSTER_ENDPOINTS, RuleSettings
from isthmus.programs.node_proxy.rules.tracker import categorize_endpoints

GOLDEN = Path(__file__).parents[4] / "golden" / "iptables"
V4, V6 = IpFamily.IPV4, IpFamily.IPV6
LOCAL = True


def backed(
    name: str,
    cluster_ip: str,
    ends: Sequence[tuple[str, bool]] = (),
    *,
    protocol: PortProtocol = PortProtocol.TCP,
    **fields: object,
) -> BackedPort:
    """Port 80 of a Service, with endpoints that are here or elsewhere."""
    key = PortKey(ServiceName.parse(name), "p80", protocol)
    port = ServicePort(key=key, cluster_ip=cluster_ip, port=80, **fields)  # type: ignore[arg-type]
    found = tuple(Endpoint(ip=ip, port=80, local=local) for ip, local in ends)
    chosen = categorize_endpoints(found, port, node_name="here", zone="")
    return BackedPort(port=port, backends=chosen)


def every_kind() -> list[BackedPort]:
    return [
        backed("ns1/svc1", "172.30.0.41", [("10.180.0.1", False)]),
        backed(
            "ns2/svc2", "172.30.0.42", [("10.180.0.2", False)], node_port=3001,
            external_ips=("192.168.99.22",), load_balancer_ips=("1.2.3.4",), external_local=True,
            health_check_node_port=30000,
        ),
        backed("ns3/svc3", "172.30.0.43", [("10.180.0.3", False)], node_port=3003),
        backed(
            "ns4/svc4", "172.30.0.44", [("10.180.0.4", False), ("10.180.0.5", LOCAL)],
            external_ips=("192.168.99.33",),
        ),
        backed(
            "ns5/svc5", "172.30.0.45", [("10.180.0.3", False)], node_port=3002,
            load_balancer_ips=("5.6.7.8",), source_ranges=("203.0.113.0/25",), affinity_s=10800,
        ),
        backed("ns6/svc6", "172.30.0.46"),
    ]  # fmt: skip


def more_kinds() -> list[BackedPort]:
    """What that test leaves out."""
    three = [("10.1.0.1", LOCAL), ("10.2.0.1", False), ("10.2.0.2", False)]
    return [
        backed(
            "a/both-local", "172.30.1.1", three, internal_local=True, external_local=True,
            node_port=30001, affinity_s=60,
        ),
        backed("a/internal-none-here", "172.30.1.2", [("10.2.0.3", False)], internal_local=True),
        backed(
            "a/nothing-anywhere", "172.30.1.3", node_port=30002, external_ips=("9.9.9.9",),
            load_balancer_ips=("8.8.8.8",), source_ranges=("203.0.113.0/25",),
        ),
        backed("a/outside-local", "172.30.1.4", three, external_local=True, node_port=30003),
        backed(
            "a/node-in-range", "172.30.1.5", three, load_balancer_ips=("1.1.1.1", "1.1.1.2"),
            source_ranges=("192.168.0.0/24", "203.0.113.0/25"),
        ),
        backed("a/udp", "172.30.1.6", [("10.1.0.3", LOCAL)], protocol=PortProtocol.UDP),
        backed("a/sctp", "172.30.1.7", [("10.1.0.3", False)], protocol=PortProtocol.SCTP),
    ]  # fmt: skip


def sixes() -> list[BackedPort]:
    return [
        backed("ns1/svc1", "fd00:30::41", [("fd00:180::1", LOCAL)], node_port=3001),
        backed(
            "ns5/svc5", "fd00:30::45", [("fd00:180::3", LOCAL)], load_balancer_ips=("2001::1",),
            source_ranges=("2001:db8::/64",), affinity_s=10800, external_local=True,
        ),
        backed("ns6/svc6", "fd00:30::46"),
    ]  # fmt: skip


KUBE_PROXY = RuleSettings(
    family=V4,
    detector=SourceRanges(("10.0.0.0/8",)),
    node_ip="192.168.0.2",
    random_fully=False,
    accounting=True,
)
SIX = RuleSettings(family=V6, detector=SourceRanges(("fd00:180::/64",)), node_ip="2001:db8::2")
TWO = every_kind()[:2]
CASES = {
    "every-kind": (every_kind(), KUBE_PROXY),
    "more-kinds": (more_kinds(), replace(KUBE_PROXY, accounting=False, drop_invalid=False)),
    "ipv6": (sixes(), SIX),
    "ipv6-addresses": (sixes(), replace(SIX, node_port_addresses=("2001:db8::2", "::1"))),
    "addresses": (TWO, replace(KUBE_PROXY, node_port_addresses=("192.168.0.2", "127.0.0.1"))),
    "not-on-localhost": (TWO, replace(KUBE_PROXY, localhost_node_ports=False)),
    "nothing-local": (TWO, RuleSettings(family=V4)),
    "several-ranges": (
        TWO,
        RuleSettings(family=V4, detector=SourceRanges(("10.1.0.0/16", "10.5.0.0/16"))),
    ),
    "interface": (TWO, RuleSettings(family=V4, detector=Interfaces(names=("cni0",)))),
    "prefix": (
        TWO,
        RuleSettings(family=V4, detector=Interfaces(prefixes=("cali",)), masquerade_bit=15),
    ),
    "bridge-ports": (TWO, RuleSettings(family=V4, detector=BridgePorts(("veth", "tap")))),
    "any-bridge-port": (TWO, RuleSettings(family=V4, detector=BridgePorts())),
    "masquerade-all": (TWO, replace(KUBE_PROXY, masquerade_all=True)),
    "empty": ([], RuleSettings(family=V4)),
}


def view(ports: Sequence[BackedPort], family: IpFamily = V4, endpoints: int = 0) -> ServiceView:
    return ServiceView(
        family=family, ports={each.port.key: each for each in ports}, endpoints=endpoints
    )


def rendered(ports: Sequence[BackedPort], settings: RuleSettings = KUBE_PROXY) -> IptablesRuleset:
    return IptablesRenderer(settings).render(view(ports, settings.family)).ruleset


@pytest.mark.parametrize("name", CASES)
def test_as_expected(name: str) -> None:
    ports, settings = CASES[name]
    found = rendered(ports, settings).text()
    expected = GOLDEN / f"{name}.rules"
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(found)
    assert found == expected.read_text()


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.rules")} == CASES.keys()


@pytest.mark.parametrize(
    ("left", "expected"), [(1, "1.0000000000"), (2, "0.5000000000"), (100001, "0.0000099999")]
)
def test_probabilities(left: int, expected: str) -> None:
    assert probability(left) == expected


def plain(services: int, endpoints: int) -> list[BackedPort]:
    return [
        backed(
            f"ns/svc{service}",
            f"172.30.0.{service}",
            [(f"10.1.{service}.{each}", False) for each in range(endpoints)],
        )
        for service in range(services)
    ]


@pytest.mark.parametrize(
    ("services", "endpoints", "in_filter", "in_nat"),
    [(0, 0, 4, 5), (1, 1, 4, 10), (10, 0, 14, 5), (10, 1, 4, 55), (10, 10, 4, 325)],
)
def test_how_many_rules(services: int, endpoints: int, in_filter: int, in_nat: int) -> None:
    ruleset = rendered(plain(services, endpoints))
    assert ruleset.counts() == {"filter": in_filter, "nat": in_nat}
    tables = ruleset.tables()
    counted = {name: sum(map(len, chains.values())) for name, chains in tables.items()}
    assert counted == ruleset.counts()


def test_traffic_that_finds_nothing_here_is_counted() -> None:
    elsewhere = [("10.2.0.1", False)]
    ports = [
        backed("a/internal", "172.30.0.1", elsewhere, internal_local=True),
        backed("a/external", "172.30.0.2", elsewhere, external_local=True, node_port=30001),
        backed("a/both", "172.30.0.3", elsewhere, internal_local=True, external_local=True,
               node_port=30002),
        backed("a/none", "172.30.0.4", internal_local=True),
        backed("a/here", "172.30.0.5", [("10.1.0.1", LOCAL)], internal_local=True),
    ]  # fmt: skip
    assert rendered(ports).no_local_endpoints() == {"internal": 2, "external": 2}


def test_large_clusters_have_fewer_comments() -> None:
    port = backed("ns1/svc1", "172.30.0.41", [("10.180.0.1", False)], affinity_s=9)
    renderer = IptablesRenderer(KUBE_PROXY)
    small = renderer.render(view([port], endpoints=LARGE_CLUSTER_ENDPOINTS)).ruleset.tables()
    # The same object is written anew: what is in the kernel has comments.
    change = renderer.render(view([port], endpoints=LARGE_CLUSTER_ENDPOINTS + 1))
    large = change.ruleset.tables()
    balance, endpoint = "KUBE-SVC-XPGD46QRK7WJZT7O", "KUBE-SEP-SXIVWICOYRO3J4NJ"
    assert all("--comment" in rule for rule in (*small["nat"][balance], *small["nat"][endpoint]))
    assert large["nat"][endpoint] == (
        "-s 10.180.0.1 -j KUBE-MARK-MASQ",
        f"-m recent --name {endpoint} --set -m tcp -p tcp -j DNAT --to-destination 10.180.0.1:80",
    )
    assert ["--comment" in rule for rule in large["nat"][balance]] == [True, False, False]
    assert set(change.nat.chains) == {balance, endpoint}
    back = renderer.render(view([port], endpoints=LARGE_CLUSTER_ENDPOINTS))
    assert back.ruleset.tables() == small


def test_one_endpoint_among_many_is_two_chains() -> None:
    ends = [(f"10.1.0.{each}", False) for each in range(50)]
    one = backed("ns1/many", "172.30.0.1", ends, node_port=30001)
    other = backed("ns1/many", "172.30.0.1", [*ends[1:], ("10.1.1.1", False)], node_port=30001)
    renderer = IptablesRenderer(KUBE_PROXY)
    before = renderer.render(view([one, *TWO])).ruleset.tables()["nat"]
    change = renderer.render(view([other, *TWO]))
    after = change.ruleset.tables()["nat"]
    assert not change.filter
    assert len(change.nat.removed) == 1
    assert set(change.nat.removed) == before.keys() - after.keys()
    balance = {f"KUBE-SVC-{base.suffix('ns1/many:p80tcp')}"}
    assert set(change.nat.chains) == balance | (after.keys() - before.keys())
    assert len(change.nat.chains) == 2
    assert change.nat.count == 51 + 2


def test_nothing_new_writes_nothing() -> None:
    renderer = IptablesRenderer(KUBE_PROXY)
    renderer.render(view(every_kind()))
    for ports in (every_kind(), every_kind()):  # other objects, that read the same
        change = renderer.render(view(ports))
        assert not change.filter
        assert not change.nat


def test_a_service_that_loses_its_endpoints_is_refused() -> None:
    renderer = IptablesRenderer(KUBE_PROXY)
    renderer.render(view([backed("ns1/svc1", "172.30.0.41", [("10.180.0.1", False)])]))
    change = renderer.render(view([backed("ns1/svc1", "172.30.0.41")]))
    assert change.filter.chains == (base.SERVICES,)
    assert "REJECT" in change.filter.text()
    assert change.filter_back.chains == (base.SERVICES,)
    assert change.filter_back.count == 0
    assert change.nat.chains == (base.SERVICES,)
    assert set(change.nat.removed) == {"KUBE-SVC-XPGD46QRK7WJZT7O", "KUBE-SEP-SXIVWICOYRO3J4NJ"}
    text = change.nat.text()
    assert text.index(":KUBE-SVC-XPGD46QRK7WJZT7O") < text.index("-X KUBE-SVC-XPGD46QRK7WJZT7O")
