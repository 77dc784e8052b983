"""A kubeconfig for a kubelet that reaches kube-apiserver at its agent's address."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isthmus.settings.go_yaml_writing import to_yaml
from isthmus.values import HostPort

_CLUSTER, _USER, _CONTEXT = "control-plane", "kubelet-bootstrap", "kubelet-bootstrap@control-plane"


@dataclass(frozen=True, slots=True)
class FileRef:
    """A file that a kubeconfig names, or carries inside: then ``content`` is all of it."""

    path: str
    content: bytes | None = None

    def to_fields(self, key: str) -> dict[str, str]:
        """The key with the path, or with ``-data`` and the content."""
        if self.content is None:
            return {key: self.path}
        return {f"{key}-data": base64.b64encode(self.content).decode()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Who the kubelet is: a token or its file, or a certificate with its key."""

    token: str = field(default="", repr=False)
    token_file: str = ""
    certificate: FileRef | None = None
    key: FileRef | None = None

    def to_user(self) -> Mapping[str, Any]:
        """As in ``users[].user``."""
        found: dict[str, Any] = {}
        if self.certificate is not None and self.key is not None:
            found |= self.certificate.to_fields("client-certificate")
            found |= self.key.to_fields("client-key")
        if self.token:
            found["token"] = self.token
        if self.token_file:
            found["tokenFile"] = self.token_file
        return found


def kubeconfig(
    at: HostPort, *, ca: FileRef, credentials: Credentials, server_name: str = ""
) -> str:
    """Write a kubeconfig with one context, which is the current one."""
    cluster = {"server": f"https://{at}", **ca.to_fields("certificate-authority")}
    if server_name:
        cluster["tls-server-name"] = server_name
    context = {"cluster": _CLUSTER, "user": _USER}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _CLUSTER, "cluster": cluster}],
        "users": [{"name": _USER, "user": dict(credentials.to_user())}],
        "contexts": [{"name": _CONTEXT, "context": context}],
        "current-context": _CONTEXT,
    }
    return to_yaml([document])
