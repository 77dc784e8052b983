"""One cluster by both models, service by service: to whom each shows what the document lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from isthmus.hosting.model import (
    ControlPlaneService,
    HostedCluster,
    PlanFinding,
    Publishing,
    PublishingModel,
    Strategy,
    StrategyVerdict,
    Weight,
)
from isthmus.hosting.models import MODELS
from isthmus.hosting.plan import check
from isthmus.hosting.visibility import (
    PUBLIC_SHARD,
    ServiceSides,
    has_to_be_listed,
    is_internal_balancer,
    is_sharded,
    sides,
)

NOT_LISTED, MISSING = "not listed", "has to be listed"
NO_EFFECT, HIDDEN = "no effect", "not published"
NODES = "whoever reaches the management cluster's nodes"
EVERYBODY, GUEST = "everybody", "the guest's network"

_SIDES: Mapping[ServiceSides, str] = {
    ServiceSides(public=True, private=False): EVERYBODY,
    ServiceSides(public=True, private=True): f"{EVERYBODY}, and {GUEST} by a way of its own",
    ServiceSides(public=False, private=True): GUEST,
}
_WORDS: Mapping[StrategyVerdict, str] = {
    StrategyVerdict.REFUSED: "refused",
    StrategyVerdict.IGNORED: NO_EFFECT,
    StrategyVerdict.HIDDEN: HIDDEN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedService:
    """A service, how the document publishes it, and to whom that shows it by each version."""

    service: ControlPlaneService
    by: str
    shown: Mapping[str, str]

    @property
    def differs(self) -> bool:
        return len(set(self.shown.values())) > 1


def compare(cluster: HostedCluster) -> tuple[ComparedService, ...]:
    """Every service that is listed, or that a version wants to be listed."""
    columns = {name: _column(replace(cluster, model=model)) for name, model in MODELS.items()}
    found = []
    for service in ControlPlaneService:
        shown = {MODELS[name].version: column[service] for name, column in columns.items()}
        entry = cluster.publishing(service)
        if entry is not None or set(shown.values()) != {NOT_LISTED}:
            by = entry.strategy.value if entry is not None else "-"
            found.append(ComparedService(service=service, by=by, shown=shown))
    return tuple(found)


def _column(cluster: HostedCluster) -> dict[ControlPlaneService, str]:
    errors = [each for each in check(cluster) if each.weight is Weight.ERROR]
    return {service: _standing(cluster, service, errors) for service in ControlPlaneService}


def _standing(
    cluster: HostedCluster, service: ControlPlaneService, errors: list[PlanFinding]
) -> str:
    entry = cluster.publishing(service)
    if entry is None:
        return MISSING if has_to_be_listed(cluster, service) else NOT_LISTED
    field = entry.place.field
    wrong = [each.rule for each in errors if field and each.place.field.startswith(f"{field}.")]
    return f"refused ({wrong[0]})" if wrong else standing(cluster, entry)


def standing(cluster: HostedCluster, entry: Publishing) -> str:
    """To whom the model of a cluster shows an entry against which there is no rule."""
    verdict = cluster.model.verdict(entry.service, entry.strategy, cluster.platform)
    if verdict is not StrategyVerdict.PUBLISHED:
        return _WORDS[verdict]
    api = entry.service is ControlPlaneService.API_SERVER
    match entry.strategy:
        case Strategy.NODE_PORT:
            return NODES
        case Strategy.S3:
            return f"{EVERYBODY}, from a bucket"
        case Strategy.LOAD_BALANCER if not api:
            return GUEST if is_internal_balancer(cluster, entry.service) else EVERYBODY
    shown = _SIDES[sides(cluster, entry.service)]
    sharded = is_sharded(cluster, entry.service) and entry.strategy is Strategy.ROUTE
    return f"{shown}, by the {PUBLIC_SHARD}" if sharded else shown


def comparison_lines(cluster: HostedCluster) -> Iterator[str]:
    """The comparison as lines of even columns, with the version that applies to the document."""
    compared, model = compare(cluster), cluster.model
    yield f"The document is of {model.api_version}, so the column {model.version} applies:"
    rows = [("service", "by", *(each.version for each in MODELS.values()))]
    rows += [(each.service.value, each.by, *each.shown.values()) for each in compared]
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()


def changed_sight(cluster: HostedCluster, to: PublishingModel) -> Iterator[str]:
    """A sentence for each service that another model shows to others."""
    for each in compare(cluster):
        if each.differs:
            by = (cluster.model.version, to.version)
            shown = "; ".join(f"{each.shown[version]} ({version})" for version in by)
            yield f"{each.service.value} by {each.by}: {shown}"
