"""What has to be seen in a plan's lab: who reaches which endpoint, and who does not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from isthmus.hosting.lab_topology_fronts import HOSTS
from isthmus.hosting.lab_topology_ground import is_allowed
from isthmus.hosting.lab_topology_walls import Stander, expected_blocks
from isthmus.hosting.model import Endpoint, Plan, Service
from isthmus.hosting.own_parts_names import advertise_address, service_addresses
from isthmus.values import HostPort

Step = dict[str, Any]
#: Long enough for an agent that was too early the first time, and for a check of the apiserver.
SOON_S, CHECKED_S = 20, 10


def reaches(plan: Plan, endpoint: Endpoint, stander: Stander) -> bool:
    """Whether an endpoint is to be seen from there, and lets this address in."""
    if stander.stands not in endpoint.visible_from:
        return False
    return not endpoint.restricted or is_allowed(stander.address, expected_blocks(plan, endpoint))


def steps(plan: Plan, standers: Sequence[Stander]) -> Iterator[Step]:
    """The tunnel, the node's own address, and then everybody at every endpoint."""
    yield {"agents": "server", "are": ["node"], "within_s": SOON_S}
    yield {"from": "kube-apiserver", "get": "pod:8080", "fails": "unreachable"}
    yield {
        "from": "kube-apiserver",
        "get": "pod:8080",
        "through": "tunnel",
        "answers": "from pod",
    }
    yield from _at_the_node(plan)
    for endpoint in plan.endpoints:
        yield from _at(plan, endpoint, standers)


def _at_the_node(plan: Plan) -> Iterator[Step]:
    own = HostPort(advertise_address(plan.cluster), plan.cluster.api_port)
    targets = [f"https://{own}/"]
    if service_addresses(plan.cluster):
        targets.append("https://kubernetes.default.svc/")
    asking = {"get": targets, "answers": "from kube-apiserver", "within_s": CHECKED_S}
    yield {"from": ["node", "pod"], **asking}


def _at(plan: Plan, endpoint: Endpoint, standers: Sequence[Stander]) -> Iterator[Step]:
    may = [each.host for each in standers if reaches(plan, endpoint, each)]
    may += [each.host for each in standers if endpoint in each.must and each.host not in may]
    others = [each.host for each in standers if each.host not in may]
    target = HostPort(endpoint.address, endpoint.port)
    # The server wants a certificate of those who come: that the node's agent is there says more.
    what: Step = {"connect": str(target)}
    if endpoint.service is not Service.KONNECTIVITY:
        what = {"get": f"https://{target}/", "answers": f"from {HOSTS[endpoint.service]}"}
    if may:
        yield {"from": may, **what}
    if others:
        yield {"from": others, "connect": str(target), "fails": "unreachable"}
