"""The networks and the hosts in front of the control plane, in a plan's lab.

Networks are made around given addresses, or from free ranges. A plan's endpoints are hosts with the
addresses that people and nodes know: load balancers and node ports translate addresses like
kube-proxy; an address shared by several names has an SNI router.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Any

from isthmus.errors import ConfigError
from isthmus.hosting.endpoints import API_DNS_NAME
from isthmus.hosting.model import (
    ControlPlaneService,
    PlannedEndpoint,
    PublishPlan,
    Strategy,
    Viewpoint,
)
from isthmus.hosting.own_parts import SHARED_INGRESS_PORT
from isthmus.hosting.own_parts_names import ROUTER_PROGRAM, routes_document, shared_addresses
from isthmus.hosting.visibility import SHARED_INGRESS
from isthmus.values import HostPort, is_address

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

#: Addresses for people on the internet, RFC 5737 and RFC 3849.
INTERNET = {
    4: ("203.0.113.77", "198.51.100.77", "192.0.2.77"),
    6: ("2001:db8:77::77", "2001:db8:78::77", "2001:db8:79::77"),
}
#: Ranges for the lab if the document has none: large, so that a part of them is free.
_POOLS = {4: ("10.208.0.0/12", "172.24.0.0/13", "192.168.0.0/16"), 6: ("fd15:7a00::/32",)}
_USUAL = {4: 24, 6: 64}
_PREFIXES = {4: (24, 20, 16, 12, 8, 26, 28, 30), 6: (64, 56, 48, 32, 96, 112, 124)}
#: The prefix lengths of networks in the lab.
_SIZES = {4: range(8, 31), 6: range(16, 127)}
_FIRST_HOST = 10
_SMALL = 64
_MOST_HOSTS = 1000

CONTROL_PLANE, EDGE, PRIVATE, NODE_PORTS = "control-plane", "edge", "private-link", "node-ports"
#: The hosts that stand in for a service; konnectivity's server is in kube-apiserver's pod.
HOSTS: Mapping[ControlPlaneService, str] = {
    ControlPlaneService.API_SERVER: "kube-apiserver",
    ControlPlaneService.KONNECTIVITY: "kube-apiserver",
    ControlPlaneService.OAUTH_SERVER: "oauth-openshift",
    ControlPlaneService.IGNITION: "ignition-server",
    ControlPlaneService.OVN_SB_DB: "ovnkube-master",
    ControlPlaneService.OIDC: "oidc-bucket",
}
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9]+")
_LISTEN = 443
_CLUSTER_ID = "lab"  # if a document has none
_LONGEST = 36  # of a host, with four more letters for its process


class LabNetworks:
    """The networks of a lab, by name, and the addresses in them that are taken.

    ``reserved`` are networks of the document that the lab's own networks must not overlap;
    ``avoided`` are those that they overlap only if nothing else is free.
    """

    def __init__(self, version: int, reserved: Iterable[str], avoided: Iterable[str] = ()) -> None:
        self.version = version
        self.networks: dict[str, Network] = {}
        self._reserved = [ip_network(text, strict=False) for text in reserved]
        self._avoided = [ip_network(text, strict=False) for text in avoided]
        self._taken: set[Address] = set()

    def free_network(self, name: str) -> None:
        """Make a network of addresses that the document does not use."""
        taken = [*self._all(), *self._reserved]
        for others in ([*taken, *self._avoided], taken):
            for pool in _POOLS[self.version]:
                one = _first_free(ip_network(pool), _USUAL[self.version], others)
                if one is not None:
                    self.networks[name] = one
                    return
        raise ConfigError("the networks of the document leave no addresses for a lab")

    def network_of(self, name: str, cidr: str) -> None:
        """Make a network of a part of the document's, as large as the lab allows."""
        one = ip_network(cidr, strict=False)
        if one.prefixlen not in _SIZES[one.version]:
            one = next(_parts(one, max(_USUAL[one.version], one.prefixlen)))
        if any(_overlap(one, other) for other in self._all()):
            self.free_network(name)
        else:
            self.networks[name] = one

    def place(self, name: str, text: str) -> str:
        """Take an address that is given; the name of the network that has it.

        A network of that name is made around it where there is none.

        Raises:
            ConfigError: the lab cannot have this address.
        """
        address = ip_address(text)
        if address.version != self.version:
            raise ConfigError(f"{address} is not IPv{self.version} like the rest of the lab")
        if address in self._taken:
            raise ConfigError(f"{address} would belong to two hosts of a lab")
        self._taken.add(address)
        for known, network in self.networks.items():
            if address in network:
                _check_usable(address, network)
                return known
        for prefix in _PREFIXES[address.version]:
            one = ip_network(f"{address}/{prefix}", strict=False)
            if _is_usable(address, one) and not any(_overlap(one, other) for other in self._all()):
                self.networks[self._unused(name)] = one
                return next(reversed(self.networks))
        raise ConfigError(f"there is no network around {address} for a lab")

    def next_address(self, name: str) -> str:
        """Take the next free address of a network."""
        network = self.networks[name]
        first = _FIRST_HOST if network.num_addresses > _SMALL else 2
        for number in range(first, min(network.num_addresses, first + _MOST_HOSTS)):
            if network[number] not in self._taken and _is_usable(network[number], network):
                self._taken.add(network[number])
                return str(network[number])
        raise ConfigError(f"network {network} is too small for a lab")

    def _all(self) -> list[Network]:
        return list(self.networks.values())

    def _unused(self, name: str) -> str:
        numbered = (f"{name}-{number}" for number in range(2, 100))
        return next(each for each in (name, *numbered) if each not in self.networks)


