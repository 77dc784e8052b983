"""What a rule is, and the small things that rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from isthmus.hosting.model import (
    Finding,
    HostedCluster,
    Place,
    Publishing,
    Service,
    Strategy,
    Weight,
)
from isthmus.text.addresses import reached

CRD = "the CRD"
CONTROLLER = "the controller"
BOTH = "the CRD and the controller"

_SECTIONS = {
    Strategy.LOAD_BALANCER: "loadBalancer",
    Strategy.NODE_PORT: "nodePort",
    Strategy.ROUTE: "route",
}


class Broken(NamedTuple):
    """One place where a rule does not hold."""

    says: str
    do: str
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Something that a cluster has to obey, or that is worth saying.

    ``name`` never changes once published; ``means`` is a sentence for the table of the documents.
    """

    name: str
    weight: Weight
    means: str
    missed_by: str = ""
    find: Callable[[HostedCluster], Iterator[Broken]]

    def findings(self, cluster: HostedCluster) -> list[Finding]:
        """Every place where it does not hold."""
        return [
            Finding(
                rule=self.name,
                weight=self.weight,
                says=broken.says,
                do=broken.do,
                place=broken.place,
                missed_by=self.missed_by,
            )
            for broken in self.find(cluster)
        ]


def place(cluster: HostedCluster, path: str) -> Place:
    """Where a field is, or would be: the line of the nearest one above it that there is."""
    above = path
    while above and above not in cluster.places:
        above = above.rpartition(".")[0] if not above.endswith("]") else above.rpartition("[")[0]
    known = cluster.places.get(above)
    return Place(known.line if known else 0, path)


def in_entry(cluster: HostedCluster, entry: Publishing, inside: str = "") -> Place:
    """Where a field of an entry of spec.services is."""
    below = entry.place.field or "spec.services"
    path = f"{below}.servicePublishingStrategy{inside}"
    found = place(cluster, path)
    return found if found.line else Place(entry.place.line, path)


def of_section(cluster: HostedCluster, entry: Publishing, field: str) -> Place:
    """Where a field of the section of an entry's strategy is."""
    return in_entry(cluster, entry, f".{section(entry.strategy)}.{field}")


def section(strategy: Strategy) -> str:
    """The name of the section that goes with a strategy; empty when it has none."""
    return _SECTIONS.get(strategy, "")


def entries(cluster: HostedCluster, *services: Service) -> list[Publishing]:
    """The entries for these services."""
    return [entry for entry in cluster.services if entry.service in services]


def words(values: Iterable[Strategy | Service]) -> str:
    """Names for a sentence: A, B or C."""
    *first, last = [each.value for each in values]
    return f"{', '.join(first)} or {last}" if first else last


def contains(cidr: str, address: str) -> bool:
    """Whether an address is in a range."""
    return any(each in ip_network(cidr) for each in reached(address))


def overlap(one: str, other: str) -> bool:
    """Whether two ranges have addresses in common."""
    left, right = _network(one), _network(other)
    return left.version == right.version and bool(left.overlaps(right))


def _network(cidr: str) -> IPv4Network | IPv6Network:
    return ip_network(cidr)
