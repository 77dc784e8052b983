"""Detects packets from pods of this node: the detector interface, and the built-in detectors.

A new detector is a class here and a line in ``MODES``, or an entry point of another package, which
``isthmus.programs.node_proxy.node`` loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Protocol

from typing_extensions import override

from isthmus.programs.node_proxy.rules.model import IpFamily


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMatch:
    """A match for local packets and its negation, in iptables and nft syntax."""

    iptables: tuple[str, ...]
    iptables_not: tuple[str, ...]
    nft: str
    nft_not: str


class LocalTrafficDetector(Protocol):
    """Detects local traffic. Detectors are compared by ``==``; an unequal one means new rules."""

    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        """The matches of a family; a packet is local if any holds. Empty: nothing is detected."""

    @property
    def bridge_ports(self) -> tuple[str, ...] | None:
        """Prefixes of the bridge ports to match, empty for all; None if ports do not matter.

        iptables matches bridge ports itself. nft cannot in the ip families, so the bridge family
        marks packets (``BRIDGE_MARK_BIT``) and rules match the mark.
        """
        return None


#: The bit of the packet mark by which nft recognises packets from a bridge port.
BRIDGE_MARK_BIT = 12


@dataclass(frozen=True, slots=True)
class NoDetector(LocalTrafficDetector):
    """Detects nothing: traffic to cluster IPs is not masqueraded, and no packet counts as local."""

    @override
    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        return ()


NOTHING_LOCAL = NoDetector()


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorSettings:
    """The input of a detector: flags, and the Node's pod ranges.

    ``pod_cidrs`` are those of the Node; the detector is replaced when they change. Fields are named
    after the flags; ``bridge_interface`` and ``interface_name_prefix`` are kube-proxy's.
    """

    cluster_cidrs: tuple[str, ...] = ()
    node_cidrs: tuple[str, ...] = ()
    interface_prefixes: tuple[str, ...] = ()
    bridge_interface: str = ""
    interface_name_prefix: str = ""
    pod_cidrs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceRanges(LocalTrafficDetector):
    """A packet is local if its source is in one of these ranges."""

    ranges: tuple[str, ...]

    @override
    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        ip = "ip" if family is IpFamily.IPV4 else "ip6"
        return tuple(
            LocalMatch(
                iptables=("-s", each),
                iptables_not=("!", "-s", each),
                nft=f"{ip} saddr {each}",
                nft_not=f"{ip} saddr != {each}",
            )
            for each in of_family(self.ranges, family)
        )


@dataclass(frozen=True, slots=True)
class Interfaces(LocalTrafficDetector):
    """A packet is local if it came in by one of these interfaces; ``prefixes`` match several."""

    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @override
    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        spelled = [(name, name) for name in self.names]
        spelled += [(f"{prefix}+", f"{prefix}*") for prefix in self.prefixes]
        return tuple(
            LocalMatch(
                iptables=("-i", iptables),
                iptables_not=("!", "-i", iptables),
                nft=f'iifname "{nft}"',
                nft_not=f'iifname != "{nft}"',
            )
            for iptables, nft in spelled
        )


@dataclass(frozen=True, slots=True)
class BridgePorts(LocalTrafficDetector):
    """A packet is local if it came in through a bridge port: any, or one of these prefixes."""

    prefixes: tuple[str, ...] = ()

    @override
    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        """One match per prefix, or one for all; in nft they are the same match."""
        mark = f"{1 << BRIDGE_MARK_BIT:#010x}"
        tests: list[tuple[str, ...]]
        tests = [("--physdev-in", f"{prefix}+") for prefix in self.prefixes]
        return tuple(
            LocalMatch(
                iptables=("-m", "physdev", *test),
                iptables_not=("-m", "physdev", "!", *test),
                nft=f"meta mark & {mark} == {mark}",
                nft_not=f"meta mark & {mark} != {mark}",
            )
            for test in tests or [("--physdev-is-in",)]
        )

    @property
    @override
    def bridge_ports(self) -> tuple[str, ...]:
        return self.prefixes


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorMode:
    """A detection mode: the settings it uses, and its factory."""

    make: Callable[[DetectorSettings], LocalTrafficDetector]
    uses: tuple[str, ...] = ()


# Isthmus' own modes, then kube-proxy's, which take one range per family and one interface.
MODES: dict[str, DetectorMode] = {
    "cluster-cidr": DetectorMode(
        make=lambda given: SourceRanges(given.cluster_cidrs), uses=("cluster_cidrs",)
    ),
    "node-cidr": DetectorMode(
        make=lambda given: SourceRanges(given.node_cidrs or given.pod_cidrs),
        uses=("node_cidrs", "pod_cidrs"),
    ),
    "pod-interface-prefix": DetectorMode(
        make=lambda given: Interfaces(prefixes=given.interface_prefixes),
        uses=("interface_prefixes",),
    ),
    "bridge": DetectorMode(
        make=lambda given: BridgePorts(given.interface_prefixes), uses=("interface_prefixes",)
    ),
    "ClusterCIDR": DetectorMode(
        make=lambda given: SourceRanges(first_of_each(given.cluster_cidrs)),
        uses=("cluster_cidrs",),
    ),
    "NodeCIDR": DetectorMode(
        make=lambda given: SourceRanges(first_of_each(given.pod_cidrs)), uses=("pod_cidrs",)
    ),
    "BridgeInterface": DetectorMode(
        make=lambda given: Interfaces(names=(given.bridge_interface,)), uses=("bridge_interface",)
    ),
    "InterfaceNamePrefix": DetectorMode(
        make=lambda given: Interfaces(prefixes=(given.interface_name_prefix,)),
        uses=("interface_name_prefix",),
    ),
}


def needs_pod_cidrs(mode: str, given: DetectorSettings) -> bool:
    """Whether a mode needs the Node's pod ranges, given these settings."""
    known = MODES.get(mode)
    return (
        known is not None
        and "pod_cidrs" in known.uses
        and not ("node_cidrs" in known.uses and given.node_cidrs)
    )


def for_family(detector: LocalTrafficDetector, family: IpFamily) -> LocalTrafficDetector:
    """The detector, or NOTHING_LOCAL if it has no matches for the family."""
    return detector if detector.matches(family) else NOTHING_LOCAL


def of_family(ranges: Sequence[str], family: IpFamily) -> tuple[str, ...]:
    """The ranges of one family, without duplicates, in order."""
    colon = family is IpFamily.IPV6
    return tuple(dict.fromkeys(each for each in ranges if (":" in each) == colon))


def first_of_each(ranges: Sequence[str]) -> tuple[str, ...]:
    """The first range of each family, as kube-proxy uses them."""
    return tuple(each for family in IpFamily for each in of_family(ranges, family)[:1])


def tidy_range(text: str) -> str:
    """A range in the form that rules use, without host bits, which Go's parser drops as well.

    Raises:
        ValueError: the text is not a range; the message continues a sentence that begins with it.
    """
    address, slash, length = text.strip().partition("/")
    if not slash:
        raise ValueError(f"has no prefix length: write for example {address}/24")
    try:
        if not (length.isascii() and length.isdigit()) or "%" in address:
            raise ValueError
        return str(ip_network(f"{address}/{length}", strict=False))
    except ValueError:
        raise ValueError("is not an address range such as 10.0.0.0/16 or fd00::/48") from None
