"""Changes that HyperShift does not make in place."""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.hosting.model import Access, HostedCluster, Plan, Platform, Publishing


def refusals(old: Plan, new: Plan) -> Iterator[tuple[str, str]]:
    """The field that cannot change so, and why."""
    for plan, which in ((old, "old"), (new, "new")):
        if plan.errors:
            yield "document", f"the {which} document has errors, so nothing follows from it"
    yield from _another(old.cluster, new.cluster)
    yield from _services(old.cluster, new.cluster)
    yield from _topology(old.cluster, new.cluster)


def _another(old: HostedCluster, new: HostedCluster) -> Iterator[tuple[str, str]]:
    if (old.name, old.namespace, old.control_plane) != (
        new.name,
        new.namespace,
        new.control_plane,
    ):
        yield (
            "metadata",
            f"{new.namespace}/{new.name} is another cluster than {old.namespace}/{old.name}",
        )
    if old.platform is not new.platform:
        yield (
            "spec.platform.type",
            f"a cluster on {old.platform.value} cannot become one on {new.platform.value}",
        )


def _services(old: HostedCluster, new: HostedCluster) -> Iterator[tuple[str, str]]:
    if Platform.IBMCLOUD in (old.platform, new.platform):
        return
    before, after = _said(old), _said(new)
    if before != after:
        changed = sorted({entry[0] for entry in before ^ after})
        yield (
            "spec.services",
            f"the CRD lets it change on IBMCloud only, and {', '.join(changed)} would change:"
            " make the cluster anew, or apply the steps where no HyperShift looks after it",
        )


def _said(cluster: HostedCluster) -> frozenset[tuple[str, ...]]:
    return frozenset(_entry(each) for each in cluster.services)


def _entry(publishing: Publishing) -> tuple[str, ...]:
    return (
        publishing.service.value,
        publishing.strategy.value,
        publishing.hostname,
        publishing.node_address,
        str(publishing.node_port),
    )


def _topology(old: HostedCluster, new: HostedCluster) -> Iterator[tuple[str, str]]:
    both_azure = old.platform is new.platform is Platform.AZURE
    if both_azure and (old.access is Access.PUBLIC) != (new.access is Access.PUBLIC):
        yield (
            "spec.platform.azure.topology",
            f"{old.access.value} cannot become {new.access.value}: Azure goes between"
            " PublicAndPrivate and Private only",
        )
