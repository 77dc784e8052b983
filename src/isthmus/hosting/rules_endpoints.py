"""Rules about the endpoints of a plan: clients that can unexpectedly reach one, or cannot.

The document has one list of allowed CIDR blocks for the whole cluster, under the API server's
networking. HyperShift copies it to the public load balancer of kube-apiserver and to that of the
control plane's own router; a shared ingress applies it to every name of the cluster. Nothing else
uses it. Errors in the document itself are found by the other rules_*.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_network

from isthmus.hosting.model import (
    ControlPlaneService,
    DocumentPlace,
    HostedCluster,
    PlanFinding,
    PlannedEndpoint,
    Platform,
    Strategy,
    Viewpoint,
    Weight,
)
from isthmus.hosting.objects_services import AZURE_BALANCER_PORT, PORT
from isthmus.hosting.visibility import (
    BUCKET,
    INGRESS,
    OPEN,
    PUBLIC_SHARD,
    SHARED_INGRESS,
    is_private,
    is_public,
    is_published,
    seen_from,
)

FIELD = "spec.networking.apiServer.allowedCIDRBlocks"
NOT_HERE = "cidrs-not-here"

#: All findings of this module, by name.
ENDPOINT_RULES: Mapping[str, str] = {
    NOT_HERE: "the allowed CIDR blocks do not apply to a published endpoint",
    "cidrs-nowhere": "they apply to none",
    "cidrs-for-all-names": "they apply to every Route, not only to the API server's",
    "cidrs-for-nodes": "nodes use an endpoint to which they apply",
    "cidrs-node-port": "a load balancer's Service has a node port, to which they do not apply",
    "private-although-public": "an endpoint that users need is only for the guest's own network",
    "other-port-in-private": "HyperShift and its load balancer use different ports",
    "route-name-too-long": "OpenShift cannot generate a name for a Route without a hostname",
    "api-dns-name-nowhere": "no Route leads kubeAPIServerDNSName to APIServer",
    "nodes-by-ingress": "pods reach APIServer by an ingress that cannot identify their cluster",
}

_USED_BY_NODES = (
    ControlPlaneService.API_SERVER,
    ControlPlaneService.KONNECTIVITY,
    ControlPlaneService.IGNITION,
    ControlPlaneService.OVN_SB_DB,
)
#: Platforms whose nodes are machines in the user's network, with their own addresses.
_ON_PREMISES = frozenset({Platform.AGENT, Platform.NONE})

#: A label of a name in DNS is at most 63 characters long (RFC 1035 §2.3.4).
_MAX_LABEL_CHARS = 63

Surprise = Callable[[HostedCluster, PlannedEndpoint], Iterator[tuple[Weight, str, str]]]


def cidr_findings(
    cluster: HostedCluster, endpoints: Sequence[PlannedEndpoint]
) -> tuple[PlanFinding, ...]:
    """Findings about the allowed CIDR blocks; none if there are no blocks."""
    if not cluster.allowed_cidrs:
        return ()
    # The contents of a bucket are meant to be public.
    published = [each for each in endpoints if is_published(each) and each.by != BUCKET]
    held = [each for each in published if each.restricted]
    found = [_not_here(cluster, each) for each in published if not each.restricted]
    if not held:
        found.insert(0, _nowhere(cluster))
    found += _all_names(cluster, held)
    found += _nodes(cluster, endpoints)
    found += _node_ports(cluster, held)
    return tuple(found)


def _cidrs_place(cluster: HostedCluster) -> DocumentPlace:
    return cluster.places.get(FIELD, DocumentPlace(field=FIELD))


def why_not(endpoint: PlannedEndpoint) -> str:
    """Why the blocks do not apply to an endpoint, as a clause."""
    match endpoint.strategy:
        case Strategy.NODE_PORT:
            return "a node port has no list of sources"
        case Strategy.ROUTE if endpoint.through in OPEN:
            return f"the {endpoint.through} serves it, for other clusters too"
        case Strategy.LOAD_BALANCER if Viewpoint.INTERNET in endpoint.visible_from:
            return f"HyperShift does not copy them to {endpoint.by}"
    return "they are never copied to endpoints for the guest's own network"


def _not_here(cluster: HostedCluster, endpoint: PlannedEndpoint) -> PlanFinding:
    publishing = cluster.publishing(endpoint.service)
    who = "everybody" if Viewpoint.INTERNET in endpoint.visible_from else "the whole guest network"
    if endpoint.strategy is Strategy.NODE_PORT:
        who = "everyone who reaches a node of the management cluster"
    return PlanFinding(
        rule=NOT_HERE,
        weight=Weight.WARNING,
        says=(
            f"the allowed CIDR blocks do not apply to {endpoint.service.value} at {endpoint.by}:"
            f" {why_not(endpoint)}; {who} can connect"
        ),
        do=_instead(cluster, endpoint),
        place=publishing.place if publishing else DocumentPlace(),
        missed_by="HyperShift",
    )


def _instead(cluster: HostedCluster, endpoint: PlannedEndpoint) -> str:
    if (
        Viewpoint.INTERNET not in endpoint.visible_from
        and endpoint.strategy is not Strategy.NODE_PORT
    ):
        return "restrict it with the security groups of the guest's own network"
    if endpoint.through == PUBLIC_SHARD:
        return f"restrict it at the {PUBLIC_SHARD}"
    if endpoint.strategy is Strategy.ROUTE and cluster.platform is not Platform.IBMCLOUD:
        return "give APIServer a Route with a hostname, so that all Routes use their own router"
    if endpoint.strategy is Strategy.ROUTE:
        return f"restrict it at the {INGRESS}: on IBM Cloud no Route has its own router"
    if is_private(cluster):  # where sources are not kept: see objects.limited
        return "put a firewall in front of it"
    return (
        "put a firewall in front of it, or plan with --keep-sources and apply its NetworkPolicies"
    )


def _nowhere(cluster: HostedCluster) -> PlanFinding:
    routed = "" if cluster.platform is Platform.IBMCLOUD else " or Route"
    return PlanFinding(
        rule="cidrs-nowhere",
        weight=Weight.WARNING,
        says="the allowed CIDR blocks apply to no endpoint of this cluster",
        do=f"remove them, or publish APIServer by a public LoadBalancer{routed}",
        place=_cidrs_place(cluster),
        missed_by="HyperShift",
    )


def _all_names(cluster: HostedCluster, held: Iterable[PlannedEndpoint]) -> Iterator[PlanFinding]:
    routes = [each for each in held if each.strategy is Strategy.ROUTE]
    others = [each for each in routes if each.service is not ControlPlaneService.API_SERVER]
    if others:
        names = ", ".join(dict.fromkeys(each.service.value for each in others))
        yield PlanFinding(
            rule="cidrs-for-all-names",
            weight=Weight.NOTE,
            says=f"the allowed CIDR blocks apply to {names} as well: {_which(others[0])}",
            do="add the addresses of all users of those",
            place=_cidrs_place(cluster),
        )


def _which(endpoint: PlannedEndpoint) -> str:
    if endpoint.through == SHARED_INGRESS:
        return "the shared ingress applies them to every name of the cluster"
    return f"{endpoint.through} is the address of every Route"


def _nodes(cluster: HostedCluster, endpoints: Sequence[PlannedEndpoint]) -> Iterator[PlanFinding]:
    if is_private(cluster):
        return
    by_them = [
        service.value
        for service in _USED_BY_NODES
        if (found := seen_from(endpoints, service, Viewpoint.GUEST_VPC))
        and found[0].restricted
        and not _lets_machines_in(cluster, found[0])
    ]
    if by_them:
        yield PlanFinding(
            rule="cidrs-for-nodes",
            weight=Weight.WARNING,
            says=(
                f"nodes reach {', '.join(by_them)} like everybody else, and the allowed CIDR blocks"
                " apply to them too; their source address is not in the document"
            ),
            do=(
                "make sure that they contain the external addresses of nodes, such as their NAT"
                " gateway's, and try it in a lab with --nodes-from"
            ),
            place=_cidrs_place(cluster),
            missed_by="HyperShift",
        )


def _lets_machines_in(cluster: HostedCluster, endpoint: PlannedEndpoint) -> bool:
    """Whether the machine network is admitted, if machines keep their own addresses."""
    if not cluster.machine_cidrs:
        return False
    # Only a policy restricts a node port, and it admits the machine network.
    if endpoint.strategy is Strategy.NODE_PORT:
        return True
    allowed = cluster.allowed_cidrs
    return cluster.platform in _ON_PREMISES and all(
        any(_within(machines, block) for block in allowed) for machines in cluster.machine_cidrs
    )


def _within(inner: str, outer: str) -> bool:
    one, other = ip_network(inner), ip_network(outer)
    return one.version == other.version and one.subnet_of(other)  # type: ignore[arg-type]


def _node_ports(cluster: HostedCluster, held: Iterable[PlannedEndpoint]) -> Iterator[PlanFinding]:
    balancers = {each.by for each in held if each.strategy is Strategy.LOAD_BALANCER}
    balancers |= {each.through for each in held if each.through.startswith("Service/")}
    for each in sorted(balancers):
        yield PlanFinding(
            rule="cidrs-node-port",
            weight=Weight.NOTE,
            says=(
                f"{each} also opens a port on every node of the management cluster, to which the"
                " allowed CIDR blocks do not apply"
            ),
            do="make sure that node ports of the management cluster cannot be reached from outside",
            place=_cidrs_place(cluster),
        )


def _private_anyway(
    cluster: HostedCluster, endpoint: PlannedEndpoint
) -> Iterator[tuple[Weight, str, str]]:
    hidden = (
        endpoint.service is ControlPlaneService.OAUTH_SERVER
        and Viewpoint.INTERNET not in endpoint.visible_from
    )
    balanced = endpoint.strategy is Strategy.LOAD_BALANCER
    if hidden and balanced and is_public(cluster):
        yield (
            Weight.WARNING,
            "users outside the guest's own network cannot log in: the load balancer of OAuthServer"
            f" is internal as soon as the cluster is {cluster.access.value}",
            "publish OAuthServer by Route",
        )


def _other_port(
    cluster: HostedCluster, endpoint: PlannedEndpoint
) -> Iterator[tuple[Weight, str, str]]:
    private = (
        Viewpoint.GUEST_VPC in endpoint.visible_from
        and Viewpoint.INTERNET not in endpoint.visible_from
    )
    if private and cluster.platform is Platform.AZURE and endpoint.port == AZURE_BALANCER_PORT:
        yield (
            Weight.NOTE,
            f"the internal load balancer of APIServer listens on {endpoint.port}, and HyperShift"
            f" tells the proxies on nodes to use {PORT} there",
            f"make sure that nodes use {endpoint.port}, as the configuration written here does",
        )


def _long_name(
    cluster: HostedCluster, endpoint: PlannedEndpoint
) -> Iterator[tuple[Weight, str, str]]:
    made_up = endpoint.strategy is Strategy.ROUTE and not endpoint.address
    label = f"{endpoint.name}-{cluster.control_plane}"
    if made_up and len(label) >= _MAX_LABEL_CHARS:
        yield (
            Weight.WARNING,
            f"{label} is too long for the name that OpenShift generates for {endpoint.by};"
            " HyperShift shortens it, this plan cannot",
            f"give {endpoint.service.value} a hostname",
        )


def _nameless(
    cluster: HostedCluster, endpoint: PlannedEndpoint
) -> Iterator[tuple[Weight, str, str]]:
    """A node's proxy passes on what pods send, and an ingress of several clusters needs names."""
    if endpoint.service is ControlPlaneService.API_SERVER and endpoint.through == INGRESS:
        yield (
            Weight.WARNING,
            "pods cannot reach APIServer: they ask for kubernetes.default.svc, or send no name, and"
            f" the {INGRESS} knows it only as {endpoint.address or 'another name'}; on"
            f" {cluster.platform.value} no Route has its own router",
            "publish APIServer by LoadBalancer or NodePort",
        )


