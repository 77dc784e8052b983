"""All objects for the management cluster, in the order to apply them.

NetworkPolicies come first, then Services, then Routes. objects_services.py makes the objects of the
services; the Service and the Route that expose the control plane's metrics to the guest's
monitoring are here, because no entry of spec.services publishes them: their name is derived from
the Ignition server's, or from the private router's domain.

Pods of the namespace reach each other; all others reach only what is published, on its own port and
by its own way. A control plane whose API server has a Route can only be reached through its router.
Guest nodes that are pods themselves (KubeVirt) live in the same namespace and count as others.

A NetworkPolicy sees the source address of a packet at the pod. Load balancers and node ports
replace it by their own, unless traffic stays on the node: see ``keep_sources``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from isthmus.hosting.model import ControlPlaneService, HostedCluster, Platform, Strategy
from isthmus.hosting.objects_egress import (
    INGRESS,
    ROUTER_PODS,
    VIRTUAL_MACHINES,
    Peer,
    egress_policies,
    namespace,
)
from isthmus.hosting.objects_services import (
    API_SERVER,
    OAUTH,
    OAUTH_PORT,
    OVN_PODS,
    OVN_PORT,
    PORT,
    ROUTE_PORT,
    TUNNEL_PORT,
    api_objects,
    ignition_name,
    other_objects,
    service_port,
)
from isthmus.hosting.shapes import (
    CLUSTER_IP,
    LOAD_BALANCER,
    METRICS_PROXY,
    NODE_PORT,
    ROUTER_LABEL,
    Manifest,
    PlannedObject,
    ServiceTemplate,
    balancer_annotations,
    internal_labels,
    internal_name,
    is_internal,
    route,
    router_labels,
    service,
)
from isthmus.hosting.visibility import (
    behind_shared_ingress,
    is_private,
    is_public,
    labels_routes,
    uses_router,
)
from isthmus.values import HostPort

METRICS_PORT = 9443


def metrics_objects(cluster: HostedCluster) -> tuple[PlannedObject, ...]:
    """The objects for metrics; none if they are not forwarded."""
    if not cluster.forwards_metrics:
        return ()
    template = ServiceTemplate(
        port=ROUTE_PORT, target=METRICS_PORT, port_name="https", selector={"app": METRICS_PROXY}
    )
    labels = router_labels(cluster) if labels_routes(cluster) else {}
    if is_private(cluster):
        labels = internal_labels(cluster)
    made = route(cluster, METRICS_PROXY, metrics_host(cluster), METRICS_PROXY, labels=labels)
    return (
        PlannedObject(
            manifest=service(cluster, METRICS_PROXY, template),
            purpose="leads to the metrics of the control plane",
        ),
        PlannedObject(
            manifest=made, purpose="leads the guest's monitoring to the control plane's metrics"
        ),
    )


def metrics_host(cluster: HostedCluster) -> str:
    """Its name; empty if OpenShift generates one."""
    if is_private(cluster):
        return internal_name(cluster, METRICS_PROXY)
    ignition = cluster.publishing(ControlPlaneService.IGNITION)
    if ignition is None or ignition.strategy is not Strategy.ROUTE:
        return ""
    _, dot, domain = ignition.hostname.partition(".")
    return f"{METRICS_PROXY}-{cluster.name}.{domain}" if dot else ""


def metrics_backend(cluster: HostedCluster) -> HostPort:
    """Its address in the management cluster: the full name of its Service."""
    return HostPort(f"{METRICS_PROXY}.{cluster.control_plane}.svc.cluster.local", ROUTE_PORT)


ROUTER = "router"
PRIVATE_ROUTER = "private-router"

_ROUTER_PORT = 8443
_IGNITION_PORT = 8443
_NOT_MACHINES = {
    "matchExpressions": [{"key": "kubevirt.io", "operator": "NotIn", "values": ["virt-launcher"]}]
}


def objects(cluster: HostedCluster, *, keep_sources: bool = False) -> tuple[PlannedObject, ...]:
    """The objects to apply, each with its purpose.

    ``keep_sources`` enforces the allowed CIDR blocks where the cloud does not: a node passes
    connections only to its own pods, so that these see the source address, and a NetworkPolicy
    admits only those blocks and the machine network.
    """
    found = (
        *api_objects(cluster),
        *other_objects(cluster),
        *metrics_objects(cluster),
        *_router_services(cluster),
    )
    if keep_sources:
        found = tuple(_keeping(cluster, each) for each in found)
    order = {"Service": 0, "Route": 1}
    after = sorted(found, key=lambda each: order[each.manifest["kind"]])
    return (*network_policies(cluster, found, keep_sources=keep_sources), *after)


def _keeping(cluster: HostedCluster, made: PlannedObject) -> PlannedObject:
    if not limited(cluster, made):
        return made
    spec = {**made.manifest["spec"], "externalTrafficPolicy": "Local"}
    return replace(made, manifest={**made.manifest, "spec": spec})


def _router_services(cluster: HostedCluster) -> Iterator[PlannedObject]:
    """The Services of the control plane's own router, which several services share."""
    if not uses_router(cluster):
        return
    if behind_shared_ingress(cluster):
        # Swift connects the guest's own network to the router's pods.
        made = service(cluster, PRIVATE_ROUTER, _router_template(CLUSTER_IP))
        yield PlannedObject(manifest=made, purpose="leads the guest's own network to the router")
        return
    if is_private(cluster):
        cloud = balancer_annotations(cluster.platform, internal=True)
        made = service(
            cluster, PRIVATE_ROUTER, replace(_router_template(LOAD_BALANCER), annotations=cloud)
        )
        yield PlannedObject(manifest=made, purpose="leads the guest's own network to the router")
    if is_public(cluster) and labels_routes(cluster):
        cloud = balancer_annotations(cluster.platform, internal=False, both=is_private(cluster))
        more: dict[str, Any] = {}
        if cluster.allowed_cidrs:
            more["loadBalancerSourceRanges"] = list(cluster.allowed_cidrs)
        template = replace(_router_template(LOAD_BALANCER), annotations=cloud, more=more)
        yield PlannedObject(
            manifest=service(cluster, ROUTER, template), purpose="leads everybody to the router"
        )


