"""What a plan's endpoints are in its lab: hosts with the addresses that people and nodes know.

A load balancer and a node's ports are hosts that translate addresses, as kube-proxy does; an
address that is shared by names is a host with ``isthmus sni-router``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from isthmus.errors import ConfigError
from isthmus.hosting.lab_topology_ground import Ground
from isthmus.hosting.model import Endpoint, From, Plan, Service, Strategy
from isthmus.hosting.own_parts_routes import routes_document, shared_addresses
from isthmus.hosting.visibility import SHARED_INGRESS
from isthmus.values import HostPort, is_address

CONTROL_PLANE, EDGE, PRIVATE, NODE_PORTS = "control-plane", "edge", "private-link", "node-ports"
#: The hosts that play a service; konnectivity's server is in kube-apiserver's pod.
HOSTS: Mapping[Service, str] = {
    Service.API_SERVER: "kube-apiserver",
    Service.KONNECTIVITY: "kube-apiserver",
    Service.OAUTH_SERVER: "oauth-openshift",
    Service.IGNITION: "ignition-server",
}
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9]+")
_LISTEN = 443
_LONGEST = 36  # of a host, with four more letters for its process


@dataclass(slots=True)
class Front:
    """A host that has the address of some endpoints."""

    host: str
    network: str
    address: str
    endpoints: list[Endpoint] = field(default_factory=list)

    @property
    def shares_by_name(self) -> bool:
        """Whether names decide who is meant."""
        return any(each.strategy is Strategy.ROUTE for each in self.endpoints)


def complete(plan: Plan) -> Plan:
    """The plan with an address for each endpoint: what the platform would choose is made up.

    Raises:
        ConfigError: there are fewer node ports than it would choose; one sentence.
    """
    low, high = plan.cluster.node_port_range
    used = {each.port for each in plan.endpoints}
    free = [port for port in range(low, high + 1) if port not in used]
    if sum(not each.port for each in plan.endpoints) > len(free):
        raise ConfigError(f"serviceNodePortRange: {low}-{high} has too few ports for a lab")
    ports = iter(free)
    found = []
    for each in plan.endpoints:
        if each.service not in HOSTS:
            continue
        address = each.address or f"{each.name}.{plan.cluster.name}.lab.internal"
        sni = address if each.strategy is Strategy.ROUTE and not each.sni else each.sni
        found.append(replace(each, address=address, sni=sni, port=each.port or next(ports)))
    return replace(plan, endpoints=tuple(found))


def backends(plan: Plan) -> dict[Service, HostPort]:
    """Where each service is in the lab: the port is that of its Service."""
    return {
        each.service: HostPort(HOSTS[each.service], each.port)
        for each in plan.endpoints
        if each.strategy is Strategy.NONE
    }


def fronts(plan: Plan, ground: Ground) -> list[Front]:
    """The hosts in front of the control plane, each with an address."""
    found: dict[str, Front] = {}
    for each in plan.endpoints:
        if each.strategy is Strategy.NONE:
            continue
        key = _key(each)
        if key not in found:
            network, address = _place(each, ground)
            found[key] = Front(_host(key, found), network, address)
        found[key].endpoints.append(each)
    return list(found.values())


def _key(endpoint: Endpoint) -> str:
    """Endpoints with the same key have the same address."""
    if endpoint.strategy is Strategy.NODE_PORT:
        return f"node/{endpoint.address}"
    if endpoint.strategy is Strategy.ROUTE:
        return endpoint.through or endpoint.by
    return endpoint.by


def _host(key: str, others: Mapping[str, Front]) -> str:
    kind, _, name = key.partition("/")
    if kind == "node":
        number = sum(other.startswith("node/") for other in others) + 1
        return "management-node" if number == 1 else f"management-node-{number}"
    if kind == "Service" and name in HOSTS.values():
        name = f"{name}-balancer"
    return _NOT_IN_A_NAME.sub("-", (name or kind).lower()).strip("-")[:_LONGEST].strip("-")


def _place(endpoint: Endpoint, ground: Ground) -> tuple[str, str]:
    if is_address(endpoint.address):
        kind = NODE_PORTS if endpoint.strategy is Strategy.NODE_PORT else EDGE
        return ground.place(kind, endpoint.address), endpoint.address
    network = EDGE if From.INTERNET in endpoint.visible_from else PRIVATE
    if network not in ground.networks:
        ground.free_network(network)
    return network, ground.next_address(network)


def front_host(front: Front, plan: Plan) -> dict[str, Any]:
    """A front as a host of a topology."""
    made: dict[str, Any] = {"at": {front.network: front.address}}
    behind = backends(plan)
    if front.shares_by_name:
        command = (
            f"isthmus sni-router --config={{dir}}/{routes_file(front)} --listen=:{_LISTEN}"
            " --health-bind-address=127.0.0.1"
        )
        made["processes"] = {f"{front.host}-sni": command}
        return made
    made["services"] = [
        {
            "address": str(HostPort(front.address, each.port)),
            "to": str(behind[each.service]),
        }
        for each in front.endpoints
    ]
    return made


def routes_file(front: Front) -> str:
    """What the file with a front's routes is called."""
    return f"sni-routes.{front.host}.yaml"


def routes(front: Front, plan: Plan) -> str:
    """The plan's own routes of a shared address, with the lab's hosts behind them.

    A shared ingress knows by a PROXY header which cluster's apiserver is meant; here it has one.
    """
    key = _key(front.endpoints[0])
    shared = next(each for each in shared_addresses(plan) if each.through == key)
    api = next((each.name for each in shared.routes if each.service is Service.API_SERVER), "")
    if key == SHARED_INGRESS and api:
        shared = replace(shared, default=api)
    return routes_document(shared, backends(plan))
