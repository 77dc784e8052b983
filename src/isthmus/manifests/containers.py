"""Security contexts, variables and probes of containers: minimal rights that any policy accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.manifests.arguments import REFERENCES, for_pod
from isthmus.manifests.template import Node, mapped
from isthmus.manifests.volumes import Volume
from isthmus.settings.admin import AdminSettings

NET_ADMIN = "NET_ADMIN"
NET_BIND_SERVICE = "NET_BIND_SERVICE"
NET_RAW = "NET_RAW"
SYS_RESOURCE = "SYS_RESOURCE"
_MOST_MEMORY = "512Mi"
_PROGRAM = "isthmus"


def unprivileged(user: int | str) -> dict[str, Any]:
    """A security context without any capability, which "restricted" allows."""
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def unprivileged_anybody() -> dict[str, Any]:
    """The same for the user of the image or the cluster: OpenShift assigns users to each
    namespace."""
    found = unprivileged(0)
    del found["runAsUser"], found["runAsGroup"]
    return found


def with_capability(*capabilities: str) -> dict[str, Any]:
    """A security context of root with only these capabilities.

    Root, because Kubernetes gives capabilities to no other user: it sets no ambient ones.
    """
    return {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": list(capabilities)},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def privileged() -> dict[str, Any]:
    """A security context for changing kernel settings: otherwise /proc/sys is read-only."""
    return {
        "privileged": True,
        "runAsNonRoot": False,
        "runAsUser": 0,
        "readOnlyRootFilesystem": True,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PodContainer:
    """A container of the Isthmus image; empty fields are left out."""

    name: str
    image: str
    args: Sequence[Node]
    security: Mapping[str, Any]
    #: From ``fields()`` and ``variables()``.
    env: Sequence[Node] = ()
    volumes: Sequence[Node] = ()
    ports: Mapping[str, int | str] = field(default_factory=dict)
    probes: Mapping[str, Any] = field(default_factory=dict)
    resources: Node = field(default_factory=dict)
    lifecycle: Mapping[str, Any] = field(default_factory=dict)
    pull_policy: str = "IfNotPresent"

    def to_spec(self) -> dict[str, Any]:
        """As in ``spec.containers``."""
        found: dict[str, Any] = {
            "name": self.name,
            "image": self.image,
            "imagePullPolicy": self.pull_policy,
            "command": [_PROGRAM],
            "args": list(self.args),
            "env": list(self.env),
            "ports": [{"name": name, "containerPort": port} for name, port in self.ports.items()],
            **self.probes,
            "resources": self.resources,
            "securityContext": dict(self.security),
            "volumeMounts": mapped(self.volumes, Volume.to_mount),
            "lifecycle": self.lifecycle,
        }
        return {key: value for key, value in found.items() if value}


def fields(references: Iterable[str], **more: str) -> list[dict[str, Any]]:
    """Variables with fields of the pod, as in ``env``: names of REFERENCES under their own names.

    ``more`` are other names for such fields.
    """
    named = {name: name for name in references} | more
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": REFERENCES[field]}}}
        for name, field in named.items()
    ]


def variables(values: Mapping[str, str]) -> list[dict[str, Any]]:
    """Variables with texts, as in ``env``, so that Kubernetes expands nothing in them."""
    return [{"name": name, "value": for_pod([text])[0]} for name, text in values.items()]


def going_on(seconds: int) -> dict[str, Any]:
    """A container's ``lifecycle``: the program is told to end only after this many seconds."""
    # No shell in the image; Kubernetes has this since 1.30.
    return {"preStop": {"sleep": {"seconds": seconds}}}


def probes_of(
    admin: AdminSettings, *, readiness: str = "/readyz", liveness: str = "/livez"
) -> dict[str, Any]:
    """Liveness and readiness of a program with these settings."""
    return probes(
        port=admin.health_port,
        host=admin.health_bind_address,
        scheme="HTTPS" if admin.health_cert else "",
        readiness=readiness,
        liveness=liveness,
    )


def probes(
    *,
    port: int | str,
    host: str = "",
    scheme: Node = "",
    readiness: str = "/readyz",
    liveness: str = "/livez",
) -> dict[str, Any]:
    """Liveness and readiness at a port; an empty host is the pod's address, no scheme HTTP."""
    common = {"port": port, "host": host, "scheme": scheme}
    where = {key: value for key, value in common.items() if value}
    return {
        "livenessProbe": {
            "httpGet": {"path": liveness, **where},
            "initialDelaySeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "readinessProbe": {"httpGet": {"path": readiness, **where}, "timeoutSeconds": 5},
    }


def resources() -> dict[str, Any]:
    """The requests and limits of an agent.

    No CPU limit: it would delay every connection of the node.
    """
    return {
        "requests": {"cpu": "50m", "memory": "64Mi"},
        "limits": {"memory": _MOST_MEMORY},
    }
