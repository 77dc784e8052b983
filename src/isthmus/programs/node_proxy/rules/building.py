"""Makes the ports of a Service in one IP family, and puts endpoints behind them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from isthmus.programs.node_proxy.rules.model import (
    BackedPort,
    IpFamily,
    PortKey,
    PortProtocol,
    ServicePort,
)
from isthmus.programs.node_proxy.rules.objects import ServiceObject, family_of
from isthmus.programs.node_proxy.rules.slices import EndpointsByPort
from isthmus.programs.node_proxy.rules.topology import categorize_endpoints


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
        """What is behind its UDP ports."""
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
