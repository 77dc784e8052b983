"""Strategic merge patches: what is added to a workload that somebody else wrote.

Kubernetes merges containers, volumes and variables by name, and mounts by path; other lists, such
as a container's args, would be replaced, so nothing of the kind is in a patch of ours.
"""

from __future__ import annotations

from isthmus.manifests.pods import Manifest


def deployment(name: str, namespace: str, spec: Manifest) -> Manifest:
    """A patch of the pods of a Deployment; an empty namespace is left to who applies it."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"template": {"spec": spec}},
    }
