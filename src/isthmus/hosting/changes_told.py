"""Whom a change interrupts, and which clients have to be told a new address."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from isthmus.hosting.model import Endpoint, Plan, Service
from isthmus.hosting.reach import Who, needs, where_is
from isthmus.hosting.shapes import CLUSTER_IP, LOAD_BALANCER, NODE_PORT, Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Clients of a service that need another address, which ``after`` make."""

    what: str
    says: str
    interrupts: str
    after: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Clients:
    who: str
    meanwhile: str


_CLIENTS: Mapping[tuple[Who, Service], _Clients] = {
    (Who.NODE, Service.API_SERVER): _Clients(
        "the API server proxies of nodes",
        "nodes that still have the old address cannot report, and count as not ready",
    ),
    (Who.NODE, Service.KONNECTIVITY): _Clients(
        "the agents of nodes",
        "no logs, exec, webhooks or aggregated APIs by nodes whose agent has the old address",
    ),
    (Who.NODE, Service.IGNITION): _Clients(
        "what new nodes boot with", "nodes that boot with the old address do not join"
    ),
    (Who.NODE, Service.OAUTH_SERVER): _Clients(
        "pods of the guest that log users in", "they cannot, while they have the old address"
    ),
    (Who.USER, Service.API_SERVER): _Clients(
        "kubeconfigs", "whoever has the old one cannot connect"
    ),
    (Who.USER, Service.OAUTH_SERVER): _Clients(
        "the addresses at which users log in, and the redirect URIs at identity providers",
        "nobody can log in",
    ),
}


def moves(old: Plan, new: Plan) -> Iterator[Move]:
    """Clients that have to be told, those of nodes first."""
    after = {(each.who, each.service): each.endpoint for each in needs(new)}
    for need in needs(old):
        clients = _CLIENTS[need.who, need.service]
        before, then = need.endpoint, after.get((need.who, need.service))
        if before is None:
            continue
        for says in _told(clients.who, before, then):
            yield Move(
                what=need.service.value,
                says=says,
                interrupts=clients.meanwhile,
                after=frozenset({then.by, then.through} if then is not None else ()),
            )


def _told(who: str, before: Endpoint, then: Endpoint | None) -> Iterator[str]:
    if then is None:
        yield f"{who}: from {where_is(before)} to nowhere"
        return
    if where_is(before) != where_is(then):
        yield f"{who}: from {where_is(before)} to {where_is(then)}"
    if then.address == before.address and _listener(then) != _listener(before):
        yield f"the DNS record of {then.address}: from {_listener(before)} to {_listener(then)}"


def _listener(endpoint: Endpoint) -> str:
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
    if old == new or all("from" not in rule for rule in new["spec"]["ingress"]):
        return ""
    return "whoever is not let in any more cannot connect"
