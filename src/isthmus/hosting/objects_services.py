"""The Services and Routes that publish kube-apiserver, konnectivity, OAuth, Ignition and OVN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from isthmus.hosting.model import (
    ControlPlaneService,
    HostedCluster,
    Platform,
    Publishing,
    Strategy,
    StrategyVerdict,
)
from isthmus.hosting.shapes import (
    BALANCE_ANNOTATION,
    CLUSTER_IP,
    COMPONENT_LABEL,
    LOAD_BALANCER,
    OAUTH_LABEL,
    VISIBILITY_LABEL,
    Manifest,
    PlannedObject,
    ServiceTemplate,
    api_name,
    balancer_annotations,
    internal_labels,
    internal_name,
    published_as,
    route,
    router_labels,
    service,
)
from isthmus.hosting.visibility import (
    behind_shared_ingress,
    is_internal_balancer,
    is_private,
    is_sharded,
    labels_routes,
    sides,
    uses_ovn,
)

TUNNEL = "konnectivity-server"
TUNNEL_PORT = 8091
OAUTH = "oauth-openshift"
OAUTH_PORT = 6443
IGNITION = "ignition-server-proxy"
IGNITION_IBM = "ignition-server"
IGNITION_ROUTE = "ignition-server"
ROUTE_PORT = 443
#: OVN's southbound database, which the control plane had in v1alpha1.
OVN = "ovnkube-master-external"
OVN_PODS = "ovnkube-master"
OVN_PORT = 9642
OVN_ROUTE = "ovnkube-sbdb"

API_SERVER = "kube-apiserver"
PRIVATE = "kube-apiserver-private"
INTERNAL = "kube-apiserver-internal"
AZURE_BALANCER = "kube-apiserverlb"
PODS = {"app": API_SERVER, COMPONENT_LABEL: API_SERVER}
PORT = 6443
IBM_PORT = 2040
#: 6443 there belongs to the management cluster's own kube-apiserver.
AZURE_BALANCER_PORT = 7443
#: An IPv6 address as well, if the management cluster supports it.
DUAL_STACK = {"ipFamilyPolicy": "PreferDualStack"}


def other_objects(cluster: HostedCluster) -> tuple[PlannedObject, ...]:
    """Services, each followed by its Routes, for what is published."""
    makers = {
        ControlPlaneService.KONNECTIVITY: _tunnel,
        ControlPlaneService.OAUTH_SERVER: _oauth,
        ControlPlaneService.IGNITION: _ignition,
        ControlPlaneService.OVN_SB_DB: _ovn,
    }
    found: list[PlannedObject] = []
    for each, make in makers.items():
        publishing = cluster.publishing(each)
        if publishing is not None and _is_published(cluster, publishing):
            found += make(cluster, publishing)
    return tuple(found)


def _is_published(cluster: HostedCluster, publishing: Publishing) -> bool:
    found = cluster.model.verdict(publishing.service, publishing.strategy, cluster.platform)
    return found is StrategyVerdict.PUBLISHED


def ignition_name(cluster: HostedCluster) -> str:
    """The Service of the Ignition server, and the app label of its pods."""
    return IGNITION_IBM if cluster.platform is Platform.IBMCLOUD else IGNITION


def _tunnel(cluster: HostedCluster, publishing: Publishing) -> Iterator[PlannedObject]:
    template = ServiceTemplate(
        port=TUNNEL_PORT,
        target=TUNNEL_PORT,
        selector=PODS,
        labels={"app": TUNNEL},
        # A server becomes ready by its first agent, so agents must reach one that is not ready.
        more={"publishNotReadyAddresses": True},
    )
    template = replace(template, **published_as(publishing))
    if publishing.strategy is Strategy.LOAD_BALANCER and is_internal_balancer(
        cluster, publishing.service
    ):
        cloud = balancer_annotations(cluster.platform, internal=True)
        template = replace(template, annotations={**cloud, **template.annotations})
    made = service(cluster, TUNNEL, template)
    yield PlannedObject(
        manifest=made, purpose="leads agents to konnectivity-server", service=publishing.service
    )
    if publishing.strategy is Strategy.ROUTE:
        # Agents stay connected for days: roundrobin spreads new ones over all servers.
        yield _one_route(cluster, publishing, TUNNEL, TUNNEL, {BALANCE_ANNOTATION: "roundrobin"})


def _oauth(cluster: HostedCluster, publishing: Publishing) -> Iterator[PlannedObject]:
    template = ServiceTemplate(
        port=OAUTH_PORT,
        target=OAUTH_PORT,
        selector={"app": OAUTH, COMPONENT_LABEL: OAUTH},
        labels={"app": OAUTH},
        more=DUAL_STACK,
    )
    template = replace(template, **published_as(publishing))
    if publishing.strategy is Strategy.LOAD_BALANCER:
        internal = is_internal_balancer(cluster, publishing.service)
        cloud = balancer_annotations(cluster.platform, internal=internal)
        template = replace(template, port=ROUTE_PORT, annotations={**cloud, **template.annotations})
    made = service(cluster, OAUTH, template)
    yield PlannedObject(
        manifest=made, purpose="leads to the OAuth server", service=publishing.service
    )
    if publishing.strategy is Strategy.ROUTE:
        for each, purpose in _oauth_routes(cluster, publishing):
            yield PlannedObject(manifest=each, purpose=purpose, service=publishing.service)


def _oauth_routes(cluster: HostedCluster, publishing: Publishing) -> Iterator[tuple[Manifest, str]]:
    host, shown = publishing.hostname, sides(cluster, publishing.service)
    if shown.public:
        sharded = is_sharded(cluster, publishing.service)
        labels = {OAUTH_LABEL: "true"} if sharded else _public_labels(cluster)
        found = route(cluster, "oauth", host, OAUTH, labels=labels)
        yield found, "leads users to the OAuth server"
    elif host:
        labels = {**internal_labels(cluster), VISIBILITY_LABEL: "private"}
        found = route(cluster, "oauth-private", host, OAUTH, labels=labels)
        yield found, "leads users in the guest's own network to the OAuth server"
    if shown.private:
        name = "oauth-internal"
        found = route(
            cluster, name, internal_name(cluster, name), OAUTH, labels=internal_labels(cluster)
        )
        yield found, "leads the guest's own components to the OAuth server"


def _ignition(cluster: HostedCluster, publishing: Publishing) -> Iterator[PlannedObject]:
    name = ignition_name(cluster)
    template = ServiceTemplate(
        port=ROUTE_PORT, target="https", port_name="https", selector={"app": name}
    )
    made = service(cluster, name, replace(template, **published_as(publishing)))
    yield PlannedObject(
        manifest=made, purpose="leads new nodes to the Ignition server", service=publishing.service
    )
    if publishing.strategy is Strategy.ROUTE:
        yield _one_route(cluster, publishing, IGNITION_ROUTE, name, {})


def _ovn(cluster: HostedCluster, publishing: Publishing) -> Iterator[PlannedObject]:
    if not uses_ovn(cluster):
        return
    template = ServiceTemplate(
        port=OVN_PORT, target=OVN_PORT, port_name="south", selector={"app": OVN_PODS}
    )
    made = service(cluster, OVN, replace(template, **published_as(publishing)))
    yield PlannedObject(
        manifest=made, purpose="leads nodes to OVN's database", service=publishing.service
    )
    if publishing.strategy is Strategy.ROUTE:
        yield _one_route(cluster, publishing, OVN_ROUTE, OVN, {})


def _public_labels(cluster: HostedCluster) -> Mapping[str, str]:
    return router_labels(cluster) if labels_routes(cluster) else {}


def _one_route(
    cluster: HostedCluster,
    publishing: Publishing,
    name: str,
    to: str,
    annotations: Mapping[str, str],
) -> PlannedObject:
    """The Route of a service for nodes: private once their network has its own endpoint."""
    host, labels = publishing.hostname, _public_labels(cluster)
    private = sides(cluster, publishing.service).private
    if private:
        host, labels = internal_name(cluster, name), internal_labels(cluster)
    found = route(cluster, name, host, to, labels=labels, annotations=annotations)
    where = "in the guest's own network" if private else "wherever they are"
    return PlannedObject(
        manifest=found, purpose=f"leads nodes, {where}, to {to}", service=publishing.service
    )


def api_objects(cluster: HostedCluster) -> tuple[PlannedObject, ...]:
    """Services first; nothing if kube-apiserver is not published."""
    publishing = cluster.publishing(ControlPlaneService.API_SERVER)
    if publishing is None:
        return ()
    match publishing.strategy:
        case Strategy.LOAD_BALANCER:
            return tuple(_balancers(cluster, publishing))
        case Strategy.NODE_PORT:
            template = replace(_template(cluster), **published_as(publishing))
            return (
                _made(service(cluster, API_SERVER, template), "opens a port for it on every node"),
            )
        case Strategy.ROUTE:
            return (_inside(cluster), *_routes(cluster, publishing))
        case _:
            return ()


def service_port(cluster: HostedCluster) -> int:
    """The Service's port inside the management cluster."""
    return IBM_PORT if cluster.platform is Platform.IBMCLOUD else PORT


