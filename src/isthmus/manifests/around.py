"""Objects around the pods of a workload: rights, Services, budgets and network policies.

Rights are the verbs that Isthmus programs use, and no others; a test runs the programs with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.manifests.pods import Manifest
from isthmus.manifests.template import Computed, Node, When
from isthmus.text.addresses import cidr

RBAC = "rbac.authorization.k8s.io"
#: Renewing the program's own Lease, counting the others, and removing expired ones.
SERVER_VERBS = ("get", "list", "watch", "create", "update", "delete")
#: Counting servers.
AGENT_VERBS = ("list", "watch")
_DNS = 53


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOwner:
    """The owner of objects: the name and namespace of a workload, and the labels of all objects."""

    name: str
    namespace: str

    @property
    def labels(self) -> dict[str, str]:
        """The metadata of the workload itself."""
        return labels(self.name)

    @property
    def selector(self) -> dict[str, str]:
        """The labels that select its pods."""
        return {"k8s-app": self.name}

    def metadata(self, name: str = "", *, namespace: str | None = None) -> Manifest:
        """The metadata of an object with this or another name; empty for an object without a
        namespace."""
        where = self.namespace if namespace is None else namespace
        return {
            "name": name or self.name,
            **({"namespace": where} if where else {}),
            "labels": self.labels,
        }

    @property
    def account(self) -> Manifest:
        """Its service account, as the subject of rights."""
        return {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}


def labels(name: str) -> dict[str, str]:
    """The labels of everything that belongs to a workload."""
    return {"app.kubernetes.io/name": name, "k8s-app": name}


def user(name: str) -> Manifest:
    """The user of a kubeconfig, as the subject of rights."""
    return {"apiGroup": RBAC, "kind": "User", "name": name}


def namespace(owner: WorkloadOwner, name: str) -> Manifest:
    """A namespace for the objects of a workload."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": owner.metadata(name, namespace="")}


def service_account(owner: WorkloadOwner) -> Manifest:
    """An account for pods, whose token is mounted only if a pod requests it."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": owner.metadata(),
        "automountServiceAccountToken": False,
    }


def lease_rights(
    owner: WorkloadOwner, subject: Manifest, *, namespace: str, verbs: Iterable[str]
) -> list[Manifest]:
    """A Role for the Leases of a namespace, and its subjects.

    The name contains the owner's namespace: others may have Roles in the same namespace.
    """
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": list(verbs)}
    metadata = owner.metadata(f"{owner.namespace}-{owner.name}-leases", namespace=namespace)
    return _rights("Role", metadata, [rule], subject)


def token_rights(owner: WorkloadOwner, subject: Manifest) -> list[Manifest]:
    """A ClusterRole to review tokens, and its subjects.

    The name contains the namespace: the cluster may have another such server.
    """
    rule = {
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["tokenreviews"],
        "verbs": ["create"],
    }
    metadata = owner.metadata(f"{owner.namespace}-{owner.name}-tokens", namespace="")
    return _rights("ClusterRole", metadata, [rule], subject)


def service_rights(
    owner: WorkloadOwner, subject: Manifest, *, service_cidrs: bool | Computed
) -> list[Manifest]:
    """A ClusterRole to watch Services, their endpoints and Nodes, and its subjects.

    A node proxy watches its own Node only, but all nodes share one account. Whether it watches
    ServiceCIDRs may be a condition of a template.
    """
    watched = [("", "services"), ("", "nodes"), ("discovery.k8s.io", "endpointslices")]
    rules: list[Node] = [_watching(group, resource) for group, resource in watched]
    ranges = _watching("networking.k8s.io", "servicecidrs")
    if isinstance(service_cidrs, bool):
        rules += [ranges] if service_cidrs else []
    else:
        rules.append(When(service_cidrs, ranges))
    metadata = owner.metadata(f"{owner.namespace}-{owner.name}-services", namespace="")
    return _rights("ClusterRole", metadata, rules, subject)


def _watching(group: str, resource: str) -> Manifest:
    return {"apiGroups": [group], "resources": [resource], "verbs": ["list", "watch"]}


def _rights(
    kind: str, metadata: Manifest, rules: Sequence[Node], subject: Manifest
) -> list[Manifest]:
    version = f"{RBAC}/v1"
    role = {"apiVersion": version, "kind": kind, "metadata": metadata, "rules": list(rules)}
    binding = {
        "apiVersion": version,
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": metadata["name"]},
        "subjects": [subject],
    }
    return [role, binding]


def service(
    owner: WorkloadOwner,
    ports: Mapping[str, int | str],
    *,
    name: str = "",
    kind: str = "ClusterIP",
    early: bool = False,
    annotations: Mapping[str, str] | None = None,
    selector: Mapping[str, str] | None = None,
) -> Manifest:
    """A Service for ports, by their names in the pods.

    ``early``: also for pods that are not ready yet; ``selector``: for pods of another workload.
    """
    metadata = owner.metadata(name)
    if annotations:
        metadata["annotations"] = dict(annotations)
    listed = [{"name": each, "port": port, "targetPort": each} for each, port in ports.items()]
    spec: Manifest = {
        "type": kind,
        "selector": dict(selector or owner.selector),
        "ports": listed,
    }
    if early:
        spec["publishNotReadyAddresses"] = True
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def config_map(owner: WorkloadOwner, name: str, data: Mapping[str, Any]) -> Manifest:
    """Texts for people, or for pods."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owner.metadata(name),
        "data": dict(data),
    }


