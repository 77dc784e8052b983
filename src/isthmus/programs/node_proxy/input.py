"""Where the node proxy's Services, EndpointSlices and Node come from: the API, or files.

Both tell the same ``ObjectListener`` of the same values.
"""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Protocol

from isthmus.kube.api import Kube
from isthmus.kube.opening import open_kube
from isthmus.programs.node_proxy.kernel.manifests import Manifests, ManifestsWatch
from isthmus.programs.node_proxy.kube_watch import ClusterWatch, ObjectListener
from isthmus.programs.node_proxy.rules.objects import (
    NodeObject,
    ObjectBatch,
)
from isthmus.programs.node_proxy.settings import NFTABLES, NodeProxySettings


class ObjectInput(Protocol):
    """A source of objects; ``node_name`` is which Node we are."""

    node_name: str

    async def run(self, listener: ObjectListener) -> None:
        """Tell of everything, and then of every change, until cancelled."""

    async def close(self) -> None:
        """Close what is open."""


async def open_input(settings: NodeProxySettings) -> ObjectInput:
    """Open what the settings say.

    Raises:
        ConfigError: it cannot be used, and in one sentence why.
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
        from isthmus.programs.node_proxy.kube_resources import cluster_sources  # brings lightkube

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
            # A Node whose file is gone stays what it was: nobody says that the machine is.
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
