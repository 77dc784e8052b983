"""Converts a plan to a topology of ``isthmus lab``, to try it before it is used.

The networks are the internet, the guest's, the management cluster's and the control plane's.
kube-apiserver and the other services are small servers; Isthmus' own programs run with the plan's
flags and files. lab_topology_hosts.py assigns addresses.

The firewalls between the networks follow the *objects* of the plan: a load balancer admits the
clients that its Service admits, which are all, those in its source ranges, or none from the
internet if it is internal. The steps of the lab expect what the *endpoints* of the plan promise: if
objects and endpoints disagree, the lab fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any

from isthmus.errors import ConfigError
from isthmus.hosting.endpoints import Reacher, needs, way
from isthmus.hosting.lab_topology_hosts import (
    CONTROL_PLANE,
    HOSTS,
    INTERNET,
    LabFront,
    LabNetworks,
    complete,
    front_host,
    fronts,
    inside,
    is_allowed,
    named_first,
    outside,
    ports_at,
    routes,
    routes_file,
)
from isthmus.hosting.model import (
    ControlPlaneService,
    PlannedEndpoint,
    PublishPlan,
    Strategy,
    Viewpoint,
)
from isthmus.hosting.own_parts import (
    NODE_PROXY,
    NODE_PROXY_FILE,
    PartChoices,
    agent_flags,
    command_line,
    lab_proxy,
    server_flags,
)
from isthmus.hosting.own_parts_names import advertise_address, service_addresses
from isthmus.hosting.shapes import Manifest, is_internal, key
from isthmus.hosting.visibility import OPEN, SHARED_INGRESS
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.server.settings import ServerSettings
from isthmus.text.go_yaml import to_yaml
from isthmus.values import HostPort, is_address

GUEST, PODS, MANAGEMENT = "guest", "pods", "management"
_MACHINES = {4: "10.0.0.0/16", 6: "fd15:7a:1::/64"}
_SERVER_FILES = {"cert": "{server_cert}", "key": "{server_key}", "ca_cert": "{ca_cert}"}
_FAST = {"sync_interval_s": ("100ms",), "sync_interval_cap_s": ("1s",)}

LabStep = dict[str, Any]
#: Long enough for an agent that connects too early once, and for a check of the apiserver.
SOON_S, CHECKED_S = 20, 10

AllowRule = dict[str, Any]


def lab_topology(plan: PublishPlan, *, nodes_from: str = "") -> str:
    """Write the topology of a plan without errors, for ``isthmus lab run FILE``.

    ``nodes_from`` is the address that others see of the nodes, such as a NAT gateway's. Without it
    nodes connect from their own network, or from one of the allowed CIDR blocks if there are any.

    Raises:
        ConfigError: the lab cannot have these addresses.
    """
    return to_yaml([_Builder(complete(plan), nodes_from).document()])


class _Builder:
    """The parts of one topology, in the order in which they depend on each other."""

    def __init__(self, plan: PublishPlan, nodes_from: str) -> None:
        self.plan = plan
        cluster = plan.cluster
        self.version = _version(plan)
        given = (*cluster.machine_cidrs, *cluster.cluster_cidrs, *cluster.service_cidrs)
        self.ground = LabNetworks(self.version, given, cluster.allowed_cidrs)
        self._make_networks()
        self.node = self._node(nodes_from)
        self.fronts = fronts(plan, self.ground)
        self.standers = [self.node, *self._others()]
        self.services = {
            host: self.ground.next_address(CONTROL_PLANE)
            for host in dict.fromkeys(
                HOSTS[each.service] for each in plan.endpoints if each.strategy is Strategy.NONE
            )
        }

    def _make_networks(self) -> None:
        cluster, ground = self.plan.cluster, self.ground
        machines = [each for each in cluster.machine_cidrs if self._fits(each)]
        pods = [each for each in cluster.cluster_cidrs if self._fits(each)]
        ground.network_of(GUEST, machines[0] if machines else _MACHINES[self.version])
        if pods:
            ground.network_of(PODS, pods[0])
        else:
            ground.free_network(PODS)
        ground.free_network(CONTROL_PLANE)
        ground.free_network(MANAGEMENT)

    def _fits(self, cidr: str) -> bool:
        network = ip_network(cidr, strict=False)
        first = network.network_address
        for_hosts = not (
            first.is_loopback
            or first.is_link_local
            or first.is_multicast
            or first.is_reserved
            or first.is_unspecified
        )
        return network.version == self.version and network.prefixlen > 0 and for_hosts

    def _node(self, nodes_from: str) -> LabVisitor:
        """The node, which must reach everything it needs."""
        blocks = self.plan.cluster.allowed_cidrs
        wanted = [
            each.endpoint
            for each in needs(self.plan)
            if each.who is Reacher.NODE and each.endpoint is not None
        ]
        if nodes_from and not is_address(nodes_from):
            raise ConfigError(f"--nodes-from takes an address, not {nodes_from!r}")
        own = self.ground.next_address(GUEST)
        held = [each for each in wanted if each.restricted]
        if not all(is_allowed(own, expected_blocks(self.plan, each)) for each in held):
            nodes_from = nodes_from or inside(blocks, self.version, narrow=True)
        return LabVisitor(
            host="node",
            network=self.ground.place("nat", nodes_from) if nodes_from else GUEST,
            stands=Viewpoint.GUEST_VPC,
            address=nodes_from or own,
            must=frozenset(wanted),
        )

    def _others(self) -> list[LabVisitor]:
        """A user on the internet, another that CIDR blocks exclude, and two neighbours."""
        blocks, version = self.plan.cluster.allowed_cidrs, self.version
        held = any(each.restricted for each in self.plan.endpoints)
        people = {"user": inside(blocks, version, narrow=False) if held else INTERNET[version][0]}
        if held:
            people["stranger"] = outside(blocks, version)
        found = []
        for host, address in people.items():
            if address and address != self.node.address:
                network = self.ground.place("internet", address)
                found.append(
                    LabVisitor(
                        host=host, network=network, stands=Viewpoint.INTERNET, address=address
                    )
                )
        for host, network, stands in (
            ("operator", MANAGEMENT, Viewpoint.MANAGEMENT),
            ("component", CONTROL_PLANE, Viewpoint.SAME_CLUSTER),
        ):
            address = self.ground.next_address(network)
            found.append(LabVisitor(host=host, network=network, stands=stands, address=address))
        return found

    def document(self) -> dict[str, Any]:
        plan = self.plan
        hosts = {**self._service_hosts(), **self._front_hosts(), **self._people()}
        hosts |= self._guests()
        found = {
            "title": f"{plan.cluster.name}, published as planned",
            "about": _about(plan),
            "networks": self._networks(),
            "allow": list(rules(plan, self.standers, self.fronts)),
            "hosts": hosts,
            "names": self._names(),
            "ways": {
                "tunnel": {"protocol": "http-connect", "tcp": "konnectivity-server-local:8090"}
            },
            "files": self._files(),
            "steps": list(steps(plan, self.standers)),
        }
        return {key: value for key, value in found.items() if value}

    def _networks(self) -> dict[str, Any]:
        return {
            name: {"cidr": str(network), **({"gateway": False} if name == PODS else {})}
            for name, network in self.ground.networks.items()
        }

    def _service_hosts(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for host, address in self.services.items():
            ports = [
                each.port
                for each in self.plan.endpoints
                if each.strategy is Strategy.NONE
                and HOSTS[each.service] == host
                and each.service is not ControlPlaneService.KONNECTIVITY
            ]
            found[host] = {"at": {CONTROL_PLANE: address}, "serve": {"https": sorted(set(ports))}}
        found[HOSTS[ControlPlaneService.KONNECTIVITY]]["processes"] = {"server": list(_server())}
        return found

    def _front_hosts(self) -> dict[str, Any]:
        return {front.host: front_host(front, self.plan) for front in self.fronts}

    def _people(self) -> dict[str, Any]:
        return {
            each.host: {"at": {each.network: each.address}}
            for each in self.standers
            if each is not self.node
        }

    def _guests(self) -> dict[str, Any]:
        """The node with its agent and its own address for kube-apiserver, and a pod behind it."""
        cluster, pods = self.plan.cluster, self.ground.next_address
        own = HostPort(advertise_address(cluster), cluster.api_port)
        tunnel = _needed(self.plan, ControlPlaneService.KONNECTIVITY)
        node: dict[str, Any] = {"at": {self.node.network: self.node.address, PODS: pods(PODS)}}
        node["services"] = [
            {"address": str(HostPort(address, 443)), "to": str(own)}
            for address in service_addresses(cluster)
            if ip_address(address).version == ip_address(own.host).version
        ]
        node["processes"] = {
            "agent": list(_agent(tunnel)),
            NODE_PROXY: f"isthmus {NODE_PROXY} --config={{dir}}/{NODE_PROXY_FILE}",
        }
        anywhere = "0.0.0.0/0" if self.version == 4 else "::/0"
        return {
            "node": node,
            "pod": {
                "at": {PODS: pods(PODS)},
                "routes": [{"to": anywhere, "via": "node"}],
                "serve": {"http": 8080},
            },
        }

    def _names(self) -> dict[str, str]:
        """Names of endpoints and Services, and names that pods and sidecars know."""
        cluster = self.plan.cluster
        found = {
            each.address: front.address
            for front in self.fronts
            for each in front.endpoints
            if not is_address(each.address)
        }
        for each in self.plan.endpoints:
            if each.strategy is Strategy.NONE:
                found[each.address] = self.services[HOSTS[each.service]]
        found["konnectivity-server-local"] = self.services[HOSTS[ControlPlaneService.KONNECTIVITY]]
        found["apiserver.node.internal"] = advertise_address(cluster)
        for address in service_addresses(cluster)[:1]:
            found["kubernetes.default.svc"] = address
        return found

    def _files(self) -> dict[str, str]:
        found = {
            routes_file(front): routes(front, self.plan)
            for front in self.fronts
            if front.shares_by_name
        }
        endpoint = _needed(self.plan, ControlPlaneService.API_SERVER)
        found[NODE_PROXY_FILE] = lab_proxy(self.plan, endpoint, ca="{ca_cert}")
        return found


def _version(plan: PublishPlan) -> int:
    """The IP version of the lab: that of the node ports, otherwise of the Services."""
    literal = [each.address for each in plan.endpoints if is_address(each.address)]
    networks = [str(ip_network(each, strict=False)[0]) for each in plan.cluster.service_cidrs]
    return next((ip_address(each).version for each in (*literal, *networks)), 4)


def _about(plan: PublishPlan) -> str:
    text = (
        "Hosts: kube-apiserver, with the server in its pod, and other services of the control"
        " plane; their load balancers, node ports and routers; a node of the guest cluster with a"
        " pod; a user on the internet, an operator of the management cluster, a component of the"
        " control plane."
    )
    if plan.cluster.proxy_for_https:
        text += " The cluster's proxy is not part of the lab."
    return text


def _needed(plan: PublishPlan, service: ControlPlaneService) -> PlannedEndpoint:
    found = way(plan, service, Viewpoint.GUEST_VPC)
    if found is None:
        raise ConfigError(f"nodes cannot reach {service.value}, so there is nothing to try")
    return found


def _server() -> tuple[str, ...]:
    """The plan's server, as a single one and with the lab's certificates."""
    files = {
        f"{side}_{kind}": (placeholder,)
        for side in ("server", "cluster")
        for kind, placeholder in _SERVER_FILES.items()
    }
    files["server_ca_cert"] = ("{client_ca_cert}",)
    flags = {
        **server_flags(PartChoices(replicas=1)),
        **files,
        "server_id": ("server",),
        "health_bind_address": ("127.0.0.1",),
    }
    return command_line("server", ServerSettings, flags)


def _agent(endpoint: PlannedEndpoint) -> tuple[str, ...]:
    """The plan's agent, with the lab's certificates and shorter timeouts."""
    files = {each: (f"{{{each}}}",) for each in ("ca_cert", "agent_cert", "agent_key")}
    flags = {**agent_flags(endpoint), **files, **_FAST, "agent_id": ("node",)}
    return command_line("agent", AgentSettings, flags)


def reaches(plan: PublishPlan, endpoint: PlannedEndpoint, stander: LabVisitor) -> bool:
    """Whether an endpoint is visible from there and admits this address."""
    if stander.stands not in endpoint.visible_from:
        return False
    return not endpoint.restricted or is_allowed(stander.address, expected_blocks(plan, endpoint))


def steps(plan: PublishPlan, standers: Sequence[LabVisitor]) -> Iterator[LabStep]:
    """The steps: the tunnel, the node's own address, then every client at every endpoint."""
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


