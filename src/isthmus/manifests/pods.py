"""What goes around containers: a pod that a node runs by itself, a DaemonSet, a Deployment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.manifests.volumes import Volume

Manifest = dict[str, Any]
#: What the priority class system-node-critical stands for. The kubelet looks up no class.
NODE_CRITICAL = 2_000_001_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """The containers of a pod and what they share; ``extra`` is said in its spec as it is."""

    name: str
    namespace: str
    containers: Sequence[Mapping[str, Any]]
    init_containers: Sequence[Mapping[str, Any]] = ()
    volumes: Sequence[Volume] = ()
    grace_s: int = 30
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> dict[str, str]:
        """By what the pods are found."""
        return {"app.kubernetes.io/name": self.name, "k8s-app": self.name}

    def metadata(self) -> Manifest:
        """Name, namespace and labels."""
        return {"name": self.name, "namespace": self.namespace, "labels": self.labels}

    def spec(self) -> Manifest:
        """As in a Pod, and in a template."""
        found: Manifest = {
            **self.extra,
            "terminationGracePeriodSeconds": self.grace_s,
            "initContainers": [dict(each) for each in self.init_containers],
            "containers": [dict(each) for each in self.containers],
            "volumes": _specs(self.volumes),
        }
        return {key: value for key, value in found.items() if value not in ([], {})}

    def template(self) -> Manifest:
        """As in a workload."""
        return {"metadata": {"labels": self.labels}, "spec": self.spec()}


def _specs(volumes: Iterable[Volume]) -> list[Manifest]:
    return [volume.to_spec() for volume in volumes]


def static_pod(pod: Pod) -> Manifest:
    """A pod that the kubelet runs from a file, before it has ever reached kube-apiserver.

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
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod.metadata(), "spec": spec}


def daemon_set(pod: Pod) -> Manifest:
    """A pod on every node, whatever its taints."""
    everywhere = {
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "priorityClassName": "system-node-critical",
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/os": "linux"},
    }
    # A tenth at a time, as HyperShift does it: one by one would take a large cluster all day.
    update = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    return _workload("DaemonSet", pod, everywhere, {"updateStrategy": update})


def deployment(pod: Pod, *, replicas: int) -> Manifest:
    """Some pods, on different nodes where there are enough."""
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


def service_account(name: str, namespace: str) -> Manifest:
    """An account for pods, whose token is mounted only where a pod asks for it."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace},
        "automountServiceAccountToken": False,
    }
