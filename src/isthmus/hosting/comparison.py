"""One cluster in both API versions: who sees each service, and what one version refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from isthmus.hosting.document import TREES
from isthmus.hosting.document_fields import Tree
from isthmus.hosting.document_fields_v1alpha1 import SINGLE_CIDRS
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
from isthmus.hosting.models import MODELS, V1BETA1, other_model
from isthmus.hosting.plan import check
from isthmus.hosting.visibility import (
    PUBLIC_SHARD,
    ServiceSides,
    has_to_be_listed,
    is_internal_balancer,
    is_sharded,
    sides,
)

NOT_LISTED, MISSING = "not listed", "must be listed"
NO_EFFECT, HIDDEN = "no effect", "not published"
NODES = "whoever reaches the management cluster's nodes"
EVERYBODY, GUEST = "everybody", "the guest's network"

_SIDES: Mapping[ServiceSides, str] = {
    ServiceSides(public=True, private=False): EVERYBODY,
    ServiceSides(public=True, private=True): f"{EVERYBODY}, and {GUEST} separately",
    ServiceSides(public=False, private=True): GUEST,
}
_SERVICES = "spec.services"
_MOST_REFUSED = 6
_INDEX = re.compile(r"\[\d+\]")
_ROLES = "write the role's ARN to spec.platform.aws.rolesRef"
#: Advice for fields that have another form in the other version.
_INSTEAD = {
    "spec.configuration.items": "write each object's spec to its own field of spec.configuration",
    "spec.platform.aws.roles": _ROLES,
    "spec.platform.aws.kubeCloudControllerCreds": _ROLES,
    "spec.platform.aws.nodePoolManagementCreds": _ROLES,
    "spec.platform.aws.controlPlaneOperatorCreds": _ROLES,
}
_WORDS: Mapping[StrategyVerdict, str] = {
    StrategyVerdict.REFUSED: "refused",
    StrategyVerdict.IGNORED: NO_EFFECT,
    StrategyVerdict.HIDDEN: HIDDEN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedService:
    """A service, how the document publishes it, and who sees it in each version."""

    service: ControlPlaneService
    by: str
    shown: Mapping[str, str]

    @property
    def differs(self) -> bool:
        return len(set(self.shown.values())) > 1


def compare(cluster: HostedCluster) -> tuple[ComparedService, ...]:
    """Every service that is listed, or that a version requires."""
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
    """Who sees a valid entry in the model of a cluster."""
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
    """The comparison as aligned lines, with the version that applies to the document."""
    compared, model = compare(cluster), cluster.model
    yield f"The document is of {model.api_version}, so the column {model.version} applies:"
    rows = [("service", "by", *(each.version for each in MODELS.values()))]
    rows += [(each.service.value, each.by, *each.shown.values()) for each in compared]
    widths = [max(len(row[number]) for row in rows) for number in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield f"  {'  '.join(cells)}".rstrip()
    yield from _refused_elsewhere(cluster)


def _refused_elsewhere(cluster: HostedCluster) -> Iterator[str]:
    """The errors of the other version, besides those in the columns."""
    other = other_model(cluster.model)
    errors = [each for each in check(replace(cluster, model=other)) if each.weight is Weight.ERROR]
    found = [
        *(each for each in errors if not each.place.field.startswith(_SERVICES)),
        *without_counterpart(cluster, other),
    ]
    for each in found[:_MOST_REFUSED]:
        yield f"  {other.version} refuses {each.place.field}: {each.says}"
    if len(found) > _MOST_REFUSED:
        yield f"  and {len(found) - _MOST_REFUSED} more: isthmus publish convert shows all"


def changed_sight(cluster: HostedCluster, to: PublishingModel) -> Iterator[str]:
    """A sentence for each service that another model shows to others."""
    for each in compare(cluster):
        if each.differs:
            by = (cluster.model.version, to.version)
            shown = "; ".join(f"{each.shown[version]} ({version})" for version in by)
            yield f"{each.service.value} by {each.by}: {shown}"


def without_counterpart(cluster: HostedCluster, to: PublishingModel) -> Iterator[PlanFinding]:
    """The outermost fields that the other version does not have."""
    moved = set(SINGLE_CIDRS.values()) if to is V1BETA1 else set()
    said: set[str] = set()
    for path, place in cluster.places.items():
        if path in moved or _has(TREES[to.api_version], path):
            continue
        said.add(path)
        if _above(path) & said:
            continue
        yield PlanFinding(
            rule="no-counterpart",
            weight=Weight.ERROR,
            says=f"{to.version} has no such field",
            do=_INSTEAD.get(path, "remove it"),
            place=place,
        )
    for listed, single in SINGLE_CIDRS.items():
        if listed in cluster.places and single in moved & cluster.places.keys():
            yield PlanFinding(
                rule="no-counterpart",
                weight=Weight.ERROR,
                says=f"{to.version} has one of this list and {single.rpartition('.')[2]}",
                do="remove this list, which has no effect",
                place=cluster.places[listed],
            )


def _above(path: str) -> set[str]:
    return {path[: found.start()] for found in re.finditer(r"[.\[]", path)}


def _has(tree: Tree, path: str) -> bool:
    """Whether a version knows a field; fields below an ANY are not checked."""
    for name in _INDEX.sub(".", path).replace("..", ".").strip(".").split("."):
        while isinstance(tree, list):
            tree = tree[0]
        if tree is None:
            return True
        if name not in tree:
            return False
        tree = tree[name]
    return True
