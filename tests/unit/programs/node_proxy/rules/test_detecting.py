"""Detectors: what they write for iptables and for nft, and how the table makes them."""

from __future__ import annotations

import pytest

from isthmus.programs.node_proxy.rules.detectors import (
    MODES,
    NOTHING_LOCAL,
    BridgePorts,
    DetectorSettings,
    Interfaces,
    LocalMatch,
    LocalTrafficDetector,
    SourceRanges,
    for_family,
    needs_pod_cidrs,
    tidy_range,
)
from isthmus.programs.node_proxy.rules.model import IpFamily

V4, V6 = IpFamily.IPV4, IpFamily.IPV6

GIVEN = DetectorSettings(
    cluster_cidrs=("10.0.0.0/8", "fd00::/16", "11.0.0.0/8"),
    node_cidrs=("10.1.0.0/24", "10.2.0.0/24"),
    interface_prefixes=("veth", "cali"),
    bridge_interface="cbr0",
    interface_name_prefix="azv",
    pod_cidrs=("10.3.0.0/24", "fd00:3::/64", "10.4.0.0/24"),
)


def made(mode: str, given: DetectorSettings = GIVEN) -> LocalTrafficDetector:
    return MODES[mode].make(given)


def iptables(detector: LocalTrafficDetector, family: IpFamily) -> list[tuple[str, str]]:
    """What is local and what is not, as arguments."""
    return [(" ".join(m.iptables), " ".join(m.iptables_not)) for m in detector.matches(family)]


def nft(detector: LocalTrafficDetector, family: IpFamily) -> list[tuple[str, str]]:
    return [(match.nft, match.nft_not) for match in detector.matches(family)]


@pytest.mark.parametrize(
    ("mode", "family", "written"),
    [
        ("cluster-cidr", V4,
         [("-s 10.0.0.0/8", "! -s 10.0.0.0/8"), ("-s 11.0.0.0/8", "! -s 11.0.0.0/8")]),
        ("cluster-cidr", V6, [("-s fd00::/16", "! -s fd00::/16")]),
        ("node-cidr", V4,
         [("-s 10.1.0.0/24", "! -s 10.1.0.0/24"), ("-s 10.2.0.0/24", "! -s 10.2.0.0/24")]),
        ("node-cidr", V6, []),
        ("pod-interface-prefix", V4, [("-i veth+", "! -i veth+"), ("-i cali+", "! -i cali+")]),
        ("pod-interface-prefix", V6, [("-i veth+", "! -i veth+"), ("-i cali+", "! -i cali+")]),
        (
            "bridge",
            V4,
            [
                ("-m physdev --physdev-in veth+", "-m physdev ! --physdev-in veth+"),
                ("-m physdev --physdev-in cali+", "-m physdev ! --physdev-in cali+"),
            ],
        ),
        ("ClusterCIDR", V4, [("-s 10.0.0.0/8", "! -s 10.0.0.0/8")]),
        ("NodeCIDR", V4, [("-s 10.3.0.0/24", "! -s 10.3.0.0/24")]),
        ("NodeCIDR", V6, [("-s fd00:3::/64", "! -s fd00:3::/64")]),
        ("BridgeInterface", V4, [("-i cbr0", "! -i cbr0")]),
        ("InterfaceNamePrefix", V6, [("-i azv+", "! -i azv+")]),
    ],
)  # fmt: skip
def test_what_iptables_is_told(mode: str, family: IpFamily, written: list[tuple[str, str]]) -> None:
    assert iptables(made(mode), family) == written


