"""Whether the Kubernetes API answers, its clock, and what we may do there.

Used by ``isthmus doctor``; the programs simply try. Imports lightkube.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

import httpx2
from lightkube.models.authorization_v1 import ResourceAttributes, SelfSubjectAccessReviewSpec
from lightkube.resources.authorization_v1 import SelfSubjectAccessReview

from isthmus.errors import KubeError
from isthmus.kube.client import KubeClient
from isthmus.kube.kubeconfig import connect, read_config


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSeen:
    """An API server that answered; ``date`` is its own time, None if unknown."""

    server: str
    status: int
    date: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """A permission to check; an empty namespace means all namespaces."""

    verb: str
    resource: str
    group: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}" + (f" in {self.namespace}" if self.namespace else "")


async def look_at_api(kubeconfig: str, *, server: str = "", timeout_s: float) -> ApiSeen:
    """Request the version; any answer counts.

    Raises:
        ConfigError: the kubeconfig cannot be used.
        KubeError: no answer.
    """
    access = read_config(kubeconfig, server)
    generic = connect(access, kubeconfig, httpx2.Timeout(timeout_s))
    where = access.config.cluster.server
    try:
        made = generic._client.build_request("GET", "/version")  # lightkube has no call for it
        if access.server_name:
            made.extensions["sni_hostname"] = access.server_name
        async with asyncio.timeout(timeout_s):
            answer = await generic.send(made)  # type: ignore[no-untyped-call]  # lightkube's
    except TimeoutError as exc:
        raise KubeError(f"no answer from {where} within {timeout_s:g} s") from exc
    except Exception as exc:  # httpx, ssl, anyio and the system
        raise KubeError(f"{where}: {str(exc) or type(exc).__name__}") from exc
    finally:
        await generic.close()  # type: ignore[no-untyped-call]  # lightkube's
    return ApiSeen(server=where, status=answer.status_code, date=_date(answer))


async def may(
    kubeconfig: str, asked: Sequence[Permission], *, server: str = "", timeout_s: float
) -> list[bool]:
    """Check for each permission whether we have it (SelfSubjectAccessReview).

    Raises:
        ConfigError: the kubeconfig cannot be used.
        KubeError: the API does not answer, or rejects our credentials.
    """
    async with _client(kubeconfig, server, timeout_s) as client:
        return [await _allowed(client, one) for one in asked]


async def _allowed(client: KubeClient, one: Permission) -> bool:
    review = SelfSubjectAccessReview(
        spec=SelfSubjectAccessReviewSpec(
            resourceAttributes=ResourceAttributes(
                verb=one.verb,
                resource=one.resource,
                group=one.group or None,
                namespace=one.namespace or None,
            )
        )
    )
    answer = await client.call(
        f"check the permission to {one}",
        SelfSubjectAccessReview,
        "post",
        SelfSubjectAccessReview,
        obj=review,
    )
    return bool(answer.status is not None and answer.status.allowed)


@contextlib.asynccontextmanager
async def _client(kubeconfig: str, server: str, timeout_s: float) -> AsyncIterator[KubeClient]:
    client = KubeClient(kubeconfig, server=server, timeout_s=timeout_s)
    try:
        yield client
    finally:
        await client.close()


def _date(answer: httpx2.Response) -> datetime | None:
    try:
        return parsedate_to_datetime(answer.headers["date"])
    except (KeyError, ValueError):
        return None
