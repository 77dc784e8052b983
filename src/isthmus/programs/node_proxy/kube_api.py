"""What a node service proxy asks of the Kubernetes API, as values and sources; see api.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from isthmus.dial.rules_service_names import ServiceName
from isthmus.kube.api import Kube, ObjectSource
from isthmus.programs.node_proxy.rules.objects import NodeObject, ServiceObject, SliceObject

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class WatchedObject(Generic[K, V]):
    """One object, as far as it could be read: who it is, and what it is.

    Without a ``value`` it is nothing to us, as if it were not there; without a ``key`` nobody
    knows who.
    """

    key: K | None
    value: V | None


FoundService = WatchedObject[ServiceName, ServiceObject]
FoundSlice = WatchedObject[tuple[str, str], SliceObject]
FoundNode = WatchedObject[str, NodeObject]
FoundCidrs = WatchedObject[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSources:
    """All that is watched: by kube-proxy's selectors, and only the node that we are on."""

    services: ObjectSource[FoundService]
    slices: ObjectSource[FoundSlice]
    node: ObjectSource[FoundNode]
    service_cidrs: ObjectSource[FoundCidrs]


def sources_of(kube: Kube, node_name: str) -> ClusterSources:
    """Give what a node service proxy watches on a node."""
    from isthmus.programs.node_proxy.kube_resources import light_cluster  # brings lightkube with it

    return light_cluster(kube.client, node_name)
