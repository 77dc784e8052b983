"""The contents of a plan's picture, as values: viewpoints, and the endpoints they reach.

picture_svg.py does the layout; there are no coordinates here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from isthmus.hosting.endpoints import address_text
from isthmus.hosting.model import (
    ControlPlaneService,
    HostedCluster,
    PlannedEndpoint,
    PublishPlan,
    Strategy,
    Viewpoint,
    Weight,
)
from isthmus.hosting.models import V1BETA1
from isthmus.hosting.visibility import is_published

MAX_CIDRS = 6
MAX_ERRORS = 6


class CidrHold(Enum):
    """Whether the allowed CIDR blocks apply to a group."""

    NOT_ASKED = ""
    HELD = "allowed CIDR blocks only"
    OPEN = "allowed CIDR blocks do not apply"


class NoteSign(Enum):
    """What a note explains."""

    DOT = "dot"
    WALL = "wall"
    ALARM = "alarm"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standpoint:
    """A viewpoint, and who is there."""

    viewpoint: Viewpoint
    name: str
    who: str
    ranges: tuple[str, ...] = ()
    reaches: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointText:
    """The texts of one endpoint."""

    service: str
    strategy: str
    address: str
    by: str

    @property
    def heading(self) -> tuple[str, str]:
        """The service and its strategy."""
        return self.service, self.strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointGroup:
    """Endpoints with the same clients and the same way; ``through`` is what they share."""

    endpoints: tuple[EndpointText, ...]
    seen: frozenset[Viewpoint]
    through: str = ""
    hold: CidrHold = CidrHold.NOT_ASKED

    @property
    def farthest(self) -> Viewpoint:
        """The outermost viewpoint that reaches it."""
        return min(self.seen, key=tuple(Viewpoint).index, default=Viewpoint.SAME_CLUSTER)

    @property
    def inside(self) -> bool:
        return not any(one.strategy for one in self.endpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPicture:
    """A whole plan. Gates that more viewpoints reach come first."""

    name: str
    title: str
    standpoints: tuple[Standpoint, ...]
    groups: tuple[EndpointGroup, ...]
    notes: tuple[tuple[NoteSign, str], ...]
    errors: tuple[str, ...]


def picture(plan: PublishPlan) -> PlanPicture:
    groups = tuple(sorted(_groups(plan), key=_rank))
    cluster = plan.cluster
    return PlanPicture(
        name=cluster.name,
        title=_title(cluster),
        standpoints=tuple(_standpoints(cluster, groups)),
        groups=groups,
        notes=tuple(_notes(plan, groups)),
        errors=tuple(_errors(plan)),
    )


def _title(cluster: HostedCluster) -> str:
    access = f", {cluster.access.value}" if cluster.platform in cluster.model.with_access else ""
    version = "" if cluster.model is V1BETA1 else f" ({cluster.model.version})"
    return f"Who reaches its control plane: {cluster.platform.value}{access}{version}"


def _groups(plan: PublishPlan) -> Iterator[EndpointGroup]:
    """Group endpoints that share an address, or that are unpublished for the same viewpoints."""
    found: dict[tuple[object, ...], list[PlannedEndpoint]] = {}
    for number, each in enumerate(plan.endpoints):
        alone = not each.through and each.strategy is not Strategy.NONE
        key = (number if alone else each.through, each.visible_from, each.restricted)
        found.setdefault(key, []).append(each)
    for same in found.values():
        yield EndpointGroup(
            endpoints=tuple(map(_item, same)),
            seen=same[0].visible_from,
            through=same[0].through,
            hold=_hold(plan.cluster, same[0]),
        )


def _item(endpoint: PlannedEndpoint) -> EndpointText:
    inside = endpoint.strategy is Strategy.NONE
    name = endpoint.by.partition("/")[2]  # its name within its own namespace
    return EndpointText(
        service=endpoint.service.value,
        strategy="" if inside else endpoint.strategy.value,
        address=f"{name}:{endpoint.port}" if inside else address_text(endpoint),
        by=endpoint.by,
    )


def _hold(cluster: HostedCluster, endpoint: PlannedEndpoint) -> CidrHold:
    if not cluster.allowed_cidrs or not is_published(endpoint):
        return CidrHold.NOT_ASKED
    return CidrHold.HELD if endpoint.restricted else CidrHold.OPEN


def _rank(group: EndpointGroup) -> tuple[bool, int]:
    return group.inside, tuple(Viewpoint).index(group.farthest)


_WHO: Mapping[Viewpoint, str] = {
    Viewpoint.INTERNET: "everybody",
    Viewpoint.GUEST_VPC: "nodes and users",
    Viewpoint.MANAGEMENT: "the operator, other namespaces",
    Viewpoint.SAME_CLUSTER: "the control plane's own pods",
}


def _standpoints(cluster: HostedCluster, groups: Sequence[EndpointGroup]) -> Iterator[Standpoint]:
    reached = {place for group in groups for place in group.seen}
    for place in Viewpoint:
        namespace = place is Viewpoint.SAME_CLUSTER
        yield Standpoint(
            viewpoint=place,
            name=f"namespace {cluster.control_plane}" if namespace else place.value,
            who=_WHO[place] if place in reached or not groups else "no way in from here",
            ranges=_first(cluster.machine_cidrs) if place is Viewpoint.GUEST_VPC else (),
            reaches=place in reached,
        )


def _first(texts: tuple[str, ...]) -> tuple[str, ...]:
    more = len(texts) - MAX_CIDRS
    return texts if more <= 0 else (*texts[:MAX_CIDRS], f"and {more} more")


def _notes(plan: PublishPlan, groups: Sequence[EndpointGroup]) -> Iterator[tuple[NoteSign, str]]:
    if groups:
        yield NoteSign.DOT, "a dot: the endpoint is reached from there"
    if any(group.hold is CidrHold.HELD for group in groups):
        yield NoteSign.WALL, f"a wall: only from {', '.join(_first(plan.cluster.allowed_cidrs))}"
    without = [each for each in plan.cluster.services if each.service not in _reached(plan)]
    if groups and without:
        names = ", ".join(f"{each.service.value} ({each.strategy.value})" for each in without)
        yield NoteSign.NONE, f"No endpoint is made for {names}."
    warnings = sum(each.weight is Weight.WARNING for each in plan.findings)
    if warnings:
        counted = "1 warning" if warnings == 1 else f"{warnings} warnings"
        yield NoteSign.ALARM, f"{counted}: isthmus publish check says which"


def _reached(plan: PublishPlan) -> frozenset[ControlPlaneService]:
    return frozenset(each.service for each in plan.endpoints)


def _errors(plan: PublishPlan) -> Iterator[str]:
    for each in plan.errors[:MAX_ERRORS]:
        line = f"line {each.place.line}: " if each.place.line else ""
        yield f"{line}{each.says}"
    more = len(plan.errors) - MAX_ERRORS
    if more > 0:
        yield f"and {more} more"
