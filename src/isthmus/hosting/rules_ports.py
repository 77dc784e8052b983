"""Rules about NodePorts: their numbers, and the address that nodes and users dial."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from isthmus.hosting.model import HostedCluster, Publishing, Strategy
from isthmus.hosting.rules import BOTH, CONTROLLER, CRD, RuleBreak, RuleList, contains, of_section
from isthmus.text.addresses import reached, reached_address
from isthmus.values import is_address

RULES: Final = RuleList()


def _node_ports(cluster: HostedCluster) -> list[Publishing]:
    return [entry for entry in cluster.services if entry.strategy is Strategy.NODE_PORT]


@RULES.error(
    "node-port-once",
    "each node port is of one service",
    missed_by=f"{CRD}, where the check is commented out; {CONTROLLER}",
)
def _twice(cluster: HostedCluster) -> Iterator[RuleBreak]:
    first: dict[int, Publishing] = {}
    for entry in _node_ports(cluster):
        other = first.setdefault(entry.node_port, entry)
        if entry.node_port and other is not entry:
            yield RuleBreak(
                f"port {entry.node_port} is that of {other.service.value} too"
                f" ({other.place.field}), and a node port belongs to one Service, whatever the"
                " address",
                "choose another one, or leave it out and Kubernetes chooses",
                of_section(cluster, entry, "port"),
            )


@RULES.error(
    "node-port-range",
    "node ports are in serviceNodePortRange, 30000-32767 by default",
    missed_by=f"{CRD}; {CONTROLLER}, but for the APIServer",
)
def _out_of_range(cluster: HostedCluster) -> Iterator[RuleBreak]:
    low, high = cluster.node_port_range
    for entry in _node_ports(cluster):
        if entry.node_port and not low <= entry.node_port <= high:
            yield RuleBreak(
                f"port {entry.node_port} of {entry.service.value} is not a node port",
                f"choose one from {low} to {high}, or leave it out and Kubernetes chooses",
                of_section(cluster, entry, "port"),
            )


def _at_addresses(cluster: HostedCluster) -> list[Publishing]:
    """Those whose address is one, and not a name."""
    return [entry for entry in _node_ports(cluster) if is_address(entry.node_address)]


@RULES.error(
    "node-port-in-services", "the address of a NodePort is in no service network", missed_by=CRD
)
def _in_services(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _at_addresses(cluster):
        for cidr in cluster.service_cidrs:
            if contains(cidr, entry.node_address):
                yield RuleBreak(
                    f"{entry.node_address} is in the service network {cidr}, so nodes would look"
                    " for it in their own cluster",
                    "use an address of the management cluster's nodes",
                    of_section(cluster, entry, "address"),
                )


@RULES.error(
    "node-port-advertised", "the address of a NodePort is not the advertise address", missed_by=BOTH
)
def _advertised(cluster: HostedCluster) -> Iterator[RuleBreak]:
    mine = cluster.advertise_address
    for entry in _at_addresses(cluster):
        if mine and reached_address(mine) == reached_address(entry.node_address):
            yield RuleBreak(
                f"{entry.node_address} is the advertise address too, which every node has on its"
                f" lo: no node could reach {entry.service.value}",
                "give spec.networking.apiServer.advertiseAddress an address that nobody else has",
                of_section(cluster, entry, "address"),
            )


@RULES.warning(
    "node-port-in-pods", "the address of a NodePort is in no pod network", missed_by=BOTH
)
def _in_pods(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _at_addresses(cluster):
        for cidr in cluster.cluster_cidrs:
            if contains(cidr, entry.node_address):
                yield RuleBreak(
                    f"{entry.node_address} is in the pod network {cidr}, so nodes would look for"
                    " it in their own cluster",
                    "use an address of the management cluster's nodes, or other ranges",
                    of_section(cluster, entry, "address"),
                )


def _means_itself(address: str) -> bool:
    return any(it.is_loopback or it.is_link_local or it.is_multicast for it in reached(address))


@RULES.warning(
    "node-port-nowhere",
    "the address of a NodePort is not localhost, link-local or a group",
    missed_by=BOTH,
)
def _nowhere(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _node_ports(cluster):
        address = entry.node_address
        if address == "localhost" or (is_address(address) and _means_itself(address)):
            yield RuleBreak(
                f"{address} is a different machine for everybody who dials it",
                "use an address of the management cluster's nodes",
                of_section(cluster, entry, "address"),
            )


@RULES.note("node-port-chosen-later", "a NodePort without a port gets one from Kubernetes")
def _chosen_later(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _node_ports(cluster):
        if "nodePort" in entry.has and not entry.node_port:
            yield RuleBreak(
                f"Kubernetes chooses the port of {entry.service.value}, and it is known only then",
                "name a port if a firewall has to know it",
                of_section(cluster, entry, "port"),
            )
