"""The sources of Services, EndpointSlices, the Node and ServiceCIDRs: the API, or files.

Each kind has its own list and watch and is delivered in batches: first everything, then changes.
Nothing is stored here; rules/tracker.py does that.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from isthmus.dial.rules_service_names import ServiceName
from isthmus.kube.api import Change, Kube, ObjectSource
from isthmus.kube.following import FIRST_RETRY_S, SILENCE_S, Follower
from isthmus.kube.opening import open_kube
from isthmus.logs import log
from isthmus.programs.node_proxy.kernel.manifests import Manifests, ManifestsWatch
from isthmus.programs.node_proxy.rules.model import (
    NodeObject,
    ObjectBatch,
    ServiceBatch,
    ServiceObject,
    SliceBatch,
    SliceObject,
)
from isthmus.programs.node_proxy.rules.reading import (
    read_node,
    read_service,
    read_service_cidrs,
    read_slice,
    service_key,
    slice_key,
)
from isthmus.programs.node_proxy.settings import NFTABLES, NodeProxySettings

if TYPE_CHECKING:
    from isthmus.kube.client import KubeClient

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class WatchedObject(Generic[K, V]):
    """One object as far as it is readable: its key and its value.

    Without a ``value`` the object is ignored, as if it did not exist; without a ``key`` not even
    its name is readable.
    """

    key: K | None
    value: V | None


FoundService = WatchedObject[ServiceName, ServiceObject]
FoundSlice = WatchedObject[tuple[str, str], SliceObject]
FoundNode = WatchedObject[str, NodeObject]
FoundCidrs = WatchedObject[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSources:
    """The watched sources: with kube-proxy's selectors, and of Nodes only this one."""

    services: ObjectSource[FoundService]
    slices: ObjectSource[FoundSlice]
    node: ObjectSource[FoundNode]
    service_cidrs: ObjectSource[FoundCidrs]


class ObjectListener(Protocol):
    """Receives objects from an ``ObjectInput``."""

    def heard_services(self, batch: ServiceBatch) -> None:
        """A batch of Services."""

    def heard_slices(self, batch: SliceBatch) -> None:
        """A batch of EndpointSlices."""

    def heard_node(self, node: NodeObject | None) -> None:
        """This node's Node; None if it does not exist."""

    def heard_service_cidrs(self, ranges: tuple[str, ...]) -> None:
        """All ranges of cluster IPs."""


