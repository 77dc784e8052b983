"""What Isthmus asks of the Kubernetes API, as values and protocols, and how to open it.

Importing this module is cheap. ``open_kube`` imports lightkube and what is below it (client.py,
resources.py), so a program that counts no Leases and reviews no tokens never pays for them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from isthmus.kube.rules_leases import Doomed, Lease

if TYPE_CHECKING:  # which knows our Change
    from isthmus.kube.client import KubeClient
    from isthmus.kube.service_api import Services


class Change(Enum):
    """What a watch saw happen; BOOKMARK only says how far it has come."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


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


def open_kube(kubeconfig: str, *, qps: float = 0.0, burst: int = 0, server: str = "") -> Kube:
    """Read the configuration and get ready to ask; nothing is sent yet.

    An empty ``kubeconfig`` means the pod's own service account. ``qps`` 0 sets no limit of our
    own: the API has its own fair queues, and Go's default of 5 per second makes five thousand
    agents wait a quarter of an hour for their token reviews. ``burst`` 0 means 10, as in Go.
    ``server`` is a URL to use instead of the kubeconfig's, which may then be empty.

    Raises:
        ConfigError: the configuration cannot be read or used; the sentence names --kubeconfig.
    """
    from isthmus.kube.client import KubeClient
    from isthmus.kube.resources import LightKube

    return LightKube(KubeClient(kubeconfig, qps=qps, burst=burst, server=server))
