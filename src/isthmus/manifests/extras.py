"""What the values of an installation say about pods and no flag of a manifest can.

Everything is left as it is by default, so that a manifest made of flags has none of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from isthmus.manifests.pods import Manifest, Pod
from isthmus.manifests.volumes import Volume


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Additions to a pod; ``pod`` is said in its spec as it is, in place of what is there."""

    args: tuple[str, ...] = ()
    volumes: tuple[Volume, ...] = ()
    pod: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    pull_policy: str = ""
    #: Of the Service that agents find the server by.
    service_annotations: Mapping[str, str] = field(default_factory=dict)

    def to_container(self, container: Manifest) -> Manifest:
        """A container with all of it."""
        found = dict(container)
        if self.args:
            found["args"] = [*found["args"], *self.args]
        if self.volumes:
            mounts = [volume.to_mount() for volume in self.volumes]
            found["volumeMounts"] = [*found.get("volumeMounts", ()), *mounts]
        return self._image(found, self.resources)

    def to_init_container(self, container: Manifest) -> Manifest:
        """One that runs before, with what concerns its image alone."""
        return self._image(dict(container), {})

    def _image(self, found: Manifest, resources: Mapping[str, Any]) -> Manifest:
        if self.pull_policy:
            found["imagePullPolicy"] = self.pull_policy
        if resources:
            found["resources"] = dict(resources)
        return found

    def to_pod(self, pod: Pod) -> Pod:
        """A pod with all of it; its containers have theirs already."""
        return replace(
            pod,
            volumes=[*pod.volumes, *self.volumes],
            extra={**pod.extra, **self.pod},
            more_labels=dict(self.labels),
            annotations=dict(self.annotations),
        )


NOTHING = Extras()
