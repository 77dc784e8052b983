"""A plan as a topology of ``isthmus lab``: to be tried before it is used.

Networks are the internet, the guest's, the management cluster's and the control plane's; the wall
between them is what the plan says about who sees what. kube-apiserver and the other services are
small servers; what is Isthmus' own runs with the plan's own flags and files. Where addresses and
networks come from is said in lab_topology_ground.py, what the wall lets through in
lab_topology_walls.py, what has to be seen in lab_topology_steps.py.
"""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

from isthmus.errors import ConfigError
from isthmus.hosting import lab_topology_fronts as doors
from isthmus.hosting import lab_topology_steps as seen
from isthmus.hosting.lab_topology_fronts import CONTROL_PLANE, HOSTS
from isthmus.hosting.lab_topology_ground import INTERNET, Ground, inside, is_allowed, outside
from isthmus.hosting.lab_topology_walls import Stander, expected_blocks, rules
from isthmus.hosting.model import Endpoint, From, Plan, Service, Strategy
from isthmus.hosting.own_parts_konnectivity import (
    Choices,
    agent_flags,
    command_line,
    server_flags,
)
from isthmus.hosting.own_parts_names import advertise_address, service_addresses
from isthmus.hosting.own_parts_node import proxy_plan
from isthmus.hosting.reach import Who, needs, way
from isthmus.programs.agent.settings import AgentSettings
from isthmus.programs.apiserver_proxy.rules import Bounds
from isthmus.programs.apiserver_proxy.settings_file import write
from isthmus.programs.server.settings import ServerSettings
from isthmus.settings.go_yaml_writing import to_yaml
from isthmus.values import HostPort, is_address

GUEST, PODS, MANAGEMENT = "guest", "pods", "management"
_MACHINES = {4: "10.0.0.0/16", 6: "fd15:7a:1::/64"}
_PROXY_FILE = "apiserver-proxy.yaml"
_SERVER_FILES = {"cert": "{server_cert}", "key": "{server_key}", "ca_cert": "{ca_cert}"}
_FAST = {"sync_interval_s": ("100ms",), "sync_interval_cap_s": ("1s",)}


def lab_topology(plan: Plan, *, nodes_from: str = "") -> str:
    """Write the topology of a plan without errors, for ``isthmus lab run FILE``.

    ``nodes_from`` is the address that others see of the nodes, a NAT gateway's for example. Without
    it they come from their own network, or where CIDR blocks are allowed from one of those.

    Raises:
        ConfigError: the lab cannot have such addresses; one sentence.
    """
    return to_yaml([_Builder(doors.complete(plan), nodes_from).document()])


