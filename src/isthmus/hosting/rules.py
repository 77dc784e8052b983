"""What a rule is, and what rules share: places in the document, and what publishes which service.

The table of services and strategies is what the control plane operator does. What a platform or a
topology forbids on top of it is in rules_platforms.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final, NamedTuple

from isthmus.hosting.model import (
    ControlPlaneService,
    DocumentPlace,
    HostedCluster,
    PlanFinding,
    Platform,
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

#: Services that HyperShift still lists and does nothing about.
UNUSED: Final = frozenset({ControlPlaneService.OIDC, ControlPlaneService.OVN_SB_DB})
#: Services that have to be published.
REQUIRED: Final = (
    ControlPlaneService.API_SERVER,
    ControlPlaneService.OAUTH_SERVER,
    ControlPlaneService.KONNECTIVITY,
    ControlPlaneService.IGNITION,
)


class RuleBreak(NamedTuple):
    """One place where a rule does not hold."""

    says: str
    do: str
    place: DocumentPlace


Find = Callable[[HostedCluster], Iterator[RuleBreak]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRule:
    """Something that a cluster has to obey, or that is worth saying.

    ``name`` never changes once published; ``means`` is a sentence for the table of the documents.
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
    """Rules in the order in which they are written down; each decorates what finds its breaks."""

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
    """Where a field is, or would be: the line of the nearest one above it that there is."""
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
    """The name of the section that goes with a strategy; empty when it has none."""
    return _SECTIONS.get(strategy, "")


def entries(cluster: HostedCluster, *services: ControlPlaneService) -> list[Publishing]:
    return [entry for entry in cluster.services if entry.service in services]


def words(values: Iterable[Strategy | ControlPlaneService]) -> str:
    """Names for a sentence: A, B or C."""
    *first, last = [each.value for each in values]
    return f"{', '.join(first)} or {last}" if first else last


def contains(cidr: str, address: str) -> bool:
    return any(each in ip_network(cidr) for each in reached(address))


def overlap(one: str, other: str) -> bool:
    left, right = _network(one), _network(other)
    return left.version == right.version and bool(left.overlaps(right))


def _network(cidr: str) -> IPv4Network | IPv6Network:
    return ip_network(cidr)


class StrategyVerdict(Enum):
    """What becomes of a service with a strategy."""

    PUBLISHED = "published"
    REFUSED = "refused"
    IGNORED = "ignored"


_YES: Final = StrategyVerdict.PUBLISHED
_NO: Final = StrategyVerdict.REFUSED
_IGNORED: Final = StrategyVerdict.IGNORED


#: Service → strategy → verdict. OAuthServer by LoadBalancer is published on Azure alone.
MATRIX: Final[Mapping[ControlPlaneService, Mapping[Strategy, StrategyVerdict]]] = {
    service: dict(zip(Strategy, verdicts, strict=True))
    for service, verdicts in {
        #                       LoadBalancer NodePort  Route     None      S3
        ControlPlaneService.API_SERVER: (_YES, _YES, _YES, _NO, _NO),
        ControlPlaneService.KONNECTIVITY: (_YES, _YES, _YES, _NO, _NO),
        ControlPlaneService.OAUTH_SERVER: (_YES, _YES, _YES, _NO, _NO),
        ControlPlaneService.IGNITION: (_NO, _YES, _YES, _NO, _NO),
        ControlPlaneService.OIDC: (_IGNORED,) * 5,
        ControlPlaneService.OVN_SB_DB: (_IGNORED,) * 5,
    }.items()
}


def verdict(
    service: ControlPlaneService, strategy: Strategy, platform: Platform
) -> StrategyVerdict:
    is_oauth_balancer = (service, strategy) == (
        ControlPlaneService.OAUTH_SERVER,
        Strategy.LOAD_BALANCER,
    )
    if is_oauth_balancer and platform is not Platform.AZURE:
        return StrategyVerdict.REFUSED
    return MATRIX[service][strategy]


def possible(service: ControlPlaneService, platform: Platform) -> tuple[Strategy, ...]:
    """The strategies that publish a service, for a sentence that says what to write instead."""
    published = StrategyVerdict.PUBLISHED
    return tuple(each for each in Strategy if verdict(service, each, platform) is published)


def required(platform: Platform) -> tuple[ControlPlaneService, ...]:
    """The services that have to be listed: IBM Cloud brings its nodes up without Ignition."""
    if platform is Platform.IBMCLOUD:
        return tuple(each for each in REQUIRED if each is not ControlPlaneService.IGNITION)
    return REQUIRED