@pytest.mark.parametrize(
    ("detector", "family", "written"),
    [
        (SourceRanges(("10.0.0.0/8",)), V4, ("ip saddr 10.0.0.0/8", "ip saddr != 10.0.0.0/8")),
        (SourceRanges(("fd00::/8",)), V6, ("ip6 saddr fd00::/8", "ip6 saddr != fd00::/8")),
        (Interfaces(names=("cbr0",)), V4, ('iifname "cbr0"', 'iifname != "cbr0"')),
        (Interfaces(prefixes=("veth",)), V6, ('iifname "veth*"', 'iifname != "veth*"')),
        (
            BridgePorts(),
            V4,
            (
                "meta mark & 0x00001000 == 0x00001000",
                "meta mark & 0x00001000 != 0x00001000",
            ),
        ),
    ],
)
def test_what_nft_is_told(
    detector: LocalTrafficDetector, family: IpFamily, written: tuple[str, str]
) -> None:
    assert nft(detector, family) == [written]


def test_all_bridge_ports_need_no_prefix() -> None:
    detector = made("bridge", DetectorSettings())
    assert iptables(detector, V4) == [
        ("-m physdev --physdev-is-in", "-m physdev ! --physdev-is-in")
    ]
    assert detector.bridge_ports == ()


@pytest.mark.parametrize("mode", MODES)
def test_only_the_bridge_detector_looks_at_bridge_ports(mode: str) -> None:
    expected = ("veth", "cali") if mode == "bridge" else None
    assert made(mode).bridge_ports == expected


@pytest.mark.parametrize("mode", MODES)
def test_the_same_settings_make_equal_detectors(mode: str) -> None:
    # An unequal one means that all rules are written anew.
    assert made(mode) == made(mode)
    assert hash(made(mode)) == hash(made(mode))


def test_other_pod_ranges_make_another_detector() -> None:
    before = made("node-cidr", DetectorSettings(pod_cidrs=("10.1.0.0/24",)))
    assert before != made("node-cidr", DetectorSettings(pod_cidrs=("10.2.0.0/24",)))


def test_a_range_given_twice_is_matched_once() -> None:
    assert len(SourceRanges(("10.0.0.0/8", "10.0.0.0/8")).matches(V4)) == 1


def test_a_family_that_nothing_tells_has_no_detector() -> None:
    detector = SourceRanges(("10.0.0.0/8",))
    assert for_family(detector, V4) is detector
    assert for_family(detector, V6) is NOTHING_LOCAL


@pytest.mark.parametrize(
    ("mode", "given", "needed"),
    [
        ("node-cidr", DetectorSettings(), True),
        ("node-cidr", DetectorSettings(node_cidrs=("10.1.0.0/24",)), False),
        ("NodeCIDR", DetectorSettings(node_cidrs=("10.1.0.0/24",)), True),
        ("cluster-cidr", DetectorSettings(), False),
        ("somebody-elses", DetectorSettings(), False),
    ],
)
def test_who_waits_for_the_node(mode: str, given: DetectorSettings, needed: bool) -> None:
    assert needs_pod_cidrs(mode, given) is needed


@pytest.mark.parametrize(
    ("text", "tidy"),
    [
        ("10.1.2.3/8", "10.0.0.0/8"),
        (" 10.0.0.0/8 ", "10.0.0.0/8"),
        ("FD00:0::1/16", "fd00::/16"),
        ("0.0.0.0/0", "0.0.0.0/0"),
    ],
)
def test_ranges_are_tidied(text: str, tidy: str) -> None:
    assert tidy_range(text) == tidy


@pytest.mark.parametrize(
    "text", ["", "10.0.0.0", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/255.0.0.0", "fe80::%eth0/64",
             "x/8", "10.0.0.0/8/8", "10.0.0.0/-1", "10.0.0.0/٣"],
)  # fmt: skip
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match=r"has no prefix length|is not an address range"):
        tidy_range(text)


def test_matches_are_values() -> None:
    match = LocalMatch(iptables=("-i", "a"), iptables_not=("!", "-i", "a"), nft="x", nft_not="y")
    assert match == LocalMatch(
        iptables=("-i", "a"), iptables_not=("!", "-i", "a"), nft="x", nft_not="y"
    )
