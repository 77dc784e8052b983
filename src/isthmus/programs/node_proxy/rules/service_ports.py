"""The ports of a Service in one IP family, and the endpoints that each of them uses on this node.

Endpoints are chosen by readiness, place and hints, by kube-proxy's rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    ChosenEndpoints,
    Endpoint,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
)
from isthmus.programs.node_proxy.rules.objects import ServiceObject, family_of

#: Endpoints by the name and protocol of a Service's port, sorted by their text.
EndpointsByPort = Mapping[tuple[str, PortProtocol], tuple[Endpoint, ...]]


class _Prefer(Enum):
    """Whose hints hold."""

    NOBODY = 0
    SAME_NODE = 1
    SAME_ZONE = 2


_NONE = ChosenEndpoints()


def categorize_endpoints(
    endpoints: tuple[Endpoint, ...], port: ServicePort, *, node_name: str, zone: str
) -> ChosenEndpoints:
    """Choose from the endpoints of a port, which are sorted, for its traffic policies.

    Ready ones are used; where there are none, those that still serve while they terminate, for
    either policy by itself.
    """
    if not endpoints:
        return _NONE
    serving = _all_if(endpoints, [each for each in endpoints if each.serving])
    ready = _all_if(endpoints, [each for each in endpoints if each.ready])
    if not (ready or serving):
        return _NONE
    leaving = () if ready else tuple(each for each in serving if each.terminating)
    cluster: tuple[Endpoint, ...] = ()
    if port.uses_cluster_endpoints:
        prefer = _preference(ready, node_name, zone)
        cluster = _preferred(ready, prefer, node_name, zone) or leaving
    exist = bool(cluster)
    if not port.uses_local_endpoints:
        return ChosenEndpoints(cluster=cluster, reachable=cluster, exist=exist, serving=serving)
    local = tuple(each for each in ready if each.local) or tuple(
        each for each in serving if each.local and each.terminating and not each.ready
    )
    exist = exist or bool(ready or leaving)
    if not port.uses_cluster_endpoints:
        return ChosenEndpoints(local=local, reachable=local, exist=exist, serving=serving)
    reachable = _either(endpoints, cluster, local)
    return ChosenEndpoints(
        cluster=cluster, local=local, reachable=reachable, exist=exist, serving=serving
    )


def _preference(ready: tuple[Endpoint, ...], node_name: str, zone: str) -> _Prefer:
    """Hints of a kind hold if every ready endpoint has some and one of them is for us."""
    if not ready:
        return _Prefer.NOBODY
    if all(each.node_hints for each in ready) and any(
        node_name in each.node_hints for each in ready
    ):
        return _Prefer.SAME_NODE
    if all(each.zone_hints for each in ready) and any(zone in each.zone_hints for each in ready):
        return _Prefer.SAME_ZONE
    return _Prefer.NOBODY


def _preferred(
    ready: tuple[Endpoint, ...], prefer: _Prefer, node_name: str, zone: str
) -> tuple[Endpoint, ...]:
    match prefer:
        case _Prefer.SAME_NODE:
            return tuple(each for each in ready if node_name in each.node_hints)
        case _Prefer.SAME_ZONE:
            return tuple(each for each in ready if zone in each.zone_hints)
        case _Prefer.NOBODY:
            return ready


def _all_if(endpoints: tuple[Endpoint, ...], some: list[Endpoint]) -> tuple[Endpoint, ...]:
    """The same tuple where nothing was left out: there are many, and they stay."""
    return endpoints if len(some) == len(endpoints) else tuple(some)


def _either(
    endpoints: tuple[Endpoint, ...], cluster: tuple[Endpoint, ...], local: tuple[Endpoint, ...]
) -> tuple[Endpoint, ...]:
    wanted = {id(each) for each in cluster} | {id(each) for each in local}
    if len(wanted) == len(cluster):
        return cluster
    return tuple(each for each in endpoints if id(each) in wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltService:
    """A Service in one family. ``endpoints`` counts all behind its ports, usable or not.

    ``local_ready`` counts addresses on this node that are ready, where somebody checks for them.
    """

    ports: tuple[BackedPort, ...] = ()
    endpoints: int = 0
    health_port: int = 0
    local_ready: int = 0

    @property
    def udp(self) -> dict[PortKey, object]:
        return {
            each.port.key: each.backends
            for each in self.ports
            if each.port.key.protocol is PortProtocol.UDP
        }


NOTHING = BuiltService()


def build(
    obj: ServiceObject, family: IpFamily, behind: EndpointsByPort, *, node_name: str, zone: str
) -> BuiltService:
    """Make what one Service is in one family; nothing if it has no address there."""
    ports = service_ports(obj, family)
    if not ports:
        return NOTHING
    backed, count = [], 0
    for port in ports:
        endpoints = behind.get((port.key.port, port.key.protocol), ())
        count += len(endpoints)
        backends = categorize_endpoints(endpoints, port, node_name=node_name, zone=zone)
        backed.append(BackedPort(port=port, backends=backends))
    local: set[str] = set()
    if obj.health_check_node_port:
        # Of every port that pods have, whether the Service has it or not (kube-proxy's count).
        local = {
            each.ip
            for endpoints in behind.values()
            for each in endpoints
            if each.local and each.ready
        }
    return BuiltService(
        ports=tuple(backed),
        endpoints=count,
        health_port=obj.health_check_node_port,
        local_ready=len(local),
    )


def service_ports(obj: ServiceObject, family: IpFamily) -> list[ServicePort]:
    """The ports of a Service in one family; of two with one name and protocol the last holds."""
    cluster_ip = obj.cluster_ip(family)
    if not cluster_ip:
        return []
    external_ips = _of_family(obj.external_ips, family)
    load_balancer_ips = _of_family(obj.load_balancer_ips, family)
    source_ranges = _of_family(obj.source_ranges, family)
    if any(each.endswith("/0") for each in source_ranges):
        source_ranges = ()  # everybody, which is what no ranges mean
    found = {
        (each.name, each.protocol): ServicePort(
            key=PortKey(obj.name, each.name, each.protocol),
            cluster_ip=cluster_ip,
            port=each.port,
            node_port=each.node_port,
            external_ips=external_ips,
            load_balancer_ips=load_balancer_ips,
            source_ranges=source_ranges,
            affinity_s=obj.affinity_s,
            internal_local=obj.internal_local,
            external_local=obj.external_local,
            health_check_node_port=obj.health_check_node_port,
        )
        for each in obj.ports
    }
    return list(found.values())


def _of_family(given: Iterable[str], family: IpFamily) -> tuple[str, ...]:
    return tuple([each for each in given if family_of(each) is family])
