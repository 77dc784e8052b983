"""Which packets come from a pod of this node: the interface of detectors, and those of our own.

A new one is a class here and a line in ``MODES``, or an entry point of another package, which
``isthmus.programs.node_proxy.node`` finds.
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
    """One way of telling a local packet, and its opposite, as iptables and nft write it."""

    iptables: tuple[str, ...]
    iptables_not: tuple[str, ...]
    nft: str
    nft_not: str


class LocalTrafficDetector(Protocol):
    """Tells local traffic. Values, compared by ``==``: an unequal one means new rules."""

    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        """What is local in a family: any of these. None at all means that nothing can tell."""

    @property
    def bridge_ports(self) -> tuple[str, ...] | None:
        """Prefixes of the bridge ports that it looks at, empty for all; None for no bridges.

        iptables matches them itself; nft cannot in the ip families, so that packets are marked
        in the bridge family (``BRIDGE_MARK_BIT``) and the mark is matched.
        """
        return None


#: The bit of the packet mark by which nft tells what came in through a bridge port.
BRIDGE_MARK_BIT = 12


@dataclass(frozen=True, slots=True)
class NoDetector(LocalTrafficDetector):
    """Cannot tell: nothing to a cluster IP is masqueraded, and no pod is taken for one."""

    @override
    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        return ()


NOTHING_LOCAL = NoDetector()


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorSettings:
    """All that a detector may be made from: what was typed, and what the Node says.

    ``pod_cidrs`` are those of the Node; a detector is made anew when they change. The words are
    those of the flags, ``bridge_interface`` and ``interface_name_prefix`` those of kube-proxy.
    """

    cluster_cidrs: tuple[str, ...] = ()
    node_cidrs: tuple[str, ...] = ()
    interface_prefixes: tuple[str, ...] = ()
    bridge_interface: str = ""
    interface_name_prefix: str = ""
    pod_cidrs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceRanges(LocalTrafficDetector):
    """Local is what comes from one of these ranges."""

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
    """Local is what comes in by one of these interfaces; ``prefixes`` stand for many each."""

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
    """Local is what came in through a port of a bridge; any, or one of these prefixes."""

    prefixes: tuple[str, ...] = ()

    @override
    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        """One for each prefix, or one for all; to nft they are the same."""
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
    """One way of detecting: which settings it uses, and how it is made of them."""

    make: Callable[[DetectorSettings], LocalTrafficDetector]
    uses: tuple[str, ...] = ()


# The seed's words, then kube-proxy's own: those take one range for each family, and one interface.
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
    """Whether a mode of ours has nothing to go by until the Node has its pod ranges."""
    known = MODES.get(mode)
    return (
        known is not None
        and "pod_cidrs" in known.uses
        and not ("node_cidrs" in known.uses and given.node_cidrs)
    )


def for_family(detector: LocalTrafficDetector, family: IpFamily) -> LocalTrafficDetector:
    """The detector, or NOTHING_LOCAL where it has nothing to say of the family."""
    return detector if detector.matches(family) else NOTHING_LOCAL


def of_family(ranges: Sequence[str], family: IpFamily) -> tuple[str, ...]:
    """The ranges of one family, each once, in their order."""
    colon = family is IpFamily.IPV6
    return tuple(dict.fromkeys(each for each in ranges if (":" in each) == colon))


def first_of_each(ranges: Sequence[str]) -> tuple[str, ...]:
    """The first range of each family, as kube-proxy takes them."""
    return tuple(each for family in IpFamily for each in of_family(ranges, family)[:1])


def tidy_range(text: str) -> str:
    """A range as the rules write it: without the bits below its prefix, which Go's reader drops.

    Raises:
        ValueError: it is none; a clause that goes behind the text.
    """
    address, slash, length = text.strip().partition("/")
    if not slash:
        raise ValueError(f"has no prefix length, such as {address}/24")
    try:
        if not (length.isascii() and length.isdigit()) or "%" in address:
            raise ValueError
        return str(ip_network(f"{address}/{length}", strict=False))
    except ValueError:
        raise ValueError("is not a range of addresses, such as 10.0.0.0/16 or fd00::/48") from None
