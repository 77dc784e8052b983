"""The Service and the Route that show the control plane's metrics to the guest's own monitoring.

HyperShift's metrics-proxy, which a document asks for. No entry of spec.services publishes it: its
name is made of the Ignition server's, or of the private router's domain.
"""

from __future__ import annotations

from isthmus.hosting.model import ControlPlaneService, HostedCluster, Strategy
from isthmus.hosting.objects_services import ROUTE_PORT
from isthmus.hosting.shapes import (
    METRICS_PROXY,
    PlannedObject,
    ServiceTemplate,
    internal_labels,
    internal_name,
    route,
    router_labels,
    service,
)
from isthmus.hosting.visibility import is_private, labels_routes
from isthmus.values import HostPort

METRICS_PORT = 9443


def metrics_objects(cluster: HostedCluster) -> tuple[PlannedObject, ...]:
    """Nothing where no metrics are forwarded."""
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
    """Its name; empty where OpenShift makes one up."""
    if is_private(cluster):
        return internal_name(cluster, METRICS_PROXY)
    ignition = cluster.publishing(ControlPlaneService.IGNITION)
    if ignition is None or ignition.strategy is not Strategy.ROUTE:
        return ""
    _, dot, domain = ignition.hostname.partition(".")
    return f"{METRICS_PROXY}-{cluster.name}.{domain}" if dot else ""


def metrics_backend(cluster: HostedCluster) -> HostPort:
    """Where it is in the management cluster: its Service, by the whole name."""
    return HostPort(f"{METRICS_PROXY}.{cluster.control_plane}.svc.cluster.local", ROUTE_PORT)
