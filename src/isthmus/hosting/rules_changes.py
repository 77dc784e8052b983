"""Rules about a change: what cannot become something else while the cluster exists.

Most of it the CRD refuses. Where a field is added or removed, the CRD compares nothing; this
module compares what takes effect. The steps of a possible change are in changes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from isthmus.hosting.model import EndpointAccess, HostedCluster, Platform, Publishing, PublishPlan

_FIXED = "it is immutable"
_AZURE = "spec.platform.azure"
_OPERATOR = "spec.operatorConfiguration.clusterNetworkOperator"

Value = str | int | bool | tuple[str, ...] | None


class FieldChange(NamedTuple):
    """A field that cannot change as it would, and why."""

    field: str
    says: str


class FixedField(NamedTuple):
    """A field whose value stays once there is one; ``also_added``: where there was none, too."""

    value: Callable[[HostedCluster], Value]
    why: str = _FIXED
    also_added: bool = False


#: By the path of the field, in the order of the document.
FIXED: Final[Mapping[str, FixedField]] = {
    "spec.clusterID": FixedField(lambda it: it.cluster_id),
    "spec.dns.baseDomain": FixedField(lambda it: it.base_domain),
    "spec.dns.baseDomainPrefix": FixedField(
        lambda it: None if it.base_domain_prefix is None else f'"{it.base_domain_prefix}"'
    ),
    "spec.networking.machineNetwork": FixedField(lambda it: it.machine_cidrs),
    "spec.networking.clusterNetwork": FixedField(lambda it: it.cluster_cidrs),
    "spec.networking.serviceNetwork": FixedField(lambda it: it.service_cidrs),
    "spec.networking.networkType": FixedField(
        lambda it: it.guest_network.type,
        "it is meant to be immutable, and nothing moves a cluster's pods to another network",
    ),
    "spec.networking.allocateNodeCIDRs": FixedField(
        lambda it: it.guest_network.allocates_node_cidrs
    ),
    "spec.networking.apiServer.advertiseAddress": FixedField(lambda it: it.advertise_address),
    "spec.networking.apiServer.port": FixedField(lambda it: it.api_port),
    f"{_OPERATOR}.disableMultiNetwork": FixedField(lambda it: it.guest_network.without_multus),
    f"{_AZURE}.private.type": FixedField(
        lambda it: it.azure_private_type,
        "a private connection is there from the beginning, or never",
        also_added=True,
    ),
}


def refusals(old: PublishPlan, new: PublishPlan) -> Iterator[FieldChange]:
    """The fields that cannot change so, and why."""
    for plan, which in ((old, "old"), (new, "new")):
        if plan.errors:
            yield FieldChange(
                "document", f"the {which} document has errors, so nothing follows from it"
            )
    yield from _another(old.cluster, new.cluster)
    yield from _topology(old.cluster, new.cluster)
    yield from _fixed(old.cluster, new.cluster)
    yield from _subnets(old.cluster, new.cluster)
    yield from _services(old.cluster, new.cluster)


def _another(old: HostedCluster, new: HostedCluster) -> Iterator[FieldChange]:
    if (old.name, old.namespace, old.control_plane) != (
        new.name,
        new.namespace,
        new.control_plane,
    ):
        yield FieldChange(
            "metadata",
            f"{new.namespace}/{new.name} is another cluster than {old.namespace}/{old.name}",
        )
    if old.platform is not new.platform:
        yield FieldChange(
            "spec.platform.type",
            f"a cluster on {old.platform.value} cannot become one on {new.platform.value}",
        )


def _fixed(old: HostedCluster, new: HostedCluster) -> Iterator[FieldChange]:
    for path, fixed in FIXED.items():
        before, after = fixed.value(old), fixed.value(new)
        was, is_ = before not in (None, "", ()), after not in (None, "", ())
        if before != after and (fixed.also_added or (was and (is_ or path not in _OPTIONAL))):
            yield FieldChange(path, f"{_shown(before)} cannot become {_shown(after)}: {fixed.why}")


#: Where nothing depends on it whether the document says it.
_OPTIONAL: Final = frozenset(
    {"spec.clusterID", "spec.dns.baseDomainPrefix", "spec.networking.machineNetwork"}
)


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "nothing"
    return "nothing" if value in (None, "") else str(value)


def _subnets(old: HostedCluster, new: HostedCluster) -> Iterator[FieldChange]:
    """OVN-Kubernetes keeps the ranges that it was told once."""
    config = f"{_OPERATOR}.ovnKubernetesConfig"
    if config in old.places and config not in new.places:
        yield FieldChange(config, "it cannot be removed: what it says is immutable")
        return
    after = new.guest_network.subnets
    for path, cidr in old.guest_network.subnets.items():
        # Two of IPv4 can be moved; a default of HyperShift's was not told.
        movable = ".ipv4." in path
        if path in old.places and after.get(path) != cidr and not movable:
            yield FieldChange(path, f"{cidr} cannot become {_shown(after.get(path))}: {_FIXED}")


def _services(old: HostedCluster, new: HostedCluster) -> Iterator[FieldChange]:
    if Platform.IBMCLOUD in (old.platform, new.platform):
        return
    before, after = _said(old), _said(new)
    if before == after:
        return
    changed = sorted({entry[0] for entry in {*before} ^ {*after}})
    would = (
        f"{', '.join(changed)} would change"
        if changed
        else "it compares the order of the entries too"
    )
    yield FieldChange(
        "spec.services",
        f"the CRD lets it change on IBMCloud only, and {would}:"
        " make the cluster anew, or apply the steps where no HyperShift looks after it",
    )


def _said(cluster: HostedCluster) -> tuple[tuple[str, ...], ...]:
    return tuple(_entry(each) for each in cluster.services)


def _entry(publishing: Publishing) -> tuple[str, ...]:
    return (
        publishing.service.value,
        publishing.strategy.value,
        publishing.hostname,
        publishing.node_address,
        str(publishing.node_port),
        *sorted(publishing.has),
    )


def _topology(old: HostedCluster, new: HostedCluster) -> Iterator[FieldChange]:
    if not old.platform is new.platform is Platform.AZURE:
        return
    if old.has_access and not new.has_access:
        yield FieldChange(f"{_AZURE}.topology", "it cannot be removed once it is there")
    public = EndpointAccess.PUBLIC
    if (old.access is public) != (new.access is public):
        yield FieldChange(
            f"{_AZURE}.topology",
            f"{old.access.value} cannot become {new.access.value}: Azure goes between"
            " PublicAndPrivate and Private only",
        )