def _dns_name(
    cluster: HostedCluster, endpoint: PlannedEndpoint
) -> Iterator[tuple[Weight, str, str]]:
    by_ingress = endpoint.service is ControlPlaneService.API_SERVER and endpoint.through == INGRESS
    if cluster.api_dns_name and by_ingress:
        yield (
            Weight.WARNING,
            f"{cluster.api_dns_name} leads nowhere: HyperShift makes no Route for it, and the"
            f" {INGRESS} knows APIServer only as {endpoint.address or 'another name'}",
            "publish APIServer by LoadBalancer or NodePort, or remove kubeAPIServerDNSName",
        )


_TABLE: Mapping[str, Surprise] = {
    "private-although-public": _private_anyway,
    "other-port-in-private": _other_port,
    "route-name-too-long": _long_name,
    "api-dns-name-nowhere": _dns_name,
    "nodes-by-ingress": _nameless,
}


def surprises(
    cluster: HostedCluster, endpoints: Sequence[PlannedEndpoint]
) -> tuple[PlanFinding, ...]:
    """All findings about the endpoints of a plan."""
    return tuple(
        PlanFinding(
            rule=rule, weight=weight, says=says, do=do, place=_entry_place(cluster, endpoint)
        )
        for endpoint in endpoints
        for rule, look in _TABLE.items()
        for weight, says, do in look(cluster, endpoint)
    )


def _entry_place(cluster: HostedCluster, endpoint: PlannedEndpoint) -> DocumentPlace:
    found = cluster.publishing(endpoint.service)
    return found.place if found else DocumentPlace()
