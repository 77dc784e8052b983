"""What the wall of a plan's lab lets through, by what the objects of the plan say.

A load balancer lets in whom its Service does: everybody, the source ranges that it has, or nobody
of the internet if it is an internal one. What is expected of it is said in lab_topology_steps.py,
by the endpoints: if the two disagree, the lab does not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from isthmus.hosting.lab_topology_fronts import CONTROL_PLANE, HOSTS, Front
from isthmus.hosting.lab_topology_ground import is_allowed
from isthmus.hosting.model import Endpoint, From, Plan, Strategy
from isthmus.hosting.shapes import Manifest, is_internal, key
from isthmus.hosting.visibility import INGRESS, SHARED_INGRESS
from isthmus.values import is_address

Rule = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stander:
    """Somebody in the lab who tries to reach things; ``address`` is what others see of them.

    ``must`` are endpoints that have to be reached, whatever the CIDR blocks say.
    """

    host: str
    network: str
    stands: From
    address: str
    must: frozenset[Endpoint] = frozenset()


def rules(plan: Plan, standers: Sequence[Stander], found: Sequence[Front]) -> Iterator[Rule]:
    """Standers to fronts, to Services inside, and fronts to what is behind them."""
    for front in found:
        for stander in standers:
            ports = [each.port for each in front.endpoints if lets_in(plan, each, stander)]
            if stander.network != front.network:
                yield from _rule(stander.host, front.host, ports)
    inside = [each for each in plan.endpoints if each.strategy is Strategy.NONE]
    for stander in standers:
        for each in inside:
            if stander.network != CONTROL_PLANE and stander.stands in each.visible_from:
                yield from _rule(stander.host, HOSTS[each.service], [each.port])
    behind = {each.service: each.port for each in inside}
    for front in found:
        ports_of: dict[str, list[int]] = {}
        for each in front.endpoints:
            ports_of.setdefault(HOSTS[each.service], []).append(behind[each.service])
        for host, ports in ports_of.items():
            yield from _rule(front.host, host, ports)


def _rule(source: str, target: str, ports: Iterable[int]) -> Iterator[Rule]:
    listed = sorted(set(ports))
    if listed:
        yield {"from": source, "to": target, "port": listed}


def lets_in(plan: Plan, endpoint: Endpoint, stander: Stander) -> bool:
    """Whether the object that has an endpoint's address takes connections from there."""
    blocks = plan.cluster.allowed_cidrs
    at = endpoint.through or endpoint.by
    if at == INGRESS:
        return True
    if at == SHARED_INGRESS:
        return not blocks or is_allowed(stander.address, blocks)
    service = _object(plan, at)
    if stander.stands is From.INTERNET and not _is_outside(endpoint, service):
        return False
    sources = source_blocks(plan, service)
    return not sources or is_allowed(stander.address, sources)


def source_blocks(plan: Plan, service: Manifest) -> tuple[str, ...]:
    """From where a Service takes connections; empty is from everywhere."""
    ranges = service["spec"].get("loadBalancerSourceRanges")
    if ranges:
        return tuple(ranges)
    if "externalTrafficPolicy" in service["spec"]:  # a NetworkPolicy holds for it
        return (*plan.cluster.allowed_cidrs, *plan.cluster.machine_cidrs)
    return ()


def expected_blocks(plan: Plan, endpoint: Endpoint) -> tuple[str, ...]:
    """From where an endpoint that says that it is restricted is to be reached."""
    blocks = plan.cluster.allowed_cidrs
    by_policy = any(
        key(each) == endpoint.by and "externalTrafficPolicy" in each["spec"]
        for each in plan.objects
    )
    return (*blocks, *plan.cluster.machine_cidrs) if by_policy else blocks


def _object(plan: Plan, name: str) -> Manifest:
    return next(each for each in plan.objects if key(each) == name)


def _is_outside(endpoint: Endpoint, service: Manifest) -> bool:
    """Whether the internet has a way to the address of a Service."""
    match service["spec"]["type"]:
        case "LoadBalancer":
            return not is_internal(service)
        case "NodePort":
            known = is_address(endpoint.address)
            return not known or ip_address(endpoint.address).is_global
        case _:
            return False