def pod_monitor(
    owner: WorkloadOwner, *, interval: str, labels: Mapping[Any, Any], more: Mapping[str, Any]
) -> Manifest:
    """A PodMonitor for the Prometheus operator: where the pods' metrics are, and ``more`` on
    how."""
    metadata = owner.metadata()
    metadata["labels"] = {**labels, **metadata["labels"]}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": owner.selector},
            "podMetricsEndpoints": [
                {"port": "health", "path": "/metrics", "interval": interval, **more}
            ],
        },
    }


def disruption_budget(owner: WorkloadOwner) -> Manifest:
    """One pod at a time may be evicted, and pods that are not ready at any time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owner.metadata(),
        "spec": {
            "maxUnavailable": 1,
            # Otherwise a node whose pod never gets ready could not be drained.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": owner.selector},
        },
    }


def network_policy(
    owner: WorkloadOwner, ingress: Sequence[Manifest], egress: Sequence[Manifest] | None = None
) -> Manifest:
    """The allowed ingress; and the allowed egress, or None for all."""
    spec: Manifest = {
        "podSelector": {"matchLabels": owner.selector},
        "policyTypes": ["Ingress"],
        "ingress": list(ingress),
    }
    if egress is not None:
        spec["policyTypes"] = ["Ingress", "Egress"]
        spec["egress"] = list(egress)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": owner.metadata(),
        "spec": spec,
    }


def to_ports(*ports: int | str) -> Manifest:
    """A rule: these TCP ports, from or to anywhere."""
    return {"ports": [_port("TCP", port) for port in ports]}


def from_networks(cidrs: Iterable[str], *ports: int | str) -> Manifest:
    """A rule: these ports, from these networks, or from anywhere if there are none."""
    found = blocks(cidrs)
    return {**({"from": found} if found else {}), **to_ports(*ports)}


def to_dns() -> Manifest:
    """A rule: DNS, wherever it is."""
    return {"ports": [_port("UDP", _DNS), _port("TCP", _DNS)]}


def blocks(cidrs: Iterable[str]) -> list[dict[str, Any]]:
    """The peers of a rule."""
    return [{"ipBlock": {"cidr": str(cidr(text))}} for text in cidrs]


def in_namespace(name: str) -> dict[str, Any]:
    """A peer of a rule: the pods of a namespace, by the label that every namespace has."""
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _port(protocol: str, port: int | str) -> dict[str, Any]:
    return {"protocol": protocol, "port": port}