class ClusterWatch:
    """Watches a cluster, while ``run`` runs; ``cluster_sources`` has the sources.

    The first batch of Services and of EndpointSlices is complete, and so is each after a watch that
    missed changes. Without ``service_cidrs`` those are not watched.
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
                # An object that became unreadable or irrelevant is removed, as by the next list.
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


class ObjectInput(Protocol):
    """A source of objects; ``node_name`` is the name of this node."""

    node_name: str

    async def run(self, listener: ObjectListener) -> None:
        """Deliver everything, and then every change, until cancelled."""

    async def close(self) -> None:
        """Close connections."""


async def open_input(settings: NodeProxySettings) -> ObjectInput:
    """Open the source that the settings name.

    Raises:
        ConfigError: the source cannot be used.
    """
    named = (settings.hostname_override or socket.gethostname()).strip().lower()
    if not settings.manifests:
        return ApiInput(settings, named)
    watch = ManifestsWatch(Path(settings.manifests))
    first = await asyncio.to_thread(watch.read)
    names = [node.name for node in first.nodes]
    if not settings.hostname_override and named not in names and len(names) == 1:
        named = names[0]
    return FileInput(watch, first, named)


class ApiInput:
    """Watches an API server."""

    def __init__(self, settings: NodeProxySettings, node_name: str) -> None:
        self.node_name = node_name
        self._cidrs = settings.mode == NFTABLES
        self._kube: Kube = open_kube(
            settings.kubeconfig,
            qps=settings.kube_api_qps,
            burst=settings.kube_api_burst,
            server=settings.master,
        )

    async def run(self, listener: ObjectListener) -> None:
        await ClusterWatch(
            cluster_sources(self._kube.client, self.node_name),
            listener,
            service_cidrs=self._cidrs,
        ).run()

    async def close(self) -> None:
        await self._kube.close()


class FileInput:
    """Follows a directory of manifests."""

    def __init__(self, watch: ManifestsWatch, first: Manifests, node_name: str) -> None:
        self.node_name = node_name
        self._watch = watch
        self._first = first
        self._node = NodeObject(name=node_name)

    async def run(self, listener: ObjectListener) -> None:
        def tell(found: Manifests) -> None:
            # If the Node's file is deleted the last Node stays: the machine still runs.
            same = (node for node in found.nodes if node.name == self.node_name)
            self._node = next(same, self._node)
            listener.heard_node(self._node)
            listener.heard_service_cidrs(found.service_cidrs)
            listener.heard_services(ObjectBatch(put=found.services, complete=True))
            listener.heard_slices(ObjectBatch(put=found.slices, complete=True))

        tell(self._first)
        await self._watch.run(tell)

    async def close(self) -> None:
        pass


# kube-proxy's selectors: the API omits headless Services and those of other proxies.
_SERVICES = {
    "labelSelector": "!service.kubernetes.io/service-proxy-name",
    "fieldSelector": "spec.clusterIP!=None",
}
_SLICES = {"labelSelector": "!service.kubernetes.io/headless"}
_MOST_LOGGED = 1000

_log = logging.getLogger("isthmus.kube")


def cluster_sources(client: KubeClient, node_name: str) -> ClusterSources:
    # lightkube is slow to import.
    from lightkube.resources.core_v1 import Node, Service
    from lightkube.resources.discovery_v1 import EndpointSlice
    from lightkube.resources.networking_v1 import ServiceCIDR

    from isthmus.kube.listing import LightSource

    said = _DefectLog()
    own = {"fieldSelector": f"metadata.name={node_name}"}
    return ClusterSources(
        services=LightSource(client, Service, "Services", said.of(_service), selectors=_SERVICES),
        slices=LightSource(
            client, EndpointSlice, "EndpointSlices", said.of(_slice), selectors=_SLICES
        ),
        node=LightSource(client, Node, f"the Node {node_name}", said.of(_node), selectors=own),
        service_cidrs=LightSource(client, ServiceCIDR, "ServiceCIDRs", said.of(_cidrs)),
    )


def _service(given: msgspec.Raw, notes: list[str]) -> FoundService:
    found = read_service(given, notes)
    return WatchedObject(found.key if found is not None else service_key(given), found)


def _slice(given: msgspec.Raw, notes: list[str]) -> FoundSlice:
    found = read_slice(given, notes)
    return WatchedObject(found.key if found is not None else slice_key(given), found)


def _node(given: msgspec.Raw, notes: list[str]) -> FoundNode:
    found = read_node(given, notes)
    return WatchedObject(found.name if found is not None else None, found)


def _cidrs(given: msgspec.Raw, notes: list[str]) -> FoundCidrs:
    found = read_service_cidrs(given, notes)
    return WatchedObject(*found) if found is not None else WatchedObject(None, None)


F = TypeVar("F")


class _DefectLog:
    """Logs the defects of objects, each once, however often the object changes."""

    def __init__(self) -> None:
        self._logged: OrderedDict[str, None] = OrderedDict()

    def of(self, read: Callable[[msgspec.Raw, list[str]], F]) -> Callable[[msgspec.Raw], F]:
        def reading(given: msgspec.Raw) -> F:
            notes: list[str] = []
            found = read(given, notes)
            for note in notes:
                self._log(note)
            return found

        return reading

    def _log(self, note: str) -> None:
        if note in self._logged:
            self._logged.move_to_end(note)
            return
        self._logged[note] = None
        if len(self._logged) > _MOST_LOGGED:
            self._logged.popitem(last=False)
        log(_log, logging.WARNING, "part of an object ignored", reason=note)