def _at_the_node(plan: PublishPlan) -> Iterator[LabStep]:
    own = HostPort(advertise_address(plan.cluster), plan.cluster.api_port)
    targets = [f"https://{own}/"]
    if service_addresses(plan.cluster):
        targets.append("https://kubernetes.default.svc/")
    asking = {"get": targets, "answers": "from kube-apiserver", "within_s": CHECKED_S}
    yield {"from": ["node", "pod"], **asking}


def _at(
    plan: PublishPlan, endpoint: PlannedEndpoint, standers: Sequence[LabVisitor]
) -> Iterator[LabStep]:
    may = [each.host for each in standers if reaches(plan, endpoint, each)]
    may += [each.host for each in standers if endpoint in each.must and each.host not in may]
    others = [each.host for each in standers if each.host not in may]
    target = HostPort(endpoint.address, endpoint.port)
    # The server requires a client certificate, so the connected agent of the node is the proof.
    what: LabStep = {"connect": str(target)}
    if endpoint.service is not ControlPlaneService.KONNECTIVITY:
        what = {"get": f"https://{target}/", "answers": f"from {HOSTS[endpoint.service]}"}
    if may:
        yield {"from": may, **what}
    if others and endpoint.through == SHARED_INGRESS:
        yield {"from": others, "get": f"https://{target}/", "fails": "other"}  # a TLS alert
    elif others:
        yield {"from": others, "connect": str(target), "fails": "unreachable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabVisitor:
    """A client in the lab; ``address`` is the one that others see.

    ``must`` are endpoints that it must reach, whatever the CIDR blocks are.
    """

    host: str
    network: str
    stands: Viewpoint
    address: str
    must: frozenset[PlannedEndpoint] = frozenset()


def rules(
    plan: PublishPlan, standers: Sequence[LabVisitor], found: Sequence[LabFront]
) -> Iterator[AllowRule]:
    """Rules for clients to fronts, to Services inside, and for fronts to their backends."""
    for front in found:
        for stander in standers:
            let_in = [each for each in front.endpoints if lets_in(plan, each, stander)]
            ports = [port for each in let_in for port in ports_at(each)]
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
            if each.service in behind:
                ports_of.setdefault(HOSTS[each.service], []).append(behind[each.service])
        for host, ports in ports_of.items():
            yield from _rule(front.host, host, ports)


def _rule(source: str, target: str, ports: Iterable[int]) -> Iterator[AllowRule]:
    listed = sorted(set(ports))
    if listed:
        yield {"from": source, "to": target, "port": listed}


def lets_in(plan: PublishPlan, endpoint: PlannedEndpoint, stander: LabVisitor) -> bool:
    """Whether the object with an endpoint's address accepts connections from there."""
    endpoint = named_first(endpoint, plan)
    at = endpoint.through or endpoint.by
    if at in OPEN or at == SHARED_INGRESS:  # the router refuses according to its routes
        return True
    service = _object(plan, at)
    if stander.stands is Viewpoint.INTERNET and not _is_outside(endpoint, service):
        return False
    sources = source_blocks(plan, service)
    return not sources or is_allowed(stander.address, sources)


def source_blocks(plan: PublishPlan, service: Manifest) -> tuple[str, ...]:
    """The sources that a Service accepts; empty is all."""
    ranges = service["spec"].get("loadBalancerSourceRanges")
    if ranges:
        return tuple(ranges)
    if "externalTrafficPolicy" in service["spec"]:  # a NetworkPolicy applies to it
        return (*plan.cluster.allowed_cidrs, *plan.cluster.machine_cidrs)
    return ()


def expected_blocks(plan: PublishPlan, endpoint: PlannedEndpoint) -> tuple[str, ...]:
    """The sources that may reach a restricted endpoint."""
    blocks = plan.cluster.allowed_cidrs
    by_policy = any(
        key(each) == endpoint.by and "externalTrafficPolicy" in each["spec"]
        for each in plan.objects
    )
    return (*blocks, *plan.cluster.machine_cidrs) if by_policy else blocks


def _object(plan: PublishPlan, name: str) -> Manifest:
    return next(each for each in plan.objects if key(each) == name)


def _is_outside(endpoint: PlannedEndpoint, service: Manifest) -> bool:
    """Whether the address of a Service is reachable from the internet."""
    match service["spec"]["type"]:
        case "LoadBalancer":
            return not is_internal(service)
        case "NodePort":
            known = is_address(endpoint.address)
            return not known or ip_address(endpoint.address).is_global
        case _:
            return False
