"""Which packets come from a pod of this node: the one interface, and what it answers.

The detectors themselves are in detecting.py; a new one is a class there and a line in its table,
or an entry point of another package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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


#: The bit of the packet mark by which nft tells what came in through a bridge port.
BRIDGE_MARK_BIT = 12


@dataclass(frozen=True, slots=True)
class NoDetector:
    """Cannot tell: nothing to a cluster IP is masqueraded, and no pod is taken for one."""

    def matches(self, family: IpFamily) -> tuple[LocalMatch, ...]:
        """Nothing."""
        return ()

    @property
    def bridge_ports(self) -> None:
        """No bridges."""
        return None


NOTHING_LOCAL = NoDetector()
