"""What a container is given: as little as it needs, and said so that any policy accepts it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isthmus.manifests.arguments import REFERENCES, for_pod
from isthmus.manifests.volumes import Volume

NET_ADMIN = "NET_ADMIN"
NET_BIND_SERVICE = "NET_BIND_SERVICE"
_MOST_MEMORY = "512Mi"
_PROGRAM = "isthmus"


def unprivileged(user: int) -> dict[str, Any]:
    """A security context without any capability; what "restricted" pods may have."""
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
    """The same for whoever the image or the cluster says: OpenShift gives each namespace users."""
    found = unprivileged(0)
    del found["runAsUser"], found["runAsGroup"]
    return found


def with_capability(*capabilities: str) -> dict[str, Any]:
    """A security context of root with some capabilities and no other.

    Root, because Kubernetes gives capabilities to nobody else: it sets no ambient ones.
    """
    return {
        "runAsNonRoot": False,
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": list(capabilities)},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container(
    name: str,
    image: str,
    args: Sequence[str],
    *,
    security: Mapping[str, Any],
    references: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    values: Mapping[str, str] | None = None,
    volumes: Iterable[Volume] = (),
    ports: Mapping[str, int] | None = None,
    probes: Mapping[str, Any] | None = None,
    resources: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A container of our image; what is empty is left out.

    ``references`` are names of REFERENCES; ``environment`` gives variables such a name each,
    ``values`` gives them texts.
    """
    fields = {name: name for name in references} | dict(environment or {})
    env = [_field(variable, REFERENCES[name]) for variable, name in fields.items()]
    env += variables(values or {})
    listed = [{"name": each, "containerPort": port} for each, port in (ports or {}).items()]
    found: dict[str, Any] = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": [_PROGRAM],
        "args": list(args),
        "env": env,
        "ports": listed,
        **(probes or {}),
        "resources": dict(resources or {}),
        "securityContext": dict(security),
        "volumeMounts": [volume.to_mount() for volume in volumes],
    }
    return {key: value for key, value in found.items() if value}


def variables(values: Mapping[str, str]) -> list[dict[str, Any]]:
    """As in a container's ``env``, so that Kubernetes expands nothing in them."""
    return [{"name": name, "value": for_pod([text])[0]} for name, text in values.items()]


def _field(variable: str, path: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def going_on(seconds: int) -> dict[str, Any]:
    """As in a container's ``lifecycle``: nobody is told to end before so many seconds are over."""
    # No shell in the image; Kubernetes has this since 1.30.
    return {"preStop": {"sleep": {"seconds": seconds}}}


def probes(*, port: int, host: str, readiness: str = "/readyz") -> dict[str, Any]:
    """Liveness and readiness of a program of ours; an empty host is the pod's address."""
    return {
        "livenessProbe": {
            "httpGet": _get("/livez", port, host),
            "initialDelaySeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        "readinessProbe": {"httpGet": _get(readiness, port, host), "timeoutSeconds": 5},
    }


def _get(path: str, port: int, host: str) -> dict[str, Any]:
    found = {"path": path, "port": port}
    return {**found, "host": host} if host else found


def resources() -> dict[str, Any]:
    """What an agent takes, and at most.

    No limit on its CPU: it would make every connection of the node wait.
    """
    return {
        "requests": {"cpu": "50m", "memory": "64Mi"},
        "limits": {"memory": _MOST_MEMORY},
    }
