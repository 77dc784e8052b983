"""Services as lightkube reads them: values out.

Imports lightkube: reached only through ``api.open_kube``.
"""

from __future__ import annotations

import msgspec
from lightkube.models.core_v1 import ServiceSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Service as Resource

from isthmus.dial.rules_service_names import Service, ServiceName
from isthmus.kube.client import KubeClient
from isthmus.kube.listing import LightSource
from isthmus.values import is_address

_PAGE = 500


class LightServices(LightSource[Service]):
    """The Services of all namespaces."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__(client, Resource, "Services", _read, page=_PAGE)

    async def get(self, at: ServiceName) -> Service:
        """Read one."""
        found = await self._client.call(
            f"read Service {at}", Resource, "get", Resource, namespace=at.namespace, name=at.name
        )
        return _value(found.metadata, found.spec)


def _read(given: msgspec.Raw) -> Service:
    found = msgspec.json.decode(given, type=Resource)
    return _value(found.metadata, found.spec)


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
