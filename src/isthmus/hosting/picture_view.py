"""What is to be drawn of a plan, as values: who stands where, and the gates they come through.

How it looks is up to picture.py; nothing here knows a coordinate.
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
from isthmus.hosting.visibility import WITH_ACCESS, is_published

MAX_CIDRS = 6
MAX_ERRORS = 6


class Hold(Enum):
    """Whether the allowed CIDR blocks hold at a gate."""

    NOT_ASKED = ""
    HELD = "allowed CIDR blocks only"
    OPEN = "allowed CIDR blocks do not hold"


class Sign(Enum):
    """What a note explains."""

    DOT = "dot"
    WALL = "wall"
    ALARM = "alarm"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """A place where somebody may stand, and who that is."""

    place: Viewpoint
    name: str
    who: str
    ranges: tuple[str, ...] = ()
    reaches: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One endpoint as it is written down."""

    service: str
    strategy: str
    address: str
    by: str

    @property
    def heading(self) -> tuple[str, str]:
        """What it is of, and how that is published."""
        return self.service, self.strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Endpoints that the same people reach in the same way; ``through`` is what they share."""

    items: tuple[Item, ...]
    seen: frozenset[Viewpoint]
    through: str = ""
    hold: Hold = Hold.NOT_ASKED

    @property
    def farthest(self) -> Viewpoint:
        """The place farthest out from which it is reached."""
        return min(self.seen, key=tuple(Viewpoint).index, default=Viewpoint.SAME_CLUSTER)

    @property
    def inside(self) -> bool:
        """Whether it is not published, but a Service that the management cluster has anyway."""
        return not any(item.strategy for item in self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A whole plan. Gates that more people reach come first."""

    name: str
    title: str
    stands: tuple[Stand, ...]
    gates: tuple[Gate, ...]
    notes: tuple[tuple[Sign, str], ...]
    errors: tuple[str, ...]


def view(plan: PublishPlan) -> View:
    """Say what is to be drawn."""
    gates = tuple(sorted(_gates(plan), key=_rank))
    cluster = plan.cluster
    return View(
        name=cluster.name,
        title=_title(cluster),
        stands=tuple(_stands(cluster, gates)),
        gates=gates,
        notes=tuple(_notes(plan, gates)),
        errors=tuple(_errors(plan)),
    )


def _title(cluster: HostedCluster) -> str:
    access = f", {cluster.access.value}" if cluster.platform in WITH_ACCESS else ""
    return f"Who reaches its control plane: {cluster.platform.value}{access}"


def _gates(plan: PublishPlan) -> Iterator[Gate]:
    """Put those together that share an address, or that are not published to the same people."""
    found: dict[tuple[object, ...], list[PlannedEndpoint]] = {}
    for number, each in enumerate(plan.endpoints):
        alone = not each.through and each.strategy is not Strategy.NONE
        key = (number if alone else each.through, each.visible_from, each.restricted)
        found.setdefault(key, []).append(each)
    for same in found.values():
        yield Gate(
            items=tuple(map(_item, same)),
            seen=same[0].visible_from,
            through=same[0].through,
            hold=_hold(plan.cluster, same[0]),
        )


def _item(endpoint: PlannedEndpoint) -> Item:
    inside = endpoint.strategy is Strategy.NONE
    name = endpoint.by.partition("/")[2]  # in its own namespace it is known by that
    return Item(
        service=endpoint.service.value,
        strategy="" if inside else endpoint.strategy.value,
        address=f"{name}:{endpoint.port}" if inside else address_text(endpoint),
        by=endpoint.by,
    )


def _hold(cluster: HostedCluster, endpoint: PlannedEndpoint) -> Hold:
    if not cluster.allowed_cidrs or not is_published(endpoint):
        return Hold.NOT_ASKED
    return Hold.HELD if endpoint.restricted else Hold.OPEN


def _rank(gate: Gate) -> tuple[bool, int]:
    return gate.inside, tuple(Viewpoint).index(gate.farthest)


_WHO: Mapping[Viewpoint, str] = {
    Viewpoint.INTERNET: "everybody",
    Viewpoint.GUEST_VPC: "nodes and users",
    Viewpoint.MANAGEMENT: "the operator, other namespaces",
    Viewpoint.SAME_CLUSTER: "the control plane's own pods",
}


def _stands(cluster: HostedCluster, gates: Sequence[Gate]) -> Iterator[Stand]:
    reached = {place for gate in gates for place in gate.seen}
    for place in Viewpoint:
        namespace = place is Viewpoint.SAME_CLUSTER
        yield Stand(
            place=place,
            name=f"namespace {cluster.control_plane}" if namespace else place.value,
            who=_WHO[place] if place in reached or not gates else "no way in from here",
            ranges=_first(cluster.machine_cidrs) if place is Viewpoint.GUEST_VPC else (),
            reaches=place in reached,
        )


def _first(texts: tuple[str, ...]) -> tuple[str, ...]:
    more = len(texts) - MAX_CIDRS
    return texts if more <= 0 else (*texts[:MAX_CIDRS], f"and {more} more")


def _notes(plan: PublishPlan, gates: Sequence[Gate]) -> Iterator[tuple[Sign, str]]:
    if gates:
        yield Sign.DOT, "a dot: the endpoint is reached from there"
    if any(gate.hold is Hold.HELD for gate in gates):
        yield Sign.WALL, f"a wall: only from {', '.join(_first(plan.cluster.allowed_cidrs))}"
    without = [each for each in plan.cluster.services if each.service not in _reached(plan)]
    if gates and without:
        names = ", ".join(f"{each.service.value} ({each.strategy.value})" for each in without)
        yield Sign.NONE, f"No endpoint is made for {names}."
    warnings = sum(each.weight is Weight.WARNING for each in plan.findings)
    if warnings:
        counted = "1 warning" if warnings == 1 else f"{warnings} warnings"
        yield Sign.ALARM, f"{counted}: isthmus publish check says which"


def _reached(plan: PublishPlan) -> frozenset[ControlPlaneService]:
    return frozenset(each.service for each in plan.endpoints)


def _errors(plan: PublishPlan) -> Iterator[str]:
    for each in plan.errors[:MAX_ERRORS]:
        line = f"line {each.place.line}: " if each.place.line else ""
        yield f"{line}{each.says}"
    more = len(plan.errors) - MAX_ERRORS
    if more > 0:
        yield f"and {more} more"
