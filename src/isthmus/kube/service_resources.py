"""Services as lightkube reads them: values out.

Imports lightkube: reached only through ``api.open_kube``.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec
from lightkube.models.core_v1 import ServiceList, ServiceSpec
from lightkube.models.meta_v1 import ObjectMeta, Status
from lightkube.resources.core_v1 import Service as Resource

from isthmus.core.service_names import Service, ServiceName
from isthmus.errors import KubeError
from isthmus.kube.api import Change
from isthmus.kube.client import KubeClient
from isthmus.kube.service_api import ServiceEvent, ServiceListing
from isthmus.values import is_address

_ALL = "*"
_PAGE = 500
_MOST_PAGES = 200


class LightServices:
    """The Services of all namespaces."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def list(self) -> ServiceListing:
        """Read all of them, page by page: an answer has a bound."""
        services: list[Service] = []
        params = {"limit": str(_PAGE)}
        for _ in range(_MOST_PAGES):
            page = await self._client.call(
                "list Services", ServiceList, "list", Resource, namespace=_ALL, params=params
            )
            services += [_value(item.metadata, item.spec) for item in page.items]
            meta = page.metadata
            if meta is None or not meta.continue_:
                version = (meta.resourceVersion if meta is not None else None) or ""
                return ServiceListing(services=services, resource_version=version)
            params = {"limit": str(_PAGE), "continue": meta.continue_}
        raise KubeError(f"cannot list Services: there are more than {_MOST_PAGES * _PAGE}")

    @contextlib.asynccontextmanager
    async def watch(
        self, *, after: str, timeout_s: float
    ) -> AsyncIterator[AsyncIterator[ServiceEvent]]:
        """Hear of every change after a version."""
        params = {
            "resourceVersion": after,
            "timeoutSeconds": str(max(1, round(timeout_s))),
            "allowWatchBookmarks": "true",
        }
        async with self._client.watch(
            "watch Services", _event, Resource, namespace=_ALL, params=params
        ) as events:
            yield events

    async def get(self, at: ServiceName) -> Service:
        """Read one."""
        found = await self._client.call(
            f"read Service {at}", Resource, "get", Resource, namespace=at.namespace, name=at.name
        )
        return _value(found.metadata, found.spec)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


def _event(line: bytes) -> ServiceEvent:
    """Read one line of a watch.

    Raises:
        KubeError: the API ends the watch with an error, such as 410 for a version too old.
    """
    event = msgspec.json.decode(line, type=_Event)
    if event.type == "ERROR":
        status = msgspec.json.decode(event.object, type=Status)
        raise KubeError(
            f"cannot watch Services: {status.message or status.reason or 'the API gave up'}",
            status=status.code or 0,
            reason=status.reason or "",
        )
    found = msgspec.json.decode(event.object, type=Resource)
    version = (found.metadata.resourceVersion if found.metadata else None) or ""
    return ServiceEvent(
        change=Change(event.type),
        service=_value(found.metadata, found.spec),
        resource_version=version,
    )


def _value(metadata: ObjectMeta | None, spec: ServiceSpec | None) -> Service:
    meta, spec = metadata or ObjectMeta(), spec or ServiceSpec()
    at = ServiceName(meta.namespace or "", meta.name or "")
    if spec.type == "ExternalName":
        return Service(at=at, external_name=spec.externalName or "")
    # clusterIPs has both families and repeats clusterIP; old APIs have only that.
    given = spec.clusterIPs or ([spec.clusterIP] if spec.clusterIP else [])
    return Service(
        at=at,
        addresses=tuple(each for each in given if is_address(each)),  # "None" is headless
        ports=tuple(
            (port.name or "", port.port)
            for port in spec.ports or ()
            if (port.protocol or "TCP") == "TCP"
        ),
    )
