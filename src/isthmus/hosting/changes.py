"""What it takes to come from one plan to another: step by step, and whom each step interrupts.

What is new comes first, then clients move to it, then what nobody uses any more goes. Two Routes
cannot have one name and two Services cannot have one node port: where the new needs what the old
still has, the old goes first, and its step says so. What cannot be done in place at all is refused;
the steps after it are what it would take to do it by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from isthmus.hosting.endpoints import Reacher, needs, where_is
from isthmus.hosting.model import (
    ControlPlaneService,
    PlannedEndpoint,
    PublishPlan,
)
from isthmus.hosting.rules_changes import refusals
from isthmus.hosting.shapes import CLUSTER_IP, LOAD_BALANCER, NODE_PORT, Manifest, key

Name = tuple[str, str, str]
Objects = dict[Name, Manifest]

_LEFT = "nothing leads to it any more"


class ChangeKind(Enum):
    """What a step does."""

    REFUSE = "refuse"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    MOVE = "move"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStep:
    """One thing to do. ``what`` is an object, ``Kind/name``, or the service whose clients move.

    ``manifest`` is the object as it will be, or as it was before it is deleted. ``interrupts`` says
    who cannot do what, and for how long; empty where nobody notices.
    """

    act: ChangeKind
    what: str
    says: str
    interrupts: str = ""
    manifest: Manifest | None = None


def changes(old: PublishPlan, new: PublishPlan) -> tuple[ChangeStep, ...]:
    """The steps from one plan to the other, in order; none where nothing changes."""
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
    """The objects that there are after some steps."""
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
    """What only one object of the management cluster can have."""
    spec = manifest["spec"]
    if manifest["kind"] == "Route":
        return frozenset({spec["host"]} if "host" in spec else ())
    ports = spec.get("ports", ()) if manifest["kind"] == "Service" else ()
    return frozenset(f"node port {each['nodePort']}" for each in ports if "nodePort" in each)


def _in_order(before: Objects, after: Objects) -> Iterator[ChangeStep]:
    """New and changed objects as soon as what they claim is free; what is left goes last."""
    now = dict(before)
    waiting = [name for name in after if after[name] != before.get(name)]
    waiting.sort(key=lambda name: name in before)
    while waiting:
        free = next((name for name in waiting if not _holders(now, after, name)), None)
        if free is None:
            holder, wanted = _holders(now, after, waiting[0])[0]
            why = f"{key(after[waiting[0]])} needs {wanted}, which cannot be had twice"
            yield _gone(now.pop(holder), why)
            continue
        waiting.remove(free)
        yield _step(now.get(free), after[free])
        now[free] = after[free]
    for name, manifest in now.items():
        if name not in after:
            yield _gone(manifest, _LEFT)


def _holders(now: Objects, after: Objects, name: Name) -> list[tuple[Name, str]]:
    """Objects that have what this one claims, and will give it up."""
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
        says="it is changed where it is",
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
    """What comes before clients move, what changes under them, and what goes after them.

    As soon as something had to go early, what follows has to follow it.
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
    """Clients of a service that need another address, which ``after`` make."""

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
        "nodes that still have the old address cannot report, and count as not ready",
    ),
    (Reacher.NODE, ControlPlaneService.KONNECTIVITY): _Clients(
        "the agents of nodes",
        "no logs, exec, webhooks or aggregated APIs by nodes whose agent has the old address",
    ),
    (Reacher.NODE, ControlPlaneService.IGNITION): _Clients(
        "what new nodes boot with", "nodes that boot with the old address do not join"
    ),
    (Reacher.NODE, ControlPlaneService.OAUTH_SERVER): _Clients(
        "pods of the guest that log users in", "they cannot, while they have the old address"
    ),
    (Reacher.NODE, ControlPlaneService.OVN_SB_DB): _Clients(
        "OVN on nodes", "no new flows on nodes that have the old address"
    ),
    (Reacher.USER, ControlPlaneService.OIDC): _Clients(
        "clouds that know the issuer", "no token of a service account is taken there"
    ),
    (Reacher.USER, ControlPlaneService.API_SERVER): _Clients(
        "kubeconfigs", "whoever has the old one cannot connect"
    ),
    (Reacher.USER, ControlPlaneService.OAUTH_SERVER): _Clients(
        "the addresses at which users log in, and the redirect URIs at identity providers",
        "nobody can log in",
    ),
}


def moves(old: PublishPlan, new: PublishPlan) -> Iterator[ClientMove]:
    """Clients that have to be told, those of nodes first."""
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
    """Who notices that an object is changed, or gone (``new`` is None)."""
    match old["kind"]:
        case "Route":
            return _of_route(old, new)
        case "Service":
            return _of_service(old, new)
        case _:
            return "" if new is None else _of_policy(old, new)


def _of_route(old: Manifest, new: Manifest | None) -> str:
    host = old["spec"].get("host", "the name that OpenShift made up")
    if new is None or new["spec"].get("host") != old["spec"].get("host"):
        return f"{host} leads nowhere"
    if new["metadata"].get("labels") != old["metadata"].get("labels"):
        return f"another router serves {host}: it leads nowhere until DNS says so"
    return ""


def _of_service(old: Manifest, new: Manifest | None) -> str:
    kind, spec = old["spec"]["type"], old["spec"]
    after = new["spec"] if new is not None else {}
    if kind == LOAD_BALANCER and after.get("type") != LOAD_BALANCER:
        return "its load balancer goes, with its address and every connection through it"
    if kind == NODE_PORT and after.get("type") not in (LOAD_BALANCER, NODE_PORT):
        return "its node port is closed"
    if new is None:
        return "" if kind != CLUSTER_IP else "pods that use it lose it"
    if spec["ports"] != after["ports"]:
        return "its port changes: whoever has the old one cannot connect"
    if spec.get("loadBalancerSourceRanges") != after.get("loadBalancerSourceRanges"):
        return "connections from addresses that are not allowed any more are cut"
    if spec.get("externalTrafficPolicy") != after.get("externalTrafficPolicy"):
        return "nodes without a pod of it answer no more, or do again"
    return ""


def _of_policy(old: Manifest, new: Manifest) -> str:
    """Silent where everybody is let in afterwards."""
    if old == new or all("from" not in rule for rule in new["spec"].get("ingress", ())):
        leaves = old != new and "egress" in new["spec"]
        return "whoever is not let out any more cannot connect" if leaves else ""
    return "whoever is not let in any more cannot connect"
