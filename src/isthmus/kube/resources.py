"""Leases, token reviews and Services as lightkube reads and writes them: values in, values out.

Imports lightkube: reached only through ``opening.open_kube``, and by callers of
``kubernetes_endpoints``.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
from lightkube.models.authentication_v1 import TokenReviewSpec
from lightkube.models.coordination_v1 import LeaseList, LeaseSpec
from lightkube.models.core_v1 import ServiceSpec
from lightkube.models.meta_v1 import DeleteOptions, ObjectMeta, Preconditions, Status
from lightkube.resources.authentication_v1 import TokenReview
from lightkube.resources.coordination_v1 import Lease as LeaseResource
from lightkube.resources.core_v1 import Endpoints
from lightkube.resources.core_v1 import Service as ServiceResource
from lightkube.resources.discovery_v1 import EndpointSlice

from isthmus.dial.rules_service_names import Service, ServiceName
from isthmus.errors import KubeError
from isthmus.kube.api import Change, LeaseDraft, LeaseEvent, LeaseListing, TokenReviews, TokenStatus
from isthmus.kube.client import KubeClient
from isthmus.kube.listing import LightSource
from isthmus.kube.rules_leases import ADDRESS_ANNOTATION, Doomed, Lease
from isthmus.values import HostPort, is_address

_MICROSECOND_S = 1e-6
#: The Service of the API server itself.
NAME, NAMESPACE = "kubernetes", "default"
_FORBIDDEN, _MISSING = 403, 404


class LightKube:
    """The Kubernetes API through lightkube."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.tokens: TokenReviews = LightTokenReviews(client)

    def leases(self, namespace: str) -> LightLeases:
        return LightLeases(self.client, namespace)

    def services(self) -> LightServices:
        return LightServices(self.client)

    async def close(self) -> None:
        await self.client.close()


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class LightLeases:
    """The Leases of one namespace."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def list(self, selector: str) -> LeaseListing:
        found = await self._client.call(
            "list Leases",
            LeaseList,
            "list",
            LeaseResource,
            namespace=self._namespace,
            params={"labelSelector": selector},
        )
        version = (found.metadata.resourceVersion if found.metadata else None) or ""
        return LeaseListing(
            leases=[_lease(item.metadata, item.spec) for item in found.items],
            resource_version=version,
        )

    @contextlib.asynccontextmanager
    async def watch(
        self, selector: str, *, after: str, timeout_s: float
    ) -> AsyncIterator[AsyncIterator[LeaseEvent]]:
        params = {
            "labelSelector": selector,
            "resourceVersion": after,
            "timeoutSeconds": str(max(1, round(timeout_s))),
            "allowWatchBookmarks": "true",
        }
        async with self._client.watch(
            "watch Leases", _event, LeaseResource, namespace=self._namespace, params=params
        ) as events:
            yield events

    async def get(self, name: str) -> Lease:
        return await self._call("read", "get", name=name)

    async def create(self, draft: LeaseDraft) -> Lease:
        return await self._call("create", "post", obj=self._resource(draft, None))

    async def replace(self, draft: LeaseDraft, *, resource_version: str) -> Lease:
        return await self._call("renew", "put", obj=self._resource(draft, resource_version))

    async def delete(self, doomed: Doomed) -> None:
        only = Preconditions(resourceVersion=doomed.resource_version or None)
        await self._client.call(
            f"delete Lease {doomed.name}",
            msgspec.Raw,
            "delete",
            LeaseResource,
            namespace=self._namespace,
            name=doomed.name,
            body=DeleteOptions(apiVersion="v1", kind="DeleteOptions", preconditions=only),
        )

    async def _call(self, verb: str, method: str, **request: object) -> Lease:
        written = await self._client.call(
            f"{verb} a Lease",
            LeaseResource,
            method,
            LeaseResource,
            namespace=self._namespace,
            **request,
        )
        return _lease(written.metadata, written.spec)

    def _resource(self, draft: LeaseDraft, version: str | None) -> LeaseResource:
        return LeaseResource(
            metadata=ObjectMeta(
                name=draft.name,
                namespace=self._namespace,
                labels=dict(draft.labels),
                annotations=dict(draft.annotations) or None,
                resourceVersion=version,
            ),
            spec=LeaseSpec(
                holderIdentity=draft.holder,
                leaseDurationSeconds=draft.duration_s,
                acquireTime=_micro_time(draft.acquired_at),
                renewTime=_micro_time(draft.renewed_at),
            ),
        )


class LightTokenReviews:
    """Asks the API for the owner of a token."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def review(self, token: str, audience: str) -> TokenStatus:
        asked = TokenReview(spec=TokenReviewSpec(token=token, audiences=[audience]))
        answer = await self._client.call(
            "review a token", TokenReview, "post", TokenReview, obj=asked
        )
        status = answer.status
        if status is None:
            raise KubeError("cannot review a token: the API's answer has no status")
        user = status.user
        return TokenStatus(
            authenticated=bool(status.authenticated),
            username=(user.username if user else None) or "",
            groups=tuple((user.groups if user else None) or ()),
            audiences=tuple(status.audiences or ()),
            error=status.error or "",
            extra=_extra(user.extra if user else None),
        )


