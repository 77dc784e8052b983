"""The masquerade truth table, cell by cell, for every detector, through the rules themselves.

It is that of kube-proxy's own TestInternalExternalMasquerade.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from explaining_cases import BACKENDS, HERE, NODE, THERE, backed, packet, rules_of, view_of

from isthmus.programs.node_proxy.rules.detectors import (
    NOTHING_LOCAL,
    BridgePorts,
    Interfaces,
    LocalTrafficDetector,
    SourceRanges,
)
from isthmus.programs.node_proxy.rules.explaining import PacketExplanation, Reason, explain
from isthmus.programs.node_proxy.rules.explaining_flow import Origin, Packet, PacketVerdict
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.rules.settings import RuleSettings

VIEW = view_of(
    backed(
        "cluster", "172.30.0.1", node_port=30001,
        external_ips=("198.51.100.1",), load_balancer_ips=("198.51.100.2",),
    ),
    backed(
        "local", "172.30.0.2", node_port=30002, external_local=True,
        external_ips=("198.51.100.3",), load_balancer_ips=("198.51.100.4",),
    ),
    backed("inner", "172.30.0.3", internal_local=True),
)  # fmt: skip

DETECTORS: dict[str, LocalTrafficDetector] = {
    "cluster-cidr": SourceRanges(("10.180.0.0/16",)),
    "node-cidr": SourceRanges(("10.180.0.0/24",)),
    "several ranges": SourceRanges(("10.99.0.0/24", "10.180.0.0/24", "fd00::/64")),
    "prefix": Interfaces(prefixes=("veth",)),
    "several prefixes": Interfaces(prefixes=("cali", "veth")),
    "interface": Interfaces(names=("cbr0",)),
    "any bridge port": BridgePorts(),
    "bridge ports": BridgePorts(("veth",)),
    "several bridge ports": BridgePorts(("cali", "veth")),
}
ADDRESSES = {
    "cluster IP": [("172.30.0.1", 80), ("172.30.0.2", 80)],
    "inner": [("172.30.0.3", 80)],
    "Cluster": [(NODE, 30001), ("198.51.100.1", 80), ("198.51.100.2", 80)],
    "Local": [(NODE, 30002), ("198.51.100.3", 80), ("198.51.100.4", 80)],
}
ALL, LOCAL = {HERE, THERE}, {HERE}
# Who, to what, which endpoints, masqueraded, why.
TABLE = [
    ("pod", "cluster IP", ALL, False, Reason.POD),
    ("pod", "inner", LOCAL, False, Reason.POD),
    ("pod", "Cluster", ALL, True, Reason.EXTERNAL),
    ("pod", "Local", ALL, False, Reason.POD),
    ("node", "cluster IP", ALL, True, Reason.NOT_LOCAL),
    ("node", "inner", LOCAL, True, Reason.NOT_LOCAL),
    ("node", "Cluster", ALL, True, Reason.EXTERNAL),
    ("node", "Local", ALL, True, Reason.NODE),
    ("outside", "cluster IP", ALL, True, Reason.NOT_LOCAL),
    ("outside", "inner", LOCAL, True, Reason.NOT_LOCAL),
    ("outside", "Cluster", ALL, True, Reason.EXTERNAL),
    ("outside", "Local", LOCAL, False, Reason.KEPT),
]


def sent(who: str, address: str, port: int, detector: str) -> Packet:
    """What somebody sends, by the interface that it would come in by."""
    if who == "node":
        return packet(NODE, address, port, origin=Origin.NODE, interface="")
    if who == "outside":
        return packet("203.0.113.7", address, port)
    bridged = "bridge" in detector or detector == "interface"
    return packet(
        "10.180.0.9", address, port, origin=Origin.POD,
        interface="cbr0" if bridged else "veth7", bridge_port="veth7" if bridged else "",
    )  # fmt: skip


def check(
    found: PacketExplanation, endpoints: set[str], masqueraded: bool, reason: Reason | None
) -> None:
    assert found.verdict is PacketVerdict.TRANSLATED
    assert {each.endpoint for each in found.outcomes} == endpoints
    assert {each.masqueraded for each in found.outcomes} == {masqueraded}
    assert {each.reasons for each in found.outcomes} == {(reason,)}
    assert sum(each.chance for each in found.outcomes) == pytest.approx(1)
    assert len({round(each.chance, 6) for each in found.outcomes}) == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("detector", DETECTORS)
def test_the_truth_table(backend: str, detector: str) -> None:
    settings = RuleSettings(family=IpFamily.IPV4, detector=DETECTORS[detector], node_ip=NODE)
    rules = rules_of(backend, VIEW, settings)
    for who, kind, endpoints, masqueraded, reason in TABLE:
        for address, port in ADDRESSES[kind]:
            found = explain(rules, sent(who, address, port, detector), VIEW)
            check(found, endpoints, masqueraded, reason)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_tells_local_traffic(backend: str) -> None:
    settings = RuleSettings(family=IpFamily.IPV4, detector=NOTHING_LOCAL, node_ip=NODE)
    rules = rules_of(backend, VIEW, settings)
    for who, kind, endpoints, masqueraded, reason in TABLE:
        if kind in ("cluster IP", "inner"):
            masqueraded, reason = False, Reason.NO_DETECTOR
        if (who, kind) == ("pod", "Local"):
            endpoints, reason = LOCAL, Reason.KEPT
        for address, port in ADDRESSES[kind]:
            found = explain(rules, sent(who, address, port, "prefix"), VIEW)
            check(found, endpoints, masqueraded, reason)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("detector", ["cluster-cidr", "several ranges"])
def test_all_is_masqueraded(backend: str, detector: str) -> None:
    settings = RuleSettings(
        family=IpFamily.IPV4, detector=DETECTORS[detector], node_ip=NODE, masquerade_all=True
    )
    rules = rules_of(backend, VIEW, settings)
    for who, kind, endpoints, masqueraded, reason in TABLE:
        if kind in ("cluster IP", "inner"):
            masqueraded, reason = True, Reason.ALL
        for address, port in ADDRESSES[kind]:
            found = explain(rules, sent(who, address, port, detector), VIEW)
            check(found, endpoints, masqueraded, reason)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pod_that_is_sent_to_itself(backend: str) -> None:
    settings = RuleSettings(family=IpFamily.IPV4, detector=DETECTORS["node-cidr"], node_ip=NODE)
    rules = rules_of(backend, VIEW, settings)
    own = packet("10.180.0.2", "172.30.0.1", origin=Origin.POD)
    found = {each.endpoint: each for each in explain(rules, own, VIEW).outcomes}
    assert (found[HERE].masqueraded, found[HERE].reasons) == (True, (Reason.HAIRPIN,))
    assert (found[THERE].masqueraded, found[THERE].reasons) == (False, (Reason.POD,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_ends_on_the_node_is_not_masqueraded(backend: str) -> None:
    """Only what leaves a node passes POSTROUTING; the node's own packets do, whatever for."""
    view = view_of(backed("host", "172.30.0.9", [f"{NODE}:6443"], node_port=30009))
    settings = RuleSettings(family=IpFamily.IPV4, detector=DETECTORS["node-cidr"], node_ip=NODE)
    rules = rules_of(backend, view, settings)
    for address, port in (("172.30.0.9", 80), (NODE, 30009)):
        (found,) = explain(rules, packet("203.0.113.7", address, port), view).outcomes
        assert (found.endpoint, found.masqueraded) == (f"{NODE}:6443", False)
        assert found.reasons == (Reason.STAYS,)
        own = replace(packet(NODE, address, port, interface=""), origin=Origin.NODE)
        (found,) = explain(rules, own, view).outcomes
        assert (found.endpoint, found.masqueraded) == (f"{NODE}:6443", True)
