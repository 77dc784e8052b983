"""The forms of a plan's objects: a Service, a Route, and the purpose of each.

Names and labels are HyperShift's. objects*.py decides which of them a cluster gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isthmus.hosting.model import ControlPlaneService, HostedCluster, Platform, Publishing, Strategy

Manifest = Mapping[str, Any]

#: Routes with this label belong to the control plane's own router, or to the shared one.
ROUTER_LABEL = "hypershift.openshift.io/hosted-control-plane"
INTERNAL_LABEL = "hypershift.openshift.io/internal-route"
VISIBILITY_LABEL = "hypershift.openshift.io/route-visibility"
COMPONENT_LABEL = "hypershift.openshift.io/control-plane-component"
#: The label of OAuth's Route in v1alpha1, which a public ingress shard selects.
OAUTH_LABEL = "hypershift.openshift.io/oauth"
DNS_ANNOTATION = "external-dns.alpha.kubernetes.io/hostname"
BALANCE_ANNOTATION = "haproxy.router.openshift.io/balance"

#: The name of the objects that expose the control plane's metrics to the guest's monitoring.
METRICS_PROXY = "metrics-proxy"

_AWS_TYPE = "service.beta.kubernetes.io/aws-load-balancer-type"
_AWS_INTERNAL = "service.beta.kubernetes.io/aws-load-balancer-internal"
_AWS_CROSS_ZONE = "service.beta.kubernetes.io/aws-load-balancer-cross-zone-load-balancing-enabled"
# The same two for the AWS Load Balancer Controller (EKS), whose balancers are internal by default.
_AWS_ATTRIBUTES = "service.beta.kubernetes.io/aws-load-balancer-attributes"
_AWS_SCHEME = "service.beta.kubernetes.io/aws-load-balancer-scheme"
_INTERNAL: Mapping[Platform, Mapping[str, str]] = {
    Platform.AWS: {_AWS_INTERNAL: "true"},
    Platform.AZURE: {"service.beta.kubernetes.io/azure-load-balancer-internal": "true"},
    Platform.GCP: {"networking.gke.io/load-balancer-type": "Internal"},
}

CLUSTER_IP, LOAD_BALANCER, NODE_PORT = "ClusterIP", "LoadBalancer", "NodePort"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedObject:
    """An object, its purpose, and the service whose endpoint it is, if any."""

    manifest: Manifest
    purpose: str
    service: ControlPlaneService | None = None

    @property
    def key(self) -> str:
        """Kind and name, as in ``Service/router``."""
        return key(self.manifest)


def key(manifest: Manifest) -> str:
    """Kind and name of an object, as in ``Service/router``."""
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTemplate:
    """A Service without its name: how it is reached, and its backend."""

    port: int
    target: int | str
    selector: Mapping[str, str]
    type: str = CLUSTER_IP
    port_name: str = ""
    node_port: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


def service(cluster: HostedCluster, name: str, template: ServiceTemplate) -> Manifest:
    port: dict[str, Any] = {"name": template.port_name} if template.port_name else {}
    port |= {"port": template.port, "protocol": "TCP", "targetPort": template.target}
    if template.node_port:
        port["nodePort"] = template.node_port
    spec = {
        "type": template.type,
        **template.more,
        "selector": dict(template.selector),
        "ports": [port],
    }
    metadata = _metadata(cluster, name, template.labels, template.annotations)
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def route(
    cluster: HostedCluster,
    name: str,
    host: str,
    to: str,
    *,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """A Route with TLS passthrough. Without a host, OpenShift generates one."""
    spec: dict[str, Any] = {"host": host} if host else {}
    spec["to"] = {"kind": "Service", "name": to, "weight": 100}
    spec["tls"] = {"termination": "passthrough", "insecureEdgeTerminationPolicy": "None"}
    return {
        "apiVersion": "route.openshift.io/v1",
        "kind": "Route",
        "metadata": _metadata(cluster, name, labels, annotations or {}),
        "spec": spec,
    }


def _metadata(
    cluster: HostedCluster, name: str, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> Manifest:
    found: dict[str, Any] = {"name": name, "namespace": cluster.control_plane}
    if labels:
        found["labels"] = dict(labels)
    if annotations:
        found["annotations"] = dict(annotations)
    return found


def router_labels(cluster: HostedCluster) -> Mapping[str, str]:
    """The label that assigns a Route to the control plane's own router."""
    return {ROUTER_LABEL: cluster.control_plane}


def internal_labels(cluster: HostedCluster) -> Mapping[str, str]:
    """The labels that assign a Route to that router's address for the guest's own network."""
    return {**router_labels(cluster), INTERNAL_LABEL: "true"}


def api_name(cluster: HostedCluster) -> str:
    """The name of kube-apiserver in the guest's own network."""
    return f"api.{cluster.name}.hypershift.local"


def internal_name(cluster: HostedCluster, route_name: str) -> str:
    """The domain of the other services there."""
    return f"{route_name.removesuffix('-internal')}.apps.{cluster.name}.hypershift.local"


def balancer_annotations(
    platform: Platform, *, internal: bool, both: bool = False
) -> Mapping[str, str]:
    """The cloud annotations of a load balancer; ``both``: it also serves private clients."""
    found: dict[str, str] = {}
    if platform is Platform.AWS:
        found[_AWS_TYPE] = "nlb"
        # PrivateLink goes zone by zone, and a zone may have no node.
        if internal or both:
            found |= {
                _AWS_CROSS_ZONE: "true",
                _AWS_ATTRIBUTES: "load_balancing.cross_zone.enabled=true",
            }
        if not internal:
            found[_AWS_SCHEME] = "internet-facing"
    if internal:
        found |= _INTERNAL.get(platform, {})
    return found


def is_internal(manifest: Manifest) -> bool:
    """Whether a Service's load balancer, or a Route, is only for the guest's own network."""
    metadata = manifest["metadata"]
    if manifest["kind"] == "Route":
        return INTERNAL_LABEL in metadata.get("labels", {})
    marks = [each.items() for each in _INTERNAL.values()]
    return any(mark <= metadata.get("annotations", {}).items() for mark in marks)


def published_as(publishing: Publishing) -> Mapping[str, Any]:
    """The parts of a ServiceTemplate that follow from the strategy alone."""
    match publishing.strategy:
        case Strategy.LOAD_BALANCER:
            named = {DNS_ANNOTATION: publishing.hostname} if publishing.hostname else {}
            return {"type": LOAD_BALANCER, "annotations": named}
        case Strategy.NODE_PORT:
            return {"type": NODE_PORT, "node_port": publishing.node_port}
        case _:
            return {}
