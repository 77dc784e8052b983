"""Services, EndpointSlices, our Node and the ranges of cluster IPs, followed for a node proxy.

Each has its own list and watch, and is told of in batches: first of all that there is, then of
every change. Nothing is kept here: that is the tracker's. The sources are kube_resources.py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from isthmus.dial.rules_service_names import ServiceName
from isthmus.kube.api import Change, ObjectSource
from isthmus.kube.following import FIRST_RETRY_S, SILENCE_S, Follower
from isthmus.programs.node_proxy.rules.objects import (
    NodeObject,
    ObjectBatch,
    ServiceBatch,
    ServiceObject,
    SliceBatch,
    SliceObject,
)

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


class ObjectListener(Protocol):
    """Who is told of what there is."""

    def heard_services(self, batch: ServiceBatch) -> None:
        """Some Services, or all."""

    def heard_slices(self, batch: SliceBatch) -> None:
        """Some EndpointSlices, or all."""

    def heard_node(self, node: NodeObject | None) -> None:
        """Our Node; None says that there is none."""

    def heard_service_cidrs(self, ranges: tuple[str, ...]) -> None:
        """All ranges of cluster IPs."""


class ClusterWatch:
    """Tells what a cluster has, while ``run`` runs; see ``api.Kube.cluster`` for the sources.

    The first batch of Services and of EndpointSlices is complete, and so is each after a time in
    which changes were missed. Without ``service_cidrs`` those are not asked for.
    """

    def __init__(
        self,
        sources: ClusterSources,
        listener: ObjectListener,
        *,
        service_cidrs: bool = True,
        silence_s: float = SILENCE_S,
        first_retry_s: float = FIRST_RETRY_S,
    ) -> None:
        self._silence_s = silence_s
        self._first_retry_s = first_retry_s
        self._listener = listener
        self._cidrs: dict[str, tuple[str, ...]] = {}
        self._followers: dict[str, Follower[Any]] = {
            "services": self._batches(
                sources.services, "watching services", listener.heard_services
            ),
            "slices": self._batches(
                sources.slices, "watching endpoint slices", listener.heard_slices
            ),
            "node": self._follow(
                sources.node, "watching the node", self._node_listed, self._node_changed
            ),
        }
        if service_cidrs:
            self._followers["service-cidrs"] = self._follow(
                sources.service_cidrs,
                "watching service CIDRs",
                self._cidrs_listed,
                self._cidrs_changed,
            )

    def __repr__(self) -> str:
        return f"<ClusterWatch {', '.join(self._followers)}>"

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, follower in self._followers.items():
                tasks.create_task(follower.run(), name=f"watch:{name}")

    def _batches(
        self,
        source: ObjectSource[WatchedObject[K, V]],
        doing: str,
        tell: Callable[[ObjectBatch[K, V]], None],
    ) -> Follower[WatchedObject[K, V]]:
        def listed(items: Sequence[WatchedObject[K, V]]) -> None:
            put = [each.value for each in items if each.value is not None]
            tell(ObjectBatch(put=put, complete=True))

        def changed(change: Change, item: WatchedObject[K, V]) -> None:
            if item.value is not None and change is not Change.DELETED:
                tell(ObjectBatch(put=(item.value,)))
            elif item.key is not None:
                # What became unreadable, or not for us, goes, as it would with the next listing.
                tell(ObjectBatch(drop=(item.key,)))

        return self._follow(source, doing, listed, changed)

    def _follow(
        self,
        source: ObjectSource[V],
        doing: str,
        listed: Callable[[Sequence[V]], None],
        changed: Callable[[Change, V], None],
    ) -> Follower[V]:
        return Follower(
            source,
            doing,
            listed=listed,
            changed=changed,
            silence_s=self._silence_s,
            first_retry_s=self._first_retry_s,
        )

    def _node_listed(self, items: Sequence[FoundNode]) -> None:
        self._listener.heard_node(
            next((each.value for each in items if each.value is not None), None)
        )

    def _node_changed(self, change: Change, item: FoundNode) -> None:
        if change is Change.DELETED:
            self._listener.heard_node(None)
        elif item.value is not None:
            self._listener.heard_node(item.value)

    def _cidrs_listed(self, items: Sequence[FoundCidrs]) -> None:
        self._cidrs = {each.key: each.value for each in items if each.key and each.value}
        self._tell_cidrs()

    def _cidrs_changed(self, change: Change, item: FoundCidrs) -> None:
        if item.key is None:
            return
        self._cidrs.pop(item.key, None)
        if item.value and change is not Change.DELETED:
            self._cidrs[item.key] = item.value
        self._tell_cidrs()

    def _tell_cidrs(self) -> None:
        found = {cidr for cidrs in self._cidrs.values() for cidr in cidrs}
        self._listener.heard_service_cidrs(tuple(sorted(found)))
