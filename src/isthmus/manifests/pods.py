"""Workloads around containers: a pod that a node runs by itself, a DaemonSet, a Deployment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.manifests.template import Node, mapped
from isthmus.manifests.volumes import Volume

Manifest = dict[str, Any]
#: The value of the priority class system-node-critical. The kubelet does not look up classes.
NODE_CRITICAL = 2_000_001_000
#: The label of every pod with a program in it; its value is the program's name, or several joined
#: by underscores. The kubectl plugin finds pods by it.
PROGRAM_LABEL = "isthmus.dev/program"
#: The label and the taint of the control plane's nodes.
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The containers of a pod and what they share; ``extra`` is added to its spec as it is."""

    name: str
    namespace: str
    containers: Sequence[Mapping[str, Any]]
    init_containers: Sequence[Mapping[str, Any]] = ()
    volumes: Sequence[Node] = ()
    grace_s: int | str = 30
    extra: Mapping[str, Any] = field(default_factory=dict)
    #: Of the pods, not of their workload.
    more_labels: Mapping[Any, Any] = field(default_factory=dict)
    annotations: Node = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """The labels that select the pods."""
        return {"app.kubernetes.io/name": self.name, "k8s-app": self.name}

    @property
    def own_metadata(self) -> Manifest:
        """Labels and annotations of the pods themselves."""
        # The labels that select pods come last: nothing may override them.
        own = {**self.labels, **program_label(self.containers)}
        found: Manifest = {"labels": {**self.more_labels, **own}}
        return {**found, "annotations": self.annotations} if self.annotations else found

    def metadata(self) -> Manifest:
        """Name, namespace and labels."""
        return {"name": self.name, "namespace": self.namespace, "labels": self.labels}

    def spec(self) -> Manifest:
        """The spec in a Pod and in a template."""
        found: Manifest = {
            **self.extra,
            "terminationGracePeriodSeconds": self.grace_s,
            "initContainers": [dict(each) for each in self.init_containers],
            "containers": [dict(each) for each in self.containers],
            "volumes": volume_specs(self.volumes),
        }
        return {key: value for key, value in found.items() if value not in ([], {})}

    def template(self) -> Manifest:
        """The template of a workload."""
        return {"metadata": self.own_metadata, "spec": self.spec()}


def program_label(containers: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The label that names the programs of a pod, as their command lines do."""
    names = [each["args"][0] for each in containers if each.get("args")]
    return {PROGRAM_LABEL: "_".join(names)}


def volume_specs(volumes: Iterable[Node]) -> list[Node]:
    """As in ``spec.volumes``."""
    return mapped(volumes, Volume.to_spec)


def static_pod(pod: Pod) -> Manifest:
    """A pod that the kubelet runs from a file, even before it has reached kube-apiserver.

    Such a pod may refer to no object of the API: the kubelet could not get it, and kube-apiserver
    would refuse the pod's mirror.
    """
    alone = {
        "hostNetwork": True,
        "dnsPolicy": "Default",
        "priorityClassName": "system-node-critical",
        "priority": NODE_CRITICAL,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Always",
    }
    spec = {**alone, **pod.spec()}
    metadata = {**pod.metadata(), **pod.own_metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _node_network(host_network: bool) -> Manifest:
    if not host_network:
        return {}
    return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}


def control_plane_set(pod: Pod, *, host_network: bool = True) -> Manifest:
    """A pod on every node of the control plane, one replaced at a time."""
    beside = {
        **_node_network(host_network),
        "priorityClassName": "system-node-critical",
        "tolerations": [
            {"key": CONTROL_PLANE, "operator": "Exists"},
            {"key": "CriticalAddonsOnly", "operator": "Exists"},
        ],
        "nodeSelector": {"kubernetes.io/os": "linux", CONTROL_PLANE: ""},
    }
    update = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}}
    return _workload("DaemonSet", pod, beside, {"updateStrategy": update})


def daemon_set(pod: Pod, *, host_network: bool = True) -> Manifest:
    """A pod on every node, whatever its taints."""
    everywhere = {
        **_node_network(host_network),
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
    }
    # A tenth at a time, as in HyperShift: one by one would take a day on a large cluster.
    update = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    return _workload("DaemonSet", pod, everywhere, {"updateStrategy": update})


def deployment(pod: Pod, *, replicas: int | str) -> Manifest:
    """Some pods, on different nodes if there are enough."""
    apart = {
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"k8s-app": pod.name}},
            }
        ],
    }
    return _workload("Deployment", pod, apart, {"replicas": replicas})


def _workload(kind: str, pod: Pod, around: Manifest, more: Manifest) -> Manifest:
    template = pod.template()
    template["spec"] = {**around, **template["spec"]}
    selector = {"matchLabels": {"k8s-app": pod.name}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": pod.metadata(),
        "spec": {**more, "selector": selector, "template": template},
    }


def deployment_patch(name: str, namespace: str, spec: Manifest) -> Manifest:
    """A patch of the pods of a Deployment; an empty namespace is left to ``kubectl apply``."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "template": {"metadata": {"labels": program_label(spec["containers"])}, "spec": spec}
        },
    }
