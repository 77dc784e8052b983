"""NetworkPolicies for egress from the control plane's namespace.

HyperShift's three: pods may not reach the management cluster's API server unless they have a label
(on AWS), the router reaches only its backends, and guest nodes that are pods reach the internet and
what nodes need. The document does not contain the addresses to exclude: those of the management
cluster's API server, pods and Services. If they are not given, there are no such policies.

Unlike HyperShift's, these policies allow IPv6 if the management cluster's IPv6 ranges are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any, Final

from isthmus.hosting.model import HostedCluster, Platform, Strategy
from isthmus.hosting.objects_services import API_SERVER, OAUTH, ignition_name
from isthmus.hosting.shapes import METRICS_PROXY, Manifest, PlannedObject
from isthmus.hosting.visibility import uses_router
from isthmus.values import is_address

Peer = Mapping[str, Any]

#: Pods with it need the management cluster's API server.
NEEDS_API_LABEL = "hypershift.openshift.io/need-management-kas-access"
VIRTUAL_MACHINES: Final = {"matchLabels": {"kubevirt.io": "virt-launcher"}}
ROUTER_PODS: Final = {"app": "private-router"}
_EVERYWHERE = {4: "0.0.0.0/0", 6: "::/0"}


def namespace(label: str, value: str) -> Peer:
    return {"namespaceSelector": {"matchLabels": {label: value}}}


#: The ingress of an OpenShift management cluster, in pods or on its nodes.
INGRESS: Final = (
    namespace("network.openshift.io/policy-group", "ingress"),
    namespace("policy-group.network.openshift.io/host-network", ""),
)
# OpenShift's DNS, and that of every other Kubernetes.
_DNS: Final = (
    (namespace("kubernetes.io/metadata.name", "openshift-dns"), 5353),
    (
        {
            **namespace("kubernetes.io/metadata.name", "kube-system"),
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        },
        53,
    ),
)


def egress_policies(cluster: HostedCluster) -> Iterator[PlannedObject]:
    """The policies, if the management cluster's addresses are known."""
    if not (cluster.management.api or cluster.management.ranges):
        return
    if cluster.platform is Platform.AWS:
        needless = [
            {"key": NEEDS_API_LABEL, "operator": "DoesNotExist"},
            {"key": "name", "operator": "NotIn", "values": ["aws-ebs-csi-driver-operator"]},
        ]
        yield _policy(
            cluster,
            "management-api",
            {"matchExpressions": needless},
            [_to({"podSelector": {}}), _to(*_outside(cluster)), *_dns()],
            "keeps pods that do not need it away from the management cluster's API server",
        )
    if cluster.platform in cluster.model.with_access and uses_router(cluster):
        yield _policy(
            cluster,
            "router-egress",
            {"matchLabels": ROUTER_PODS},
            [_to(_pods(cluster)), _to(*_outside(cluster)), *_dns()],
            "limits the router to its backends and the internet",
        )
    if cluster.platform is Platform.KUBEVIRT:
        yield _policy(
            cluster,
            "guest-nodes-egress",
            VIRTUAL_MACHINES,
            [
                _to({"podSelector": VIRTUAL_MACHINES}),
                _to(_pods(cluster)),
                _to(*_outside(cluster), *_node_addresses(cluster)),
                _to(*INGRESS),
                *_dns(),
            ],
            "limits guest nodes, which are pods here, to the internet and what nodes need",
        )


def _pods(cluster: HostedCluster) -> Peer:
    """The published services, as selectors of their pods."""
    apps = [API_SERVER, OAUTH, ignition_name(cluster), METRICS_PROXY]
    found = {"key": "app", "operator": "In", "values": apps}
    return {"podSelector": {"matchExpressions": [found]}}


def _outside(cluster: HostedCluster) -> Iterator[Peer]:
    """All addresses except the management cluster's."""
    known = [str(ip_network(each)) for each in cluster.management.api]
    known += cluster.management.ranges
    for version, everywhere in _EVERYWHERE.items():
        within = [each for each in dict.fromkeys(known) if ip_network(each).version == version]
        if within or version == 4:
            block: dict[str, Any] = {"cidr": everywhere}
            if within:
                block["except"] = within
            yield {"ipBlock": block}


def _node_addresses(cluster: HostedCluster) -> Iterator[Peer]:
    """The addresses of node ports, which may be in an excluded range."""
    addresses = (
        each.node_address
        for each in cluster.services
        if each.strategy is Strategy.NODE_PORT and is_address(each.node_address)
    )
    for address in dict.fromkeys(addresses):
        yield {"ipBlock": {"cidr": str(ip_network(ip_address(address)))}}


def _dns() -> Iterator[Manifest]:
    for peer, port in _DNS:
        ports = [{"protocol": each, "port": port} for each in ("UDP", "TCP")]
        yield {**_to(peer), "ports": ports}


def _to(*peers: Peer) -> Manifest:
    return {"to": list(peers)}


def _policy(
    cluster: HostedCluster,
    name: str,
    pods: Mapping[str, Any],
    rules: Sequence[Manifest],
    purpose: str,
) -> PlannedObject:
    manifest = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": cluster.control_plane},
        "spec": {"podSelector": dict(pods), "policyTypes": ["Egress"], "egress": list(rules)},
    }
    return PlannedObject(manifest=manifest, purpose=purpose)