def _parts(network: Network, prefix: int) -> Iterator[Network]:
    yield from network.subnets(new_prefix=prefix)


def _first_free(pool: Network, prefix: int, others: Sequence[Network]) -> Network | None:
    if any(_overlap(pool, other) and other.prefixlen <= pool.prefixlen for other in others):
        return None  # all of it is taken; trying each address would take long
    free = (one for one in _parts(pool, prefix) if not any(_overlap(one, x) for x in others))
    return next(free, None)


def _overlap(one: Network, other: Network) -> bool:
    if isinstance(one, IPv4Network) and isinstance(other, IPv4Network):
        return one.overlaps(other)
    if isinstance(one, IPv6Network) and isinstance(other, IPv6Network):
        return one.overlaps(other)
    return False


def _is_usable(address: Address, network: Network) -> bool:
    """Whether a host can have the address: not the first two; the second is the gateway's."""
    return address not in (network[0], network[1], network[-1])


def _check_usable(address: Address, network: Network) -> None:
    if not _is_usable(address, network):
        raise ConfigError(f"no host of a lab can have {address} in {network}")


def is_allowed(address: str, blocks: Iterable[str]) -> bool:
    one = ip_address(address)
    return any(one in ip_network(block, strict=False) for block in blocks)


def inside(blocks: Iterable[str], version: int, *, narrow: bool) -> str:
    """An address in one of the blocks; of the narrowest one, or of the widest.

    Nodes share one address, a NAT gateway's; people come from offices.

    Raises:
        ConfigError: no block is of this version of IP.
    """
    found = [ip_network(block, strict=False) for block in blocks]
    found = [block for block in found if block.version == version]
    usual = next((text for text in INTERNET[version] if is_allowed(text, map(str, found))), "")
    if usual and not narrow:
        return usual
    if not found:
        raise ConfigError(f"allowedCIDRBlocks: no block is IPv{version} like the cluster")
    by_size = sorted(found, key=lambda block: block.prefixlen)
    block = by_size[-1] if narrow else by_size[0]
    if block.prefixlen == 0 and usual:
        return usual
    return str(block[min(_FIRST_HOST, block.num_addresses - 1)])


def outside(blocks: Iterable[str], version: int) -> str:
    """An address in none of the blocks; empty if they cover all."""
    listed = list(blocks)
    networks = [ip_network(block, strict=False) for block in listed]
    free = [text for text in INTERNET[version] if not is_allowed(text, listed)]

    def crowded(text: str) -> bool:
        around = ip_network(f"{text}/{_USUAL[version]}", strict=False)
        return any(_overlap(around, network) for network in networks)

    return min(free, key=crowded, default="")


@dataclass(slots=True)
class LabFront:
    """A host that has the address of some endpoints."""

    host: str
    network: str
    address: str
    endpoints: list[PlannedEndpoint] = field(default_factory=list)

    @property
    def shares_by_name(self) -> bool:
        """Whether several names share it."""
        return any(each.strategy is Strategy.ROUTE for each in self.endpoints)


def complete(plan: PublishPlan) -> PublishPlan:
    """The plan with an address for each endpoint, invented where the platform would choose one.

    Raises:
        ConfigError: there are too few node ports.
    """
    low, high = plan.cluster.node_port_range
    used = {each.port for each in plan.endpoints}
    free = [port for port in range(low, high + 1) if port not in used]
    if sum(not each.port for each in plan.endpoints) > len(free):
        raise ConfigError(f"serviceNodePortRange: {low}-{high} has too few ports for a lab")
    ports = iter(free)
    chosen: dict[str, int] = {}  # by Service: another name of it has the same port
    found = []
    for each in plan.endpoints:
        if each.service not in HOSTS:
            continue
        address = each.address or f"{each.name}.{plan.cluster.name}.lab.internal"
        sni = address if each.strategy is Strategy.ROUTE and not each.sni else each.sni
        port = each.port or chosen.get(each.by) or next(ports)
        chosen[each.by] = port
        found.append(replace(each, address=address, sni=sni, port=port))
    cluster = plan.cluster
    named = replace(cluster, cluster_id=cluster.cluster_id or _CLUSTER_ID)
    return replace(plan, cluster=named, endpoints=tuple(found))


