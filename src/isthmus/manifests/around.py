"""Objects around the pods of a workload: rights, Services, budgets and network policies.

Rights are the verbs that our programs use, and no other; a test runs the programs with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.manifests.pods import Manifest
from isthmus.manifests.template import Computed, Node, When
from isthmus.text.addresses import cidr

RBAC = "rbac.authorization.k8s.io"
#: Keeping one's own Lease, counting the others', and removing those that nobody keeps.
SERVER_VERBS = ("get", "list", "watch", "create", "update", "delete")
#: Counting servers.
AGENT_VERBS = ("list", "watch")
_DNS = 53


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOwner:
    """Whose objects these are: the name and namespace of a workload, and the labels of it all."""

    name: str
    namespace: str

    @property
    def labels(self) -> dict[str, str]:
        """As the workload itself has them."""
        return labels(self.name)

    @property
    def selector(self) -> dict[str, str]:
        """By what its pods are found."""
        return {"k8s-app": self.name}

    def metadata(self, name: str = "", *, namespace: str | None = None) -> Manifest:
        """Of an object of this or another name; an empty namespace is for one without."""
        where = self.namespace if namespace is None else namespace
        return {
            "name": name or self.name,
            **({"namespace": where} if where else {}),
            "labels": self.labels,
        }

    @property
    def account(self) -> Manifest:
        """Its service account, as who gets rights."""
        return {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}


def labels(name: str) -> dict[str, str]:
    """Of everything that belongs to a workload."""
    return {"app.kubernetes.io/name": name, "k8s-app": name}


def user(name: str) -> Manifest:
    """Somebody who is known by a kubeconfig, as who gets rights."""
    return {"apiGroup": RBAC, "kind": "User", "name": name}


def namespace(owner: WorkloadOwner, name: str) -> Manifest:
    """A namespace for what belongs to a workload."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": owner.metadata(name, namespace="")}


def service_account(owner: WorkloadOwner) -> Manifest:
    """An account for pods, whose token is mounted only where a pod asks for it."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": owner.metadata(),
        "automountServiceAccountToken": False,
    }


def lease_rights(
    owner: WorkloadOwner, subject: Manifest, *, namespace: str, verbs: Iterable[str]
) -> list[Manifest]:
    """A Role for the Leases of a namespace, and who has it.

    The name has the owner's namespace in it: others may have theirs in the Leases' as well.
    """
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": list(verbs)}
    metadata = owner.metadata(f"{owner.namespace}-{owner.name}-leases", namespace=namespace)
    return _rights("Role", metadata, [rule], subject)


def token_rights(owner: WorkloadOwner, subject: Manifest) -> list[Manifest]:
    """A ClusterRole to ask whose a token is, and who has it.

    The name has the namespace in it: there may be another such server in the same cluster.
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
    """A ClusterRole to follow Services, their endpoints and Nodes, and who has it.

    A node proxy asks for its own Node only, but one account is that of every node. Whether it
    follows ServiceCIDRs may be a condition of a template.
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
    """A Service that leads to ports by the names that the pods give them.

    ``early``: also to pods that are not ready yet; ``selector``: to somebody else's pods.
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
    """What the Prometheus operator reads: where the pods' metrics are, and ``more`` on how."""
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
    """One pod at a time may be sent away, and whichever is not ready anyway at any time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": owner.metadata(),
        "spec": {
            "maxUnavailable": 1,
            # Else a node whose pod never gets ready could not be drained.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": owner.selector},
        },
    }


def network_policy(
    owner: WorkloadOwner, ingress: Sequence[Manifest], egress: Sequence[Manifest] | None = None
) -> Manifest:
    """What may come in; and what may go out, or None for everything."""
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
    """A rule: these ports, from these networks, or from anywhere where there are none."""
    found = blocks(cidrs)
    return {**({"from": found} if found else {}), **to_ports(*ports)}


def to_dns() -> Manifest:
    """A rule: DNS, wherever it is."""
    return {"ports": [_port("UDP", _DNS), _port("TCP", _DNS)]}


def blocks(cidrs: Iterable[str]) -> list[dict[str, Any]]:
    """The peers of a rule."""
    return [{"ipBlock": {"cidr": str(cidr(text))}} for text in cidrs]


def in_namespace(name: str) -> dict[str, Any]:
    """A peer of a rule: the pods of a namespace, by the label that every one has."""
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _port(protocol: str, port: int | str) -> dict[str, Any]:
    return {"protocol": protocol, "port": port}
