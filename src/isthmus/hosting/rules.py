"""Rules, and helpers that they share: locations in the document, texts, networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from isthmus.hosting.document_fields_v1alpha1 import SINGLE_CIDRS
from isthmus.hosting.model import (
    ControlPlaneService,
    DocumentPlace,
    HostedCluster,
    PlanFinding,
    Publishing,
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


class RuleBreak(NamedTuple):
    """One violation of a rule."""

    says: str
    do: str
    place: DocumentPlace


Find = Callable[[HostedCluster], Iterator[RuleBreak]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRule:
    """A requirement for a cluster, or a warning.

    ``name`` never changes once published; ``means`` is a sentence for the documentation's table.
    """

    name: str
    weight: Weight
    means: str
    missed_by: str = ""
    find: Find

    def findings(self, cluster: HostedCluster) -> list[PlanFinding]:
        return [
            PlanFinding(
                rule=self.name,
                weight=self.weight,
                says=broken.says,
                do=broken.do,
                place=broken.place,
                missed_by=self.missed_by,
            )
            for broken in self.find(cluster)
        ]


class RuleList(list[PlanRule]):
    """Rules in the order of definition; each decorates the function that finds violations."""

    def error(self, name: str, means: str, *, missed_by: str = "") -> Callable[[Find], Find]:
        return self._adding(Weight.ERROR, name, means, missed_by)

    def warning(self, name: str, means: str, *, missed_by: str = "") -> Callable[[Find], Find]:
        return self._adding(Weight.WARNING, name, means, missed_by)

    def note(self, name: str, means: str, *, missed_by: str = "") -> Callable[[Find], Find]:
        return self._adding(Weight.NOTE, name, means, missed_by)

    def _adding(
        self, weight: Weight, name: str, means: str, missed_by: str
    ) -> Callable[[Find], Find]:
        def add(find: Find) -> Find:
            rule = PlanRule(name=name, weight=weight, means=means, missed_by=missed_by, find=find)
            self.append(rule)
            return find

        return add


def place(cluster: HostedCluster, path: str) -> DocumentPlace:
    """Where a field is, or would be: the line of its nearest existing parent."""
    for listed, single in SINGLE_CIDRS.items():
        if path.startswith(f"{listed}[") and single in cluster.places:
            return cluster.places[single]
    above = path
    while above and above not in cluster.places:
        above = above.rpartition(".")[0] if not above.endswith("]") else above.rpartition("[")[0]
    known = cluster.places.get(above)
    return DocumentPlace(known.line if known else 0, path)


def in_entry(cluster: HostedCluster, entry: Publishing, inside: str = "") -> DocumentPlace:
    below = entry.place.field or "spec.services"
    path = f"{below}.servicePublishingStrategy{inside}"
    found = place(cluster, path)
    return found if found.line else DocumentPlace(entry.place.line, path)


def of_section(cluster: HostedCluster, entry: Publishing, field: str) -> DocumentPlace:
    return in_entry(cluster, entry, f".{section(entry.strategy)}.{field}")


def section(strategy: Strategy) -> str:
    """The name of a strategy's section; empty if it has none."""
    return _SECTIONS.get(strategy, "")


def entries(cluster: HostedCluster, *services: ControlPlaneService) -> list[Publishing]:
    return [entry for entry in cluster.services if entry.service in services]


def words(values: Iterable[Strategy | ControlPlaneService]) -> str:
    """Names as a list for a sentence: A, B or C."""
    *first, last = [each.value for each in values]
    return f"{', '.join(first)} or {last}" if first else last


def networks(cluster: HostedCluster) -> Iterator[tuple[str, str]]:
    """All networks of the cluster, with the paths of their fields."""
    kinds = {
        "machine": cluster.machine_cidrs,
        "cluster": cluster.cluster_cidrs,
        "service": cluster.service_cidrs,
    }
    for kind, cidrs in kinds.items():
        for index, cidr in enumerate(cidrs):
            yield f"spec.networking.{kind}Network[{index}].cidr", cidr


def contains(cidr: str, address: str) -> bool:
    return any(each in ip_network(cidr) for each in reached(address))


def overlap(one: str, other: str) -> bool:
    left, right = _network(one), _network(other)
    return left.version == right.version and bool(left.overlaps(right))


def _network(cidr: str) -> IPv4Network | IPv6Network:
    return ip_network(cidr)
