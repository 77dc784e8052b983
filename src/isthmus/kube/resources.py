"""Leases and token reviews as lightkube writes and reads them: values in, values out.

Imports lightkube: reached only through ``api.open_kube``.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec
from lightkube.models.authentication_v1 import TokenReviewSpec
from lightkube.models.coordination_v1 import LeaseList, LeaseSpec
from lightkube.models.meta_v1 import DeleteOptions, ObjectMeta, Preconditions, Status
from lightkube.resources.authentication_v1 import TokenReview
from lightkube.resources.coordination_v1 import Lease as Resource

from isthmus.errors import KubeError
from isthmus.kube.api import Change, LeaseDraft, LeaseEvent, LeaseListing, TokenReviews, TokenStatus
from isthmus.kube.client import KubeClient
from isthmus.kube.rules_leases import ADDRESS_ANNOTATION, Doomed, Lease
from isthmus.kube.service_resources import LightServices

_MICROSECOND_S = 1e-6


class LightKube:
    """The Kubernetes API through lightkube."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.tokens: TokenReviews = LightTokenReviews(client)

    def leases(self, namespace: str) -> LightLeases:
        """Give the Leases of a namespace."""
        return LightLeases(self.client, namespace)

    def services(self) -> LightServices:
        """Give the Services of all namespaces."""
        return LightServices(self.client)

    async def close(self) -> None:
        """Drop every connection."""
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
        """Read all that the label selector matches."""
        found = await self._client.call(
            "list Leases",
            LeaseList,
            "list",
            Resource,
            namespace=self._namespace,
            params={"labelSelector": selector},
        )
        version = (found.metadata.resourceVersion if found.metadata else None) or ""
        return LeaseListing(
            leases=[_value(item.metadata, item.spec) for item in found.items],
            resource_version=version,
        )

    @contextlib.asynccontextmanager
    async def watch(
        self, selector: str, *, after: str, timeout_s: float
    ) -> AsyncIterator[AsyncIterator[LeaseEvent]]:
        """Hear of every change after a version."""
        params = {
            "labelSelector": selector,
            "resourceVersion": after,
            "timeoutSeconds": str(max(1, round(timeout_s))),
            "allowWatchBookmarks": "true",
        }
        async with self._client.watch(
            "watch Leases", _event, Resource, namespace=self._namespace, params=params
        ) as events:
            yield events

    async def get(self, name: str) -> Lease:
        """Read one."""
        return await self._call("read", "get", name=name)

    async def create(self, draft: LeaseDraft) -> Lease:
        """Write a new one."""
        return await self._call("create", "post", obj=self._resource(draft, None))

    async def replace(self, draft: LeaseDraft, *, resource_version: str) -> Lease:
        """Write over one, if it is still at that version."""
        return await self._call("renew", "put", obj=self._resource(draft, resource_version))

    async def delete(self, doomed: Doomed) -> None:
        """Delete one, if it is still at that version."""
        only = Preconditions(resourceVersion=doomed.resource_version or None)
        await self._client.call(
            f"delete Lease {doomed.name}",
            msgspec.Raw,
            "delete",
            Resource,
            namespace=self._namespace,
            name=doomed.name,
            body=DeleteOptions(apiVersion="v1", kind="DeleteOptions", preconditions=only),
        )

    async def _call(self, verb: str, method: str, **request: object) -> Lease:
        written = await self._client.call(
            f"{verb} a Lease", Resource, method, Resource, namespace=self._namespace, **request
        )
        return _value(written.metadata, written.spec)

    def _resource(self, draft: LeaseDraft, version: str | None) -> Resource:
        return Resource(
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
    """Asks the API whose a token is."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def review(self, token: str, audience: str) -> TokenStatus:
        """Ask for one audience."""
        asked = TokenReview(spec=TokenReviewSpec(token=token, audiences=[audience]))
        answer = await self._client.call(
            "review a token", TokenReview, "post", TokenReview, obj=asked
        )
        status = answer.status
        if status is None:
            raise KubeError("cannot review a token: the API answered without a status")
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
    """Read one line of a watch.

    Raises:
        KubeError: the API ends the watch with an error, such as 410 for a version too old.
    """
    event = msgspec.json.decode(line, type=_Event)
    if event.type == "ERROR":
        status = msgspec.json.decode(event.object, type=Status)
        raise KubeError(
            f"cannot watch Leases: {status.message or status.reason or 'the API gave up'}",
            status=status.code or 0,
            reason=status.reason or "",
        )
    found = msgspec.json.decode(event.object, type=Resource)
    return LeaseEvent(change=Change(event.type), lease=_value(found.metadata, found.spec))


def _value(metadata: ObjectMeta | None, spec: LeaseSpec | None) -> Lease:
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
    """Write a time as Go's MicroTime reads it: with six digits, which a whole second would lack."""
    time = datetime.fromtimestamp(at, UTC)
    return time if time.microsecond else datetime.fromtimestamp(at + _MICROSECOND_S, UTC)