class _Builder:
    """The parts of one topology, made in the order in which they need each other."""

    def __init__(self, plan: Plan, nodes_from: str) -> None:
        self.plan = plan
        cluster = plan.cluster
        self.version = _version(plan)
        given = (*cluster.machine_cidrs, *cluster.cluster_cidrs, *cluster.service_cidrs)
        self.ground = Ground(self.version, given, cluster.allowed_cidrs)
        self._make_networks()
        self.node = self._node(nodes_from)
        self.fronts = doors.fronts(plan, self.ground)
        self.standers = [self.node, *self._others()]
        self.services = {
            host: self.ground.next_address(CONTROL_PLANE)
            for host in dict.fromkeys(HOSTS[each.service] for each in plan.endpoints)
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

    def _node(self, nodes_from: str) -> Stander:
        """The node; what it needs is to be reached, or the plan does not work."""
        blocks = self.plan.cluster.allowed_cidrs
        wanted = [
            each.endpoint
            for each in needs(self.plan)
            if each.who is Who.NODE and each.endpoint is not None
        ]
        if nodes_from and not is_address(nodes_from):
            raise ConfigError(f"--nodes-from takes an address, not {nodes_from!r}")
        own = self.ground.next_address(GUEST)
        held = [each for each in wanted if each.restricted]
        if not all(is_allowed(own, expected_blocks(self.plan, each)) for each in held):
            nodes_from = nodes_from or inside(blocks, self.version, narrow=True)
        return Stander(
            host="node",
            network=self.ground.place("nat", nodes_from) if nodes_from else GUEST,
            stands=From.GUEST_VPC,
            address=nodes_from or own,
            must=frozenset(wanted),
        )

    def _others(self) -> list[Stander]:
        """A user on the internet, another whom CIDR blocks shut out, and two neighbours."""
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
                    Stander(host=host, network=network, stands=From.INTERNET, address=address)
                )
        for host, network, stands in (
            ("operator", MANAGEMENT, From.MANAGEMENT),
            ("component", CONTROL_PLANE, From.SAME_CLUSTER),
        ):
            address = self.ground.next_address(network)
            found.append(Stander(host=host, network=network, stands=stands, address=address))
        return found

    def document(self) -> dict[str, Any]:
        """The whole topology."""
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
            "steps": list(seen.steps(plan, self.standers)),
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
                and each.service is not Service.KONNECTIVITY
            ]
            found[host] = {"at": {CONTROL_PLANE: address}, "serve": {"https": sorted(set(ports))}}
        found[HOSTS[Service.KONNECTIVITY]]["processes"] = {"server": list(_server())}
        return found

    def _front_hosts(self) -> dict[str, Any]:
        return {front.host: doors.front_host(front, self.plan) for front in self.fronts}

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
        tunnel = _needed(self.plan, Service.KONNECTIVITY)
        node: dict[str, Any] = {"at": {self.node.network: self.node.address, PODS: pods(PODS)}}
        node["services"] = [
            {"address": str(HostPort(address, 443)), "to": str(own)}
            for address in service_addresses(cluster)
            if ip_address(address).version == ip_address(own.host).version
        ]
        node["processes"] = {
            "agent": list(_agent(tunnel)),
            "apiserver-proxy": f"isthmus apiserver-proxy --config={{dir}}/{_PROXY_FILE}",
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
        """Names of endpoints, of Services, and of what pods and sidecars know."""
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
        found["konnectivity-server-local"] = self.services[HOSTS[Service.KONNECTIVITY]]
        found["apiserver.node.internal"] = advertise_address(cluster)
        for address in service_addresses(cluster)[:1]:
            found["kubernetes.default.svc"] = address
        return found

    def _files(self) -> dict[str, str]:
        found = {
            doors.routes_file(front): doors.routes(front, self.plan)
            for front in self.fronts
            if front.shares_by_name
        }
        found[_PROXY_FILE] = _proxy(self.plan)
        return found


def _version(plan: Plan) -> int:
    """The version of IP of the lab: as the node ports have it, or else the Services."""
    literal = [each.address for each in plan.endpoints if is_address(each.address)]
    networks = [str(ip_network(each, strict=False)[0]) for each in plan.cluster.service_cidrs]
    return next((ip_address(each).version for each in (*literal, *networks)), 4)


def _about(plan: Plan) -> str:
    text = (
        "Hosts: kube-apiserver, with the server in its pod, and other services of the control"
        " plane; their load balancers, node ports and routers; a node of the guest cluster with a"
        " pod; a user on the internet, an operator of the management cluster, a component of the"
        " control plane."
    )
    if plan.cluster.https_proxy:
        text += " The cluster's proxy is not part of the lab."
    return text


def _needed(plan: Plan, service: Service) -> Endpoint:
    found = way(plan, service, From.GUEST_VPC)
    if found is None:
        raise ConfigError(f"nodes have no way to {service.value}, so there is nothing to try")
    return found


def _server() -> tuple[str, ...]:
    """The plan's own server, alone and with the lab's certificates."""
    files = {
        f"{side}_{kind}": (placeholder,)
        for side in ("server", "cluster")
        for kind, placeholder in _SERVER_FILES.items()
    }
    files["server_ca_cert"] = ("{client_ca_cert}",)
    flags = {
        **server_flags(Choices(replicas=1)),
        **files,
        "server_id": ("server",),
        "health_bind_address": ("127.0.0.1",),
    }
    return command_line("server", ServerSettings, flags)


def _agent(endpoint: Endpoint) -> tuple[str, ...]:
    """The plan's own agent, with the lab's certificates and less patience."""
    files = {each: (f"{{{each}}}",) for each in ("ca_cert", "agent_cert", "agent_key")}
    flags = {**agent_flags(endpoint), **files, **_FAST, "agent_id": ("node",)}
    return command_line("agent", AgentSettings, flags)


def _proxy(plan: Plan) -> str:
    """The plan's own proxy of a node, which looks more often, and goes by no other proxy."""
    endpoint = _needed(plan, Service.API_SERVER)
    found = proxy_plan(plan, endpoint, ca="{ca_cert}")
    check = replace(found.check, interval_s=0.5, bounds=Bounds(fall=3, rise=1))
    # The port of a shared ingress that reads PROXY headers is not there either.
    at = (HostPort(endpoint.address, endpoint.port),)
    return write(replace(found, check=check, upstreams=at, through=None, proxy_protocol=None))
