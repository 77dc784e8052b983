"""What Isthmus asks of the Kubernetes API, as values and protocols.

Importing this module is cheap; who answers is opened by opening.py.
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
    """What a watch saw happen; BOOKMARK only says how far it has come."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent(Generic[T]):
    """One line of a watch; ``resource_version`` is where to go on from.

    A bookmark only says how far the watch has come: there is no ``item``.
    """

    change: Change
    item: T | None
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """All objects of a kind at one version, from which a watch goes on."""

    items: Sequence[T]
    resource_version: str


class ObjectSource(Protocol[T]):
    """Objects of one kind. Every call raises KubeError, and none waits for ever."""

    async def list(self) -> Listing[T]:
        """Read all of them."""

    def watch(
        self, *, after: str, timeout_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[WatchEvent[T]]]:
        """Hear of every change after a version.

        The API ends a watch now and then. A version too old for it is a KubeError with status
        410, on entry or from the iterator: list again. Silence is for the caller to bound.
        """


class Services(ObjectSource[Service], Protocol):
    """The Services of all namespaces. Every call raises KubeError, and none waits for ever."""

    async def get(self, at: ServiceName) -> Service:
        """Read one; status 404 when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEvent:
    """One line of a watch; ``lease.resource_version`` is where to go on from."""

    change: Change
    lease: Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseListing:
    """All Leases of a selector at one version, from which a watch goes on."""

    leases: Sequence[Lease]
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDraft:
    """A Lease to write: who holds it, since when, and when it was last renewed."""

    name: str
    labels: Mapping[str, str]
    holder: str
    acquired_at: float
    renewed_at: float
    duration_s: int
    annotations: Mapping[str, str] = field(default_factory=dict)


class Leases(Protocol):
    """The Leases of one namespace. Every call raises KubeError, and none waits for ever."""

    async def list(self, selector: str) -> LeaseListing:
        """Read all that the label selector matches."""

    def watch(
        self, selector: str, *, after: str, timeout_s: float
    ) -> AbstractAsyncContextManager[AsyncIterator[LeaseEvent]]:
        """Hear of every change after a version.

        The API ends a watch now and then. A version too old for it is a KubeError with status
        410, on entry or from the iterator: list again. Silence is for the caller to bound.
        """

    async def get(self, name: str) -> Lease:
        """Read one."""

    async def create(self, draft: LeaseDraft) -> Lease:
        """Write a new one."""

    async def replace(self, draft: LeaseDraft, *, resource_version: str) -> Lease:
        """Write over one, if it is still at that version (else status 409)."""

    async def delete(self, doomed: Doomed) -> None:
        """Delete one, if it is still at that version (else status 409)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatus:
    """What the API says of a token. ``extra`` names the pod and node it was made for."""

    authenticated: bool
    username: str = ""
    groups: tuple[str, ...] = ()
    audiences: tuple[str, ...] = ()
    error: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class TokenReviews(Protocol):
    """Asks the API whose a token is."""

    async def review(self, token: str, audience: str) -> TokenStatus:
        """Ask for one audience.

        Raises:
            KubeError: the API could not be asked, or refused to answer.
        """


class Kube(Protocol):
    """An open Kubernetes API; ``client`` is for those who read other objects than these."""

    client: KubeClient
    tokens: TokenReviews

    def leases(self, namespace: str) -> Leases:
        """Give the Leases of a namespace."""

    def services(self) -> Services:
        """Give the Services of all namespaces."""

    async def close(self) -> None:
        """Drop every connection."""