def _router_template(type_: str) -> ServiceTemplate:
    return ServiceTemplate(
        port=443,
        target="https",
        port_name="https",
        type=type_,
        selector=ROUTER_PODS,
        labels=ROUTER_PODS,
    )


def purposes(cluster: HostedCluster, *, keep_sources: bool = False) -> dict[str, str]:
    """The purpose of each object, by ``Kind/name``."""
    return {each.key: each.purpose for each in objects(cluster, keep_sources=keep_sources)}


def makes(cluster: HostedCluster, wanted: ControlPlaneService) -> tuple[PlannedObject, ...]:
    return tuple(each for each in objects(cluster) if each.service is wanted)


_SHARED_INGRESS = (namespace("kubernetes.io/metadata.name", "hypershift-sharedingress"),)
_MONITORING = (namespace("network.openshift.io/policy-group", "monitoring"),)
_OPERATOR = (namespace("kubernetes.io/metadata.name", "hypershift"),)


def limited(cluster: HostedCluster, made: PlannedObject) -> bool:
    """Whether only a policy enforces the allowed CIDR blocks for a Service.

    Not if private clients reach the same pods: they have the load balancer's address.
    """
    if not cluster.allowed_cidrs or made.service is None or made.manifest["kind"] != "Service":
        return False
    spec = made.manifest["spec"]
    return (
        spec["type"] in (LOAD_BALANCER, NODE_PORT)
        and "loadBalancerSourceRanges" not in spec
        and not is_private(cluster)
    )


def network_policies(
    cluster: HostedCluster, made: Iterable[PlannedObject], *, keep_sources: bool = False
) -> tuple[PlannedObject, ...]:
    """The policies for a control plane with these Services and Routes."""
    found = tuple(made)
    policies = [*_always(cluster)]
    for each in (
        ControlPlaneService.API_SERVER,
        ControlPlaneService.KONNECTIVITY,
        ControlPlaneService.OAUTH_SERVER,
        ControlPlaneService.IGNITION,
        ControlPlaneService.OVN_SB_DB,
    ):
        own = [one for one in found if one.service is each]
        policies += _published(cluster, each, own, keep_sources=keep_sources)
    if uses_router(cluster):
        policy = _policy(cluster, "router", ROUTER_PODS, [_ROUTER_PORT], None)
        policies.append(PlannedObject(manifest=policy, purpose="lets everybody reach the router"))
    if cluster.platform is Platform.KUBEVIRT:
        policies += _machines(cluster, found)
    policies += _metrics(cluster, found)
    policies += egress_policies(cluster)
    return tuple(policies)


def _metrics(cluster: HostedCluster, made: Sequence[PlannedObject]) -> Iterator[PlannedObject]:
    routes = [each.manifest for each in made if each.key == f"Route/{METRICS_PROXY}"]
    peers = _route_peers(cluster, routes)
    if peers:
        policy = _policy(cluster, METRICS_PROXY, {"app": METRICS_PROXY}, [METRICS_PORT], peers)
        yield PlannedObject(manifest=policy, purpose="lets the ingress reach the metrics")


def _always(cluster: HostedCluster) -> Iterator[PlannedObject]:
    inside = _NOT_MACHINES if cluster.platform is Platform.KUBEVIRT else {}
    yield PlannedObject(
        manifest=_policy(cluster, "same-namespace", {}, [], [{"podSelector": inside}]),
        purpose="lets the control plane's pods reach each other, and keeps all others out",
    )
    yield PlannedObject(
        manifest=_policy(cluster, "monitoring", {}, [], _MONITORING),
        purpose="lets the management cluster's monitoring reach pods",
    )
    ports, pods = (
        _ports(cluster, ControlPlaneService.API_SERVER),
        _pods(cluster, ControlPlaneService.API_SERVER),
    )
    yield PlannedObject(
        manifest=_policy(cluster, "operator", pods, ports, _OPERATOR),
        purpose="lets the operator reach kube-apiserver",
    )


