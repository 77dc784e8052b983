"""What a node service proxy watches, through lightkube, read straight into the values it needs.

Imports lightkube, which takes its time: import this module only where it is used.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import msgspec
from lightkube.resources.core_v1 import Node, Service
from lightkube.resources.discovery_v1 import EndpointSlice
from lightkube.resources.networking_v1 import ServiceCIDR

from isthmus.kube.client import KubeClient
from isthmus.kube.listing import LightSource
from isthmus.logs import log
from isthmus.programs.node_proxy.kube_watch import (
    ClusterSources,
    FoundCidrs,
    FoundNode,
    FoundService,
    FoundSlice,
    WatchedObject,
)
from isthmus.programs.node_proxy.rules.reading import (
    read_node,
    read_service,
    read_service_cidrs,
    read_slice,
    service_key,
    slice_key,
)

# kube-proxy's: Services that something else proxies or that only DNS knows are not even sent.
_SERVICES = {
    "labelSelector": "!service.kubernetes.io/service-proxy-name",
    "fieldSelector": "spec.clusterIP!=None",
}
_SLICES = {"labelSelector": "!service.kubernetes.io/headless"}
_MOST_SAID = 1000

_log = logging.getLogger("isthmus.kube")


def cluster_sources(client: KubeClient, node_name: str) -> ClusterSources:
    said = _Said()
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


class _Said:
    """Says what was left out of objects, each thing once, however often the object changes."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, None] = OrderedDict()

    def of(self, read: Callable[[msgspec.Raw, list[str]], F]) -> Callable[[msgspec.Raw], F]:
        def reading(given: msgspec.Raw) -> F:
            notes: list[str] = []
            found = read(given, notes)
            for note in notes:
                self._say(note)
            return found

        return reading

    def _say(self, note: str) -> None:
        if note in self._said:
            self._said.move_to_end(note)
            return
        self._said[note] = None
        if len(self._said) > _MOST_SAID:
            self._said.popitem(last=False)
        log(_log, logging.WARNING, "part of an object is ignored", reason=note)