def _extra(given: dict[str, object] | None) -> dict[str, tuple[str, ...]]:
    return {
        key: tuple(str(value) for value in values)
        for key, values in (given or {}).items()
        if isinstance(values, list)
    }


def _event(line: bytes) -> LeaseEvent:
    """Read one event of a watch.

    Raises:
        KubeError: the API ended the watch with an error, such as 410 for an expired version.
    """
    event = msgspec.json.decode(line, type=_Event)
    if event.type == "ERROR":
        status = msgspec.json.decode(event.object, type=Status)
        raise KubeError(
            f"cannot watch Leases: {status.message or status.reason or 'no reason given'}",
            status=status.code or 0,
            reason=status.reason or "",
        )
    found = msgspec.json.decode(event.object, type=LeaseResource)
    return LeaseEvent(change=Change(event.type), lease=_lease(found.metadata, found.spec))


def _lease(metadata: ObjectMeta | None, spec: LeaseSpec | None) -> Lease:
    meta, spec = metadata or ObjectMeta(), spec or LeaseSpec()
    renewed = spec.renewTime or spec.acquireTime
    return Lease(
        name=meta.name or "",
        holder=spec.holderIdentity or "",
        acquired_at=spec.acquireTime.timestamp() if spec.acquireTime else None,
        renewed_at=renewed.timestamp() if renewed else None,
        duration_s=spec.leaseDurationSeconds,
        resource_version=meta.resourceVersion or "",
        agent_address=(meta.annotations or {}).get(ADDRESS_ANNOTATION, ""),
    )


def _micro_time(at: float) -> datetime:
    """Write a time for Go's MicroTime, which requires six digits even for a whole second."""
    time = datetime.fromtimestamp(at, UTC)
    return time if time.microsecond else datetime.fromtimestamp(at + _MICROSECOND_S, UTC)


class LightServices(LightSource[Service]):
    """The Services of all namespaces."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__(client, ServiceResource, "Services", _read)

    async def get(self, at: ServiceName) -> Service:
        found = await self._client.call(
            f"read Service {at}",
            ServiceResource,
            "get",
            ServiceResource,
            namespace=at.namespace,
            name=at.name,
        )
        return _service(found.metadata, found.spec)


def _read(given: msgspec.Raw) -> Service:
    found = msgspec.json.decode(given, type=ServiceResource)
    return _service(found.metadata, found.spec)


def _service(metadata: ObjectMeta | None, spec: ServiceSpec | None) -> Service:
    meta, spec = metadata or ObjectMeta(), spec or ServiceSpec()
    at = ServiceName(meta.namespace or "", meta.name or "")
    if spec.type == "ExternalName":
        return Service(at=at, external_name=spec.externalName or "")
    # clusterIPs has both families and repeats clusterIP; old APIs have only that.
    given = spec.clusterIPs or ([spec.clusterIP] if spec.clusterIP else [])
    return Service(
        at=at,
        addresses=tuple(each for each in given if is_address(each)),  # "None" means headless
        ports=tuple(
            (port.name or "", port.port)
            for port in spec.ports or ()
            if (port.protocol or "TCP") == "TCP"
        ),
    )


NAME, NAMESPACE = "kubernetes", "default"
_FORBIDDEN, _MISSING = 403, 404


async def kubernetes_endpoints(kubeconfig: str, *, timeout_s: float) -> tuple[HostPort, ...]:
    """Read the EndpointSlice of kubernetes, or its Endpoints if that is not permitted.

    Nodes may read the one, node proxies the other.

    Raises:
        ConfigError: the kubeconfig cannot be used.
        KubeError: the API refuses both, or does not answer.
    """
    async with _client(kubeconfig, timeout_s) as client:
        try:
            return await _from_slice(client)
        except KubeError as error:
            if error.status not in (_FORBIDDEN, _MISSING):
                raise
        return await _from_endpoints(client)


@contextlib.asynccontextmanager
async def _client(kubeconfig: str, timeout_s: float) -> AsyncIterator[KubeClient]:
    client = KubeClient(kubeconfig, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()


async def _from_slice(client: KubeClient) -> tuple[HostPort, ...]:
    found = await client.call(
        "read the EndpointSlice of kubernetes",
        EndpointSlice,
        "get",
        EndpointSlice,
        namespace=NAMESPACE,
        name=NAME,
    )
    ports = [each.port for each in found.ports or () if each.port]
    addresses = [address for each in found.endpoints or () for address in each.addresses]
    return tuple(HostPort(address, port) for address in addresses for port in ports)


async def _from_endpoints(client: KubeClient) -> tuple[HostPort, ...]:
    found = await client.call(
        "read the Endpoints of kubernetes",
        Endpoints,
        "get",
        Endpoints,
        namespace=NAMESPACE,
        name=NAME,
    )
    return tuple(
        HostPort(address.ip, port.port)
        for subset in found.subsets or ()
        for address in subset.addresses or ()
        for port in subset.ports or ()
    )