def _template(cluster: HostedCluster) -> ServiceTemplate:
    return ServiceTemplate(
        port=service_port(cluster), target="client", selector=PODS, labels=PODS, more=DUAL_STACK
    )


def _made(manifest: Manifest, purpose: str) -> PlannedObject:
    return PlannedObject(manifest=manifest, purpose=purpose, service=ControlPlaneService.API_SERVER)


def _inside(cluster: HostedCluster) -> PlannedObject:
    found = service(cluster, API_SERVER, replace(_template(cluster), type=CLUSTER_IP))
    return _made(found, "leads the control plane, and its router, to kube-apiserver")


def _on_azure(cluster: HostedCluster) -> bool:
    """Whether the load balancers are Azure's: with KubeVirt, those of the management cluster."""
    over_azure = cluster.management_platform is Platform.AZURE
    return cluster.platform is Platform.AZURE or (
        cluster.platform is Platform.KUBEVIRT and over_azure
    )


def _balancers(cluster: HostedCluster, publishing: Publishing) -> Iterator[PlannedObject]:
    azure = _on_azure(cluster)
    shown = sides(cluster, publishing.service)
    if shown.public:
        found = service(
            cluster, AZURE_BALANCER if azure else API_SERVER, _public(cluster, publishing)
        )
        yield _made(found, "gives kube-apiserver an address for everybody")
    if azure or not shown.public:
        yield _inside(cluster)
    if shown.private:
        template = replace(
            _template(cluster),
            port=AZURE_BALANCER_PORT if azure else service_port(cluster),
            type=LOAD_BALANCER,
            labels={},
            annotations=balancer_annotations(cluster.platform, internal=True),
        )
        purpose = "gives kube-apiserver an address for the guest's own network"
        yield _made(service(cluster, PRIVATE, template), purpose)


