"""The parts of the Kubernetes API that Isthmus uses, as values and protocols.

Importing this module is cheap; opening.py opens an implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from isthmus.dial.rules_service_names import Service, ServiceName
from isthmus.kube.rules_leases import Doomed, Lease

if TYPE_CHECKING:  # it imports lightkube
    from isthmus.kube.client import KubeClient


T = TypeVar("T")


class Change(Enum):
    """The kind of a watch event; BOOKMARK only reports progress."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent(Generic[T]):
    """One event of a watch; ``resource_version`` is where to resume.

    A bookmark only reports progress and has no ``item``.
    """

    change: Change
    item: T | None
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """All objects of a kind at one version, from which a watch can start."""

    items: Sequence[T]
    resource_version: str


class ObjectSource(Protocol[T]):
    """Objects of one kind. Every call may raise KubeError and has a deadline."""

    async def list(self) -> Listing[T]:
        """Read all objects."""

    def watch(
        self, *, after: str, timeout_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T]]]:
        """Report every change after a version.

        The API ends watches from time to time. A version that is too old is a KubeError with status
        410, on entry or from the iterator: list again. The caller bounds the silence.
        """


class Services(ObjectSource[Service], Protocol):
    """The Services of all namespaces. Every call may raise KubeError and has a deadline."""

    async def get(self, at: ServiceName) -> Service:
        """Read one Service; status 404 if it does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEvent:
    """One event of a watch; ``lease.resource_version`` is where to resume."""

    change: Change
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseListing:
    """All Leases of a selector at one version, from which a watch can start."""

    leases: Sequence[Lease]
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDraft:
    """A Lease to write: its holder, and the times of acquisition and renewal."""

    name: str
    labels: Mapping[str, str]
    holder: str
    acquired_at: float
    renewed_at: float
    duration_s: int
    annotations: Mapping[str, str] = field(default_factory=dict)


class Leases(Protocol):
    """The Leases of one namespace. Every call may raise KubeError and has a deadline."""

    async def list(self, selector: str) -> LeaseListing:
        """Read all Leases that the label selector matches."""

    def watch(
        self, selector: str, *, after: str, timeout_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[LeaseEvent]]:
        """Report every change after a version.

        The API ends watches from time to time. A version that is too old is a KubeError with status
        410, on entry or from the iterator: list again. The caller bounds the silence.
        """

    async def get(self, name: str) -> Lease:
        """Read one Lease."""

    async def create(self, draft: LeaseDraft) -> Lease:
        """Create a Lease."""

    async def replace(self, draft: LeaseDraft, *, resource_version: str) -> Lease:
        """Replace a Lease if it is still at that version (otherwise status 409)."""

    async def delete(self, doomed: Doomed) -> None:
        """Delete a Lease if it is still at that version (otherwise status 409)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatus:
    """The API's review of a token. ``extra`` names the pod and node it is bound to."""

    authenticated: bool
    username: str = ""
    groups: tuple[str, ...] = ()
    audiences: tuple[str, ...] = ()
    error: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class TokenReviews(Protocol):
    """Asks the API for the owner of a token."""

    async def review(self, token: str, audience: str) -> TokenStatus:
        """Review a token for one audience.

        Raises:
            KubeError: the API did not answer, or refused.
        """


class Kube(Protocol):
    """An open Kubernetes API; use ``client`` for other kinds of objects."""

    client: KubeClient
    tokens: TokenReviews

    def leases(self, namespace: str) -> Leases:
        """The Leases of a namespace."""

    def services(self) -> Services:
        """The Services of all namespaces."""

    async def close(self) -> None:
        """Close all connections."""
