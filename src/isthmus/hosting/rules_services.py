"""Rules about the list of services: which are listed, and with which strategy.

Those about NodePorts (port numbers, the address that nodes and users dial) are ``NODE_PORT_RULES``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from isthmus.hosting.model import (
    ControlPlaneService,
    DocumentPlace,
    HostedCluster,
    Platform,
    Publishing,
    Strategy,
    StrategyVerdict,
)
from isthmus.hosting.rules import (
    BOTH,
    CONTROLLER,
    CRD,
    RuleBreak,
    RuleList,
    contains,
    in_entry,
    of_section,
    place,
    section,
    words,
)
from isthmus.text.addresses import reached, reached_address
from isthmus.values import is_address

_SERVICES = "spec.services"
_SECTIONS = ("loadBalancer", "nodePort", "route")
_MAX_NAMESPACE_CHARS = 63

RULES: Final = RuleList()


@RULES.error(
    "required-services",
    "APIServer, OAuthServer, Konnectivity and Ignition are published (IBM Cloud: without Ignition)",
    missed_by="the CRD, which counts entries; the controller, but on AWS",
)
def _missing(cluster: HostedCluster) -> Iterator[RuleBreak]:
    there = {entry.service for entry in cluster.services}
    for service in cluster.model.required_on(cluster.platform):
        if service not in there:
            yield RuleBreak(
                f"{service.value} is not published",
                f"add an entry with service: {service.value}",
                place(cluster, _SERVICES),
            )


@RULES.error("service-once", "each service has one entry", missed_by=BOTH)
def _twice(cluster: HostedCluster) -> Iterator[RuleBreak]:
    first: dict[ControlPlaneService, Publishing] = {}
    for entry in cluster.services:
        other = first.setdefault(entry.service, entry)
        if other is not entry:
            yield RuleBreak(
                f"{entry.service.value} is already published at {other.place.field}; one of the two"
                " has no effect",
                "remove one of the two",
                DocumentPlace(entry.place.line, f"{entry.place.field}.service"),
            )


@RULES.error(
    "strategy-possible",
    "the control plane operator can publish the service by this strategy",
    missed_by=f"{CRD}; the control plane operator fails later",
)
def _refused(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in cluster.services:
        service, strategy, model = entry.service, entry.strategy, cluster.model
        if model.verdict(service, strategy, cluster.platform) is StrategyVerdict.REFUSED:
            yield RuleBreak(
                f"{service.value} cannot be published by {strategy.value}"
                f" on {cluster.platform.value}",
                f"use {words(model.accepted(service, cluster.platform))}",
                in_entry(cluster, entry, ".type"),
            )


@RULES.error("section-of-type", "loadBalancer, nodePort and route are set only with their own type")
def _foreign_section(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in cluster.services:
        for name in _SECTIONS:
            if name in entry.has and name != section(entry.strategy):
                yield RuleBreak(
                    f"{name} has no effect with type {entry.strategy.value}",
                    f"remove it, or make the type {name[0].upper()}{name[1:]}",
                    in_entry(cluster, entry, f".{name}"),
                )


@RULES.error("node-port-section", "a NodePort has its nodePort section")
def _no_node_port(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in cluster.services:
        if entry.strategy is Strategy.NODE_PORT and "nodePort" not in entry.has:
            yield RuleBreak(
                f"{entry.service.value} has no address for its NodePort",
                "add nodePort with an address of the management cluster's nodes",
                in_entry(cluster, entry, ".nodePort"),
            )


@RULES.error(
    "control-plane-namespace",
    "the control plane's namespace, NAMESPACE-NAME, has at most 63 characters",
    missed_by=CRD,
)
def _long_namespace(cluster: HostedCluster) -> Iterator[RuleBreak]:
    name = cluster.control_plane
    if len(name) > _MAX_NAMESPACE_CHARS:
        yield RuleBreak(
            f"the control plane's namespace would be {name}, of {len(name)} characters",
            f"shorten the name: the maximum is {_MAX_NAMESPACE_CHARS} characters"
            " including the namespace",
            place(cluster, "metadata.name"),
        )


def _is_s3_elsewhere(cluster: HostedCluster, strategy: Strategy) -> bool:
    return strategy is Strategy.S3 and cluster.platform is not Platform.AWS


@RULES.warning("s3-on-aws", "S3 is used only on AWS", missed_by=BOTH)
def _s3(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in cluster.services:
        if entry.service in cluster.model.unused and _is_s3_elsewhere(cluster, entry.strategy):
            yield RuleBreak(
                f"{entry.service.value} uses an S3 bucket, which {cluster.platform.value} does not"
                " have",
                "remove it, and serve the issuer's documents at spec.issuerURL yourself",
                in_entry(cluster, entry, ".type"),
            )


@RULES.note("unused-service", "OIDC and OVNSbDb are not listed: they have no effect")
def _ignored(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in cluster.services:
        if entry.service in cluster.model.unused and not _is_s3_elsewhere(cluster, entry.strategy):
            yield RuleBreak(
                f"nothing publishes {entry.service.value} any more: the entry has no effect",
                "remove it",
                entry.place,
            )


@RULES.note(
    "filled-in-service",
    "on KubeVirt, a service that is not listed is added by HyperShift's webhook",
)
def _filled_in(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in cluster.services:
        if entry.place.field == _SERVICES:
            yield RuleBreak(
                f"{entry.service.value} is not listed: HyperShift's webhook makes it a"
                f" {entry.strategy.value}",
                "list it, so that the file matches the cluster",
                entry.place,
            )


NODE_PORT_RULES: Final = RuleList()


def _node_ports(cluster: HostedCluster) -> list[Publishing]:
    return [entry for entry in cluster.services if entry.strategy is Strategy.NODE_PORT]


@NODE_PORT_RULES.error(
    "node-port-once",
    "each node port belongs to one service",
    missed_by=f"{CRD}, where the check is commented out; {CONTROLLER}",
)
def _port_twice(cluster: HostedCluster) -> Iterator[RuleBreak]:
    first: dict[int, Publishing] = {}
    for entry in _node_ports(cluster):
        other = first.setdefault(entry.node_port, entry)
        if entry.node_port and other is not entry:
            yield RuleBreak(
                f"port {entry.node_port} is also that of {other.service.value}"
                f" ({other.place.field}), and a node port belongs to one Service, whatever the"
                " address",
                "choose another one, or remove it to let Kubernetes choose",
                of_section(cluster, entry, "port"),
            )


@NODE_PORT_RULES.error(
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
                f"choose one from {low} to {high}, or remove it to let Kubernetes choose",
                of_section(cluster, entry, "port"),
            )


def _at_addresses(cluster: HostedCluster) -> list[Publishing]:
    """NodePorts with an IP address, not a name."""
    return [entry for entry in _node_ports(cluster) if is_address(entry.node_address)]


@NODE_PORT_RULES.error(
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


@NODE_PORT_RULES.error(
    "node-port-advertised", "the address of a NodePort is not the advertise address", missed_by=BOTH
)
def _advertised(cluster: HostedCluster) -> Iterator[RuleBreak]:
    mine = cluster.advertise_address
    for entry in _at_addresses(cluster):
        if mine and reached_address(mine) == reached_address(entry.node_address):
            yield RuleBreak(
                f"{entry.node_address} is also the advertise address, which every node has on its"
                f" lo: no node could reach {entry.service.value}",
                "set spec.networking.apiServer.advertiseAddress to an unused address",
                of_section(cluster, entry, "address"),
            )


@NODE_PORT_RULES.warning(
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


@NODE_PORT_RULES.warning(
    "node-port-nowhere",
    "the address of a NodePort is not localhost, link-local or multicast",
    missed_by=BOTH,
)
def _nowhere(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _node_ports(cluster):
        address = entry.node_address
        if address == "localhost" or (is_address(address) and _means_itself(address)):
            yield RuleBreak(
                f"{address} is a different machine for every client",
                "use an address of the management cluster's nodes",
                of_section(cluster, entry, "address"),
            )


@NODE_PORT_RULES.note(
    "node-port-chosen-later", "a NodePort without a port gets one from Kubernetes"
)
def _chosen_later(cluster: HostedCluster) -> Iterator[RuleBreak]:
    for entry in _node_ports(cluster):
        if "nodePort" in entry.has and not entry.node_port:
            yield RuleBreak(
                f"Kubernetes chooses the port of {entry.service.value}, which is not known before",
                "set a port if a firewall needs it",
                of_section(cluster, entry, "port"),
            )
