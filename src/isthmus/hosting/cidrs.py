"""Where the allowed CIDR blocks hold, and where they only look as if they did.

The document has one list for the whole cluster, under the API server's networking. HyperShift
copies it to the public load balancer of kube-apiserver and to that of the control plane's own
router; a shared ingress has it for every name of the cluster. Nothing else knows of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network

from isthmus.hosting.model import (
    Endpoint,
    Finding,
    From,
    HostedCluster,
    Place,
    Platform,
    Service,
    Strategy,
    Weight,
)
from isthmus.hosting.visibility import (
    INGRESS,
    SHARED_INGRESS,
    is_private,
    is_published,
    seen_from,
)

FIELD = "spec.networking.apiServer.allowedCIDRBlocks"
NOT_HERE = "cidrs-not-here"

#: Every finding of this module, by its name.
RULES: Mapping[str, str] = {
    NOT_HERE: "the allowed CIDR blocks do not hold for a published endpoint",
    "cidrs-nowhere": "they hold for none",
    "cidrs-for-all-names": "they hold for every Route, not for the API server's alone",
    "cidrs-for-nodes": "nodes come by an endpoint for which they hold",
    "cidrs-node-port": "a load balancer's Service has a node port, for which they do not hold",
}

_USED_BY_NODES = (Service.API_SERVER, Service.KONNECTIVITY, Service.IGNITION)
#: Where nodes are machines of one's own network, which come with their own addresses.
_ON_PREMISES = frozenset({Platform.AGENT, Platform.NONE})


def cidr_findings(cluster: HostedCluster, endpoints: Sequence[Endpoint]) -> tuple[Finding, ...]:
    """What has to be said of the allowed CIDR blocks; nothing where there are none."""
    if not cluster.allowed_cidrs:
        return ()
    published = [each for each in endpoints if is_published(each)]
    held = [each for each in published if each.restricted]
    found = [_not_here(cluster, each) for each in published if not each.restricted]
    if not held:
        found.insert(0, _nowhere(cluster))
    found += _all_names(cluster, held)
    found += _nodes(cluster, endpoints)
    found += _node_ports(cluster, held)
    return tuple(found)


def place(cluster: HostedCluster) -> Place:
    """Where the document has them."""
    return cluster.places.get(FIELD, Place(field=FIELD))


def why_not(endpoint: Endpoint) -> str:
    """Why the blocks do not hold for an endpoint, as a clause."""
    match endpoint.strategy:
        case Strategy.NODE_PORT:
            return "a node port has no list of sources"
        case Strategy.ROUTE if endpoint.through == INGRESS:
            return f"the {INGRESS} serves it, for other clusters too"
        case Strategy.LOAD_BALANCER if From.INTERNET in endpoint.visible_from:
            return f"HyperShift does not copy them to {endpoint.by}"
    return "they are never copied to what is for the guest's own network"


def _not_here(cluster: HostedCluster, endpoint: Endpoint) -> Finding:
    publishing = cluster.publishing(endpoint.service)
    who = "everybody" if From.INTERNET in endpoint.visible_from else "the whole guest network"
    if endpoint.strategy is Strategy.NODE_PORT:
        who = "whoever reaches a node of the management cluster"
    return Finding(
        rule=NOT_HERE,
        weight=Weight.WARNING,
        says=(
            f"the allowed CIDR blocks do not hold for {endpoint.service.value} at {endpoint.by}:"
            f" {why_not(endpoint)}; {who} can connect"
        ),
        do=_instead(cluster, endpoint),
        place=publishing.place if publishing else Place(),
        missed_by="HyperShift",
    )


def _instead(cluster: HostedCluster, endpoint: Endpoint) -> str:
    if From.INTERNET not in endpoint.visible_from and endpoint.strategy is not Strategy.NODE_PORT:
        return "restrict it with the security groups of the guest's own network"
    if endpoint.strategy is Strategy.ROUTE and cluster.platform is not Platform.IBMCLOUD:
        return (
            "give APIServer a Route with a hostname, so that all Routes go by a router of their own"
        )
    if endpoint.strategy is Strategy.ROUTE:
        return f"restrict it at the {INGRESS}: no Route has a router of its own on IBM Cloud"
    if is_private(cluster):  # where sources are not kept: see network_policies.limited
        return "put a firewall before it"
    return "put a firewall before it, or plan with --keep-sources and apply its NetworkPolicies"


def _nowhere(cluster: HostedCluster) -> Finding:
    routed = "" if cluster.platform is Platform.IBMCLOUD else " or Route"
    return Finding(
        rule="cidrs-nowhere",
        weight=Weight.WARNING,
        says="the allowed CIDR blocks hold for no endpoint of this cluster",
        do=f"leave them out, or publish APIServer by a public LoadBalancer{routed}",
        place=place(cluster),
        missed_by="HyperShift",
    )


def _all_names(cluster: HostedCluster, held: Iterable[Endpoint]) -> Iterator[Finding]:
    routes = [each for each in held if each.strategy is Strategy.ROUTE]
    others = [each for each in routes if each.service is not Service.API_SERVER]
    if others:
        names = ", ".join(dict.fromkeys(each.service.value for each in others))
        yield Finding(
            rule="cidrs-for-all-names",
            weight=Weight.NOTE,
            says=f"the allowed CIDR blocks hold for {names} as well: {_which(others[0])}",
            do="put the addresses of everybody who uses those among them",
            place=place(cluster),
        )


def _which(endpoint: Endpoint) -> str:
    if endpoint.through == SHARED_INGRESS:
        return "the shared ingress has them for every name of the cluster"
    return f"{endpoint.through} is the address of every Route"


def _nodes(cluster: HostedCluster, endpoints: Sequence[Endpoint]) -> Iterator[Finding]:
    if is_private(cluster):
        return
    by_them = [
        service.value
        for service in _USED_BY_NODES
        if (found := seen_from(endpoints, service, From.GUEST_VPC))
        and found[0].restricted
        and not _lets_machines_in(cluster, found[0])
    ]
    if by_them:
        yield Finding(
            rule="cidrs-for-nodes",
            weight=Weight.WARNING,
            says=(
                f"nodes come to {', '.join(by_them)} like everybody else, and the allowed CIDR"
                " blocks hold for them too; from which address they come is not in the document"
            ),
            do=(
                "see that the addresses that nodes have outside, such as their NAT gateway's, are"
                " among them, and try it in a lab with --nodes-from"
            ),
            place=place(cluster),
            missed_by="HyperShift",
        )


def _lets_machines_in(cluster: HostedCluster, endpoint: Endpoint) -> bool:
    """Whether the machine network is let in, where machines are seen by their own addresses."""
    if not cluster.machine_cidrs:
        return False
    # A node port is restricted by a policy only, which knows the machine network.
    if endpoint.strategy is Strategy.NODE_PORT:
        return True
    allowed = cluster.allowed_cidrs
    return cluster.platform in _ON_PREMISES and all(
        any(_within(machines, block) for block in allowed) for machines in cluster.machine_cidrs
    )


def _within(inner: str, outer: str) -> bool:
    one, other = ip_network(inner), ip_network(outer)
    return one.version == other.version and one.subnet_of(other)  # type: ignore[arg-type]


def _node_ports(cluster: HostedCluster, held: Iterable[Endpoint]) -> Iterator[Finding]:
    balancers = {each.by for each in held if each.strategy is Strategy.LOAD_BALANCER}
    balancers |= {each.through for each in held if each.through.startswith("Service/")}
    for each in sorted(balancers):
        yield Finding(
            rule="cidrs-node-port",
            weight=Weight.NOTE,
            says=(
                f"{each} also opens a port on every node of the management cluster, for which the"
                " allowed CIDR blocks do not hold"
            ),
            do="see that node ports of the management cluster cannot be reached from outside",
            place=place(cluster),
        )