def _published(
    cluster: HostedCluster,
    service: ControlPlaneService,
    made: Sequence[PlannedObject],
    *,
    keep_sources: bool,
) -> Iterator[PlannedObject]:
    pods, ports = _pods(cluster, service), _ports(cluster, service)
    peers: Sequence[Peer] | None
    name = f"published-{service.value.lower()}"
    services = [each for each in made if each.manifest["kind"] == "Service"]
    if any(each.manifest["spec"]["type"] != CLUSTER_IP for each in services):
        blocks = keep_sources and any(limited(cluster, each) for each in services)
        peers = _blocks(cluster) if blocks else None
        who = "the allowed CIDR blocks and the machine network" if blocks else "everybody"
        policy = _policy(cluster, name, pods, ports, peers)
        yield PlannedObject(manifest=policy, purpose=f"lets {who} reach {service.value}")
        return
    routes = [each.manifest for each in made if each.manifest["kind"] == "Route"]
    peers = _route_peers(cluster, routes)
    if peers:
        policy = _policy(cluster, name, pods, ports, peers)
        yield PlannedObject(manifest=policy, purpose=f"lets the ingress reach {service.value}")


def _route_peers(cluster: HostedCluster, routes: Sequence[Manifest]) -> Sequence[Peer]:
    """The ingress for these Routes; the control plane's own router needs no rule."""
    outside = [each for each in routes if not is_internal(each)]
    if not outside:
        return ()
    if behind_shared_ingress(cluster):
        return _SHARED_INGRESS
    labelled = all(ROUTER_LABEL in each["metadata"].get("labels", {}) for each in outside)
    return () if labelled and uses_router(cluster) else INGRESS


def _machines(cluster: HostedCluster, made: Sequence[PlannedObject]) -> Iterator[PlannedObject]:
    """Guest nodes are pods of this namespace: they reach what nodes need, but not etcd."""
    published = dict.fromkeys(each.service for each in made if each.service is not None)
    for each in published:
        name = f"guest-nodes-{each.value.lower()}"
        pods, ports = _pods(cluster, each), _ports(cluster, each)
        peers = [{"podSelector": VIRTUAL_MACHINES}]
        yield PlannedObject(
            manifest=_policy(cluster, name, pods, ports, peers),
            purpose=f"lets guest nodes, which are pods here, reach {each.value}",
        )
    yield PlannedObject(
        manifest=_policy(cluster, "guest-nodes", VIRTUAL_MACHINES["matchLabels"], [], None),
        purpose="leaves guest nodes, which are pods here, as reachable as other machines",
    )


def _blocks(cluster: HostedCluster) -> list[Peer]:
    allowed = dict.fromkeys((*cluster.allowed_cidrs, *cluster.machine_cidrs))
    return [{"ipBlock": {"cidr": each}} for each in allowed]


def _pods(cluster: HostedCluster, service: ControlPlaneService) -> Mapping[str, str]:
    match service:
        case ControlPlaneService.OAUTH_SERVER:
            return {"app": OAUTH}
        case ControlPlaneService.IGNITION:
            return {"app": ignition_name(cluster)}
        case ControlPlaneService.OVN_SB_DB:
            return {"app": OVN_PODS}
        case _:  # konnectivity-server is a container in kube-apiserver's pod
            return {"app": API_SERVER}


def _ports(cluster: HostedCluster, service: ControlPlaneService) -> list[int]:
    """The ports of the pods, which policies refer to."""
    match service:
        case ControlPlaneService.API_SERVER:
            own = cluster.api_port if cluster.api_port != 443 else PORT
            return list(dict.fromkeys((service_port(cluster), own)))
        case ControlPlaneService.KONNECTIVITY:
            return [TUNNEL_PORT]
        case ControlPlaneService.OAUTH_SERVER:
            return [OAUTH_PORT]
        case ControlPlaneService.OVN_SB_DB:
            return [OVN_PORT]
        case _:
            return [_IGNITION_PORT]


def _policy(
    cluster: HostedCluster,
    name: str,
    pods: Mapping[str, str],
    ports: Sequence[int],
    peers: Sequence[Peer] | None,
) -> Manifest:
    """Allow peers, or all clients, to reach these pods; on these ports, or on all."""
    rule: dict[str, Any] = {}
    if peers is not None:
        rule["from"] = [dict(each) for each in peers]
    if ports:
        rule["ports"] = [{"protocol": "TCP", "port": each} for each in ports]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": cluster.control_plane},
        "spec": {
            "podSelector": {"matchLabels": dict(pods)} if pods else {},
            "policyTypes": ["Ingress"],
            "ingress": [rule],
        },
    }