def _public(cluster: HostedCluster, publishing: Publishing) -> ServiceTemplate:
    template = replace(_template(cluster), **published_as(publishing))
    cloud = balancer_annotations(cluster.platform, internal=False, both=is_private(cluster))
    more: dict[str, Any] = dict(template.more)
    if cluster.allowed_cidrs and not behind_shared_ingress(cluster):
        more["loadBalancerSourceRanges"] = list(cluster.allowed_cidrs)
    port = AZURE_BALANCER_PORT if _on_azure(cluster) else template.port
    return replace(template, port=port, annotations={**cloud, **template.annotations}, more=more)


def _routes(cluster: HostedCluster, publishing: Publishing) -> Iterator[PlannedObject]:
    if sides(cluster, publishing.service).public:
        found = route(
            cluster, API_SERVER, publishing.hostname, API_SERVER, labels=router_labels(cluster)
        )
        yield _made(found, f"leads {publishing.hostname or 'its name'} to kube-apiserver")
    elif publishing.hostname:
        labels = {**internal_labels(cluster), VISIBILITY_LABEL: "private"}
        found = route(cluster, PRIVATE, publishing.hostname, API_SERVER, labels=labels)
        purpose = f"leads {publishing.hostname} to kube-apiserver, in the guest's own network"
        yield _made(found, purpose)
    found = route(cluster, INTERNAL, api_name(cluster), API_SERVER, labels=internal_labels(cluster))
    yield _made(found, "is where the router sends connections whose name it does not know")
