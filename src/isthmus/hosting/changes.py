"""The steps from one plan to another, and whom each step interrupts.

New objects come first, then clients move to them, then unused objects are deleted. Two Routes
cannot share a name and two Services cannot share a node port: if a new object needs what an old one
holds, the old one is deleted first, and its step says so. Changes that cannot be made in place are
refused (``refusals``); the steps that follow show how to make them by hand. The CRD refuses most of
them too; if a field is added or removed the CRD compares nothing, and this module compares the
effective values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from isthmus.hosting.endpoints import Reacher, needs, where_is
from isthmus.hosting.model import (
    ControlPlaneService,
    EndpointAccess,
    HostedCluster,
    PlannedEndpoint,
    Platform,
    Publishing,
    PublishPlan,
)
from isthmus.hosting.shapes import CLUSTER_IP, LOAD_BALANCER, NODE_PORT, Manifest, key

_FIXED = "it is immutable"
_AZURE = "spec.platform.azure"
_OPERATOR = "spec.operatorConfiguration.clusterNetworkOperator"

Value = str | int | bool | tuple[str, ...] | None


class FieldChange(NamedTuple):
    """A change of a field that is refused, and why."""

    field: str
    says: str


class FixedField(NamedTuple):
    """A field that cannot change once it is set; ``also_added``: it cannot be added either."""

    value: Callable[[HostedCluster], Value]
    why: str = _FIXED
    also_added: bool = False


#: By field path, in the order of the document.
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
        "a private connection can only be set at creation",
        also_added=True,
    ),
}


def refusals(old: PublishPlan, new: PublishPlan) -> Iterator[FieldChange]:
    """The refused changes of fields, and why."""
    for plan, which in ((old, "old"), (new, "new")):
        if plan.errors:
            yield FieldChange("document", f"the {which} document has errors, so there is no plan")
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
            f"{new.namespace}/{new.name} is not the cluster {old.namespace}/{old.name}",
        )
    if old.platform is not new.platform:
        yield FieldChange(
            "spec.platform.type",
            f"a cluster on {old.platform.value} cannot move to {new.platform.value}",
        )


def _fixed(old: HostedCluster, new: HostedCluster) -> Iterator[FieldChange]:
    for path, fixed in FIXED.items():
        before, after = fixed.value(old), fixed.value(new)
        was, is_ = before not in (None, "", ()), after not in (None, "", ())
        if before != after and (fixed.also_added or (was and (is_ or path not in _OPTIONAL))):
            yield FieldChange(
                path, f"cannot change from {_shown(before)} to {_shown(after)}: {fixed.why}"
            )


#: Fields where it makes no difference whether the document sets the default.
_OPTIONAL: Final = frozenset(
    {"spec.clusterID", "spec.dns.baseDomainPrefix", "spec.networking.machineNetwork"}
)


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "nothing"
    return "nothing" if value in (None, "") else str(value)


def _subnets(old: HostedCluster, new: HostedCluster) -> Iterator[FieldChange]:
    """OVN-Kubernetes keeps the ranges that it was configured with first."""
    config = f"{_OPERATOR}.ovnKubernetesConfig"
    if config in old.places and config not in new.places:
        yield FieldChange(config, "cannot be removed: its value is immutable")
        return
    after = new.guest_network.subnets
    for path, cidr in old.guest_network.subnets.items():
        # Two IPv4 ranges can be moved; OVN-Kubernetes was not given HyperShift's default.
        movable = ".ipv4." in path
        if path in old.places and after.get(path) != cidr and not movable:
            yield FieldChange(
                path, f"cannot change from {cidr} to {_shown(after.get(path))}: {_FIXED}"
            )


def _services(old: HostedCluster, new: HostedCluster) -> Iterator[FieldChange]:
    if Platform.IBMCLOUD in (old.platform, new.platform):
        return
    before, after = _said(old), _said(new)
    if before == after:
        return
    changed = sorted({entry[0] for entry in {*before} ^ {*after}})
    would = f"{', '.join(changed)} would change" if changed else "the order of entries counts too"
    yield FieldChange(
        "spec.services",
        f"the CRD allows the change only on IBMCloud, and {would}:"
        " recreate the cluster, or apply the steps if HyperShift does not manage it",
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
        yield FieldChange(f"{_AZURE}.topology", "cannot be removed once it is set")
    public = EndpointAccess.PUBLIC
    if (old.access is public) != (new.access is public):
        yield FieldChange(
            f"{_AZURE}.topology",
            f"cannot change from {old.access.value} to {new.access.value}: Azure allows only"
            " changes between PublicAndPrivate and Private",
        )


Name = tuple[str, str, str]
Objects = dict[Name, Manifest]

_LEFT = "nothing uses it any more"


class ChangeKind(Enum):
    """The kind of a step."""

    REFUSE = "refuse"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    MOVE = "move"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStep:
    """One step. ``what`` is an object, ``Kind/name``, or the service whose clients move.

    ``manifest`` is the new object, or the one to be deleted. ``interrupts`` says who cannot do
    what, and for how long; empty if no client notices.
    """

    act: ChangeKind
    what: str
    says: str
    interrupts: str = ""
    manifest: Manifest | None = None


def changes(old: PublishPlan, new: PublishPlan) -> tuple[ChangeStep, ...]:
    """The steps from one plan to the other, in order; none if nothing changes."""
    refused = [
        ChangeStep(act=ChangeKind.REFUSE, what=what, says=says) for what, says in refusals(old, new)
    ]
    before, after = _named(old.objects), _named(new.objects)
    made, updated, deleted = _split(_in_order(before, after))
    later = {step.what for step in updated}
    early: list[ChangeStep] = []
    late: list[ChangeStep] = []
    for move in moves(old, new):
        step = ChangeStep(
            act=ChangeKind.MOVE, what=move.what, says=move.says, interrupts=move.interrupts
        )
        (late if move.after & later else early).append(step)
    return (*refused, *made, *early, *updated, *late, *deleted)


def apply_steps(objects: Iterable[Manifest], steps: Iterable[ChangeStep]) -> tuple[Manifest, ...]:
    """The objects that exist after some steps."""
    found = _named(objects)
    for step in steps:
        if step.manifest is None:
            continue
        if step.act is ChangeKind.DELETE:
            del found[_name(step.manifest)]
        else:
            found[_name(step.manifest)] = step.manifest
    return tuple(found.values())


def _name(manifest: Manifest) -> Name:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata["namespace"], metadata["name"]


def _named(objects: Iterable[Manifest]) -> Objects:
    return {_name(each): each for each in objects}


def claims(manifest: Manifest) -> frozenset[str]:
    """Names and ports that only one object of the management cluster can have."""
    spec = manifest["spec"]
    if manifest["kind"] == "Route":
        return frozenset({spec["host"]} if "host" in spec else ())
    ports = spec.get("ports", ()) if manifest["kind"] == "Service" else ()
    return frozenset(f"node port {each['nodePort']}" for each in ports if "nodePort" in each)


def _in_order(before: Objects, after: Objects) -> Iterator[ChangeStep]:
    """New and changed objects as soon as what they claim is free; deletions come last."""
    now = dict(before)
    waiting = [name for name in after if after[name] != before.get(name)]
    waiting.sort(key=lambda name: name in before)
    while waiting:
        free = next((name for name in waiting if not _holders(now, after, name)), None)
        if free is None:
            holder, wanted = _holders(now, after, waiting[0])[0]
            why = f"{key(after[waiting[0]])} needs {wanted}, which only one object can have"
            yield _gone(now.pop(holder), why)
            continue
        waiting.remove(free)
        yield _step(now.get(free), after[free])
        now[free] = after[free]
    for name, manifest in now.items():
        if name not in after:
            yield _gone(manifest, _LEFT)


def _holders(now: Objects, after: Objects, name: Name) -> list[tuple[Name, str]]:
    """Objects that hold what this one claims, and will release it."""
    wanted = claims(after[name])
    return [
        (other, min(shared))
        for other, manifest in now.items()
        if other != name and manifest != after.get(other) and (shared := wanted & claims(manifest))
    ]


def _step(old: Manifest | None, new: Manifest) -> ChangeStep:
    if old is None:
        return ChangeStep(act=ChangeKind.CREATE, what=key(new), says="it is new", manifest=new)
    return ChangeStep(
        act=ChangeKind.UPDATE,
        what=key(new),
        says="it is changed in place",
        interrupts=interruption(old, new),
        manifest=new,
    )


def _gone(manifest: Manifest, why: str) -> ChangeStep:
    return ChangeStep(
        act=ChangeKind.DELETE,
        what=key(manifest),
        says=why,
        interrupts=interruption(manifest, None),
        manifest=manifest,
    )


def _split(
    steps: Iterable[ChangeStep],
) -> tuple[list[ChangeStep], list[ChangeStep], list[ChangeStep]]:
    """The steps before clients move, the changes they notice, and the deletions after.

    After the first early deletion all later steps must stay behind it.
    """
    made: list[ChangeStep] = []
    updated: list[ChangeStep] = []
    deleted: list[ChangeStep] = []
    for step in steps:
        if not updated and not deleted and step.act is ChangeKind.CREATE:
            made.append(step)
        elif step.act is ChangeKind.DELETE and step.says == _LEFT:
            deleted.append(step)
        else:
            updated.append(step)
    return made, updated, deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMove:
    """Clients of a service that need a new address after the steps ``after``."""

    what: str
    says: str
    interrupts: str
    after: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Clients:
    who: str
    meanwhile: str


_CLIENTS: Mapping[tuple[Reacher, ControlPlaneService], _Clients] = {
    (Reacher.NODE, ControlPlaneService.API_SERVER): _Clients(
        "the API server proxies of nodes",
        "nodes with the old address cannot report, and become not ready",
    ),
    (Reacher.NODE, ControlPlaneService.KONNECTIVITY): _Clients(
        "the agents of nodes",
        "no logs, exec, webhooks or aggregated APIs through nodes whose agent has the old address",
    ),
    (Reacher.NODE, ControlPlaneService.IGNITION): _Clients(
        "the boot configuration of new nodes", "nodes that boot with the old address do not join"
    ),
    (Reacher.NODE, ControlPlaneService.OAUTH_SERVER): _Clients(
        "guest pods that log users in", "no logins through pods with the old address"
    ),
    (Reacher.NODE, ControlPlaneService.OVN_SB_DB): _Clients(
        "OVN on nodes", "no new flows on nodes with the old address"
    ),
    (Reacher.USER, ControlPlaneService.OIDC): _Clients(
        "clouds that trust the issuer", "they accept no service account tokens"
    ),
    (Reacher.USER, ControlPlaneService.API_SERVER): _Clients(
        "kubeconfigs", "whoever has the old one cannot connect"
    ),
    (Reacher.USER, ControlPlaneService.OAUTH_SERVER): _Clients(
        "login addresses of users, and redirect URIs at identity providers",
        "nobody can log in",
    ),
}


def moves(old: PublishPlan, new: PublishPlan) -> Iterator[ClientMove]:
    """Clients that must be reconfigured, those of nodes first."""
    after = {(each.who, each.service): each.endpoint for each in needs(new)}
    for need in needs(old):
        clients = _CLIENTS[need.who, need.service]
        before, then = need.endpoint, after.get((need.who, need.service))
        if before is None:
            continue
        for says in _told(clients.who, before, then):
            yield ClientMove(
                what=need.service.value,
                says=says,
                interrupts=clients.meanwhile,
                after=frozenset({then.by, then.through} if then is not None else ()),
            )


def _told(who: str, before: PlannedEndpoint, then: PlannedEndpoint | None) -> Iterator[str]:
    if then is None:
        yield f"{who}: from {where_is(before)} to nowhere"
        return
    if where_is(before) != where_is(then):
        yield f"{who}: from {where_is(before)} to {where_is(then)}"
    if then.address == before.address and _listener(then) != _listener(before):
        yield f"the DNS record of {then.address}: from {_listener(before)} to {_listener(then)}"


def _listener(endpoint: PlannedEndpoint) -> str:
    return endpoint.through or endpoint.by


def interruption(old: Manifest, new: Manifest | None) -> str:
    """Who notices that an object is changed, or deleted (``new`` is None)."""
    match old["kind"]:
        case "Route":
            return _of_route(old, new)
        case "Service":
            return _of_service(old, new)
        case _:
            return "" if new is None else _of_policy(old, new)


def _of_route(old: Manifest, new: Manifest | None) -> str:
    host = old["spec"].get("host", "the name that OpenShift generated")
    if new is None or new["spec"].get("host") != old["spec"].get("host"):
        return f"{host} leads nowhere"
    if new["metadata"].get("labels") != old["metadata"].get("labels"):
        return f"another router serves {host}: it leads nowhere until DNS is updated"
    return ""


def _of_service(old: Manifest, new: Manifest | None) -> str:
    kind, spec = old["spec"]["type"], old["spec"]
    after = new["spec"] if new is not None else {}
    if kind == LOAD_BALANCER and after.get("type") != LOAD_BALANCER:
        return "its load balancer is deleted, with its address and all its connections"
    if kind == NODE_PORT and after.get("type") not in (LOAD_BALANCER, NODE_PORT):
        return "its node port is closed"
    if new is None:
        return "" if kind != CLUSTER_IP else "pods lose access to it"
    if spec["ports"] != after["ports"]:
        return "its port changes: whoever has the old one cannot connect"
    if spec.get("loadBalancerSourceRanges") != after.get("loadBalancerSourceRanges"):
        return "connections from addresses that are no longer allowed are cut"
    if spec.get("externalTrafficPolicy") != after.get("externalTrafficPolicy"):
        return "nodes without one of its pods stop answering, or start again"
    return ""


def _of_policy(old: Manifest, new: Manifest) -> str:
    """Empty if every client is allowed afterwards."""
    if old == new or all("from" not in rule for rule in new["spec"].get("ingress", ())):
        leaves = old != new and "egress" in new["spec"]
        return "pods that are no longer let out cannot connect" if leaves else ""
    return "clients that are no longer let in cannot connect"