def backends(plan: PublishPlan) -> dict[ControlPlaneService, HostPort]:
    """Where each service is in the lab: the port is that of its Service."""
    return {
        each.service: HostPort(HOSTS[each.service], each.port)
        for each in plan.endpoints
        if each.strategy is Strategy.NONE
    }


def fronts(plan: PublishPlan, ground: LabNetworks) -> list[LabFront]:
    """The hosts in front of the control plane, each with an address."""
    found: dict[str, LabFront] = {}
    for each in plan.endpoints:
        if each.strategy is Strategy.NONE:
            continue
        key = _key(named_first(each, plan))
        if key not in found:
            network, address = _place(each, ground)
            found[key] = LabFront(_host(key, found), network, address)
        found[key].endpoints.append(each)
    return list(found.values())


def named_first(endpoint: PlannedEndpoint, plan: PublishPlan) -> PlannedEndpoint:
    """The endpoint whose address another name has."""
    if endpoint.name != API_DNS_NAME:
        return endpoint
    same = (endpoint.service, endpoint.strategy, endpoint.by)
    return next(one for one in plan.endpoints if (one.service, one.strategy, one.by) == same)


def _key(endpoint: PlannedEndpoint) -> str:
    """Endpoints with the same key have the same address."""
    if endpoint.strategy is Strategy.NODE_PORT:
        return f"node/{endpoint.address}"
    if endpoint.strategy is Strategy.ROUTE:
        return endpoint.through or endpoint.by
    if endpoint.strategy is Strategy.S3:
        return f"Bucket/{HOSTS[endpoint.service]}"
    return endpoint.by


def _host(key: str, others: Mapping[str, LabFront]) -> str:
    kind, _, name = key.partition("/")
    if kind == "node":
        number = sum(other.startswith("node/") for other in others) + 1
        return "management-node" if number == 1 else f"management-node-{number}"
    if kind == "Service" and name in HOSTS.values():
        name = f"{name}-balancer"
    return _NOT_IN_A_NAME.sub("-", (name or kind).lower()).strip("-")[:_LONGEST].strip("-")


def _place(endpoint: PlannedEndpoint, ground: LabNetworks) -> tuple[str, str]:
    if is_address(endpoint.address):
        kind = NODE_PORTS if endpoint.strategy is Strategy.NODE_PORT else EDGE
        return ground.place(kind, endpoint.address), endpoint.address
    network = EDGE if Viewpoint.INTERNET in endpoint.visible_from else PRIVATE
    if network not in ground.networks:
        ground.free_network(network)
    return network, ground.next_address(network)


def front_host(front: LabFront, plan: PublishPlan) -> dict[str, Any]:
    made: dict[str, Any] = {"at": {front.network: front.address}}
    if (
        front.host == HOSTS[ControlPlaneService.OIDC]
    ):  # on its own host, not in front of the control plane
        return made | {"serve": {"https": sorted(each.port for each in front.endpoints)}}
    behind = backends(plan)
    if front.shares_by_name:
        command = (
            f"isthmus {ROUTER_PROGRAM} --config={{dir}}/{routes_file(front)} --listen=:{_LISTEN}"
            " --health-bind-address=127.0.0.1"
        )
        if _key(front.endpoints[0]) == SHARED_INGRESS:
            command += f" --listen-proxy=:{SHARED_INGRESS_PORT}"
        made["processes"] = {f"{front.host}-sni": command}
        return made
    led = {HostPort(front.address, each.port): behind[each.service] for each in front.endpoints}
    made["services"] = [{"address": str(at), "to": str(to)} for at, to in led.items()]
    return made


def ports_at(endpoint: PlannedEndpoint) -> list[int]:
    """The ports of an endpoint: a shared ingress has a separate one for nodes."""
    shared = endpoint.through == SHARED_INGRESS
    by_id = shared and endpoint.service is ControlPlaneService.API_SERVER
    return [endpoint.port, *([SHARED_INGRESS_PORT] if by_id else [])]


def routes_file(front: LabFront) -> str:
    return f"sni-routes.{front.host}.yaml"


def routes(front: LabFront, plan: PublishPlan) -> str:
    """The plan's own routes of a shared address, with the lab's hosts behind them."""
    key = _key(front.endpoints[0])
    shared = next(each for each in shared_addresses(plan) if each.through == key)
    return routes_document(shared, backends(plan))
