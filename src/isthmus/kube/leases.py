"""A server's own Lease: made, renewed, and deleted at the end; and the Leases of dead servers.

Agents count Leases to know how many servers to look for (counter.py). When the API is away the
server goes on without; the Lease comes back with the API.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from isthmus.errors import KubeError
from isthmus.kube.api import LeaseDraft, LeaseListing, Leases
from isthmus.kube.outage import Outage
from isthmus.kube.rules_leases import (
    ADDRESS_ANNOTATION,
    COLLECT_S,
    DURATION_S,
    RENEW_S,
    Doomed,
    expired,
    lease_name,
    to_selector,
)
from isthmus.logs import log
from isthmus.values import ServerId

_OK = 200
_NOT_FOUND = 404
_CONFLICT = 409
_STOP_TIMEOUT_S = 3.0
_SAME_S = 1e-3  # times travel in microseconds
_log = logging.getLogger("isthmus.kube")


class KeeperMetrics(Protocol):
    """What a LeaseKeeper counts. A status of 0 means that the API gave no answer."""

    def lease_listed(self, status: int, reason: str, seconds: float) -> None:
        """Leases were listed, or could not be."""

    def lease_deleted(self, status: int, reason: str, seconds: float) -> None:
        """An expired Lease was deleted, or could not be."""

    def lease_culled(self) -> None:
        """The Lease of a dead server is gone, by our hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """How long a Lease lasts, and how often it is renewed and others are collected."""

    duration_s: int = DURATION_S
    renew_s: float = RENEW_S
    collect_s: float = COLLECT_S


class LeaseKeeper:
    """Keeps the Lease of one server while ``run`` runs; ``stop`` takes it away."""

    def __init__(
        self,
        leases: Leases,
        *,
        server_id: ServerId,
        labels: Mapping[str, str],
        metrics: KeeperMetrics,
        agent_address: str = "",
        timing: LeaseTiming | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``labels`` mark our Lease, and are how those of other servers are found.

        ``agent_address`` tells them where our agent port is; empty does not.

        Raises:
            ValueError: the server id cannot name a Lease.
        """
        self.name = lease_name(server_id)
        self._leases = leases
        self._server_id = server_id
        self._labels = dict(labels)
        self._annotations = {ADDRESS_ANNOTATION: agent_address} if agent_address else {}
        self._metrics = metrics
        self._timing = timing or LeaseTiming()
        self._now = now
        self._acquired_at = 0.0
        self._version: str | None = None  # of the Lease as we wrote it; None: not ours (yet)

    def __repr__(self) -> str:
        return f"<LeaseKeeper {self.name} {'held' if self._version else 'not held'}>"

    @property
    def held(self) -> bool:
        """The Lease was written, and as far as we know nobody took it away."""
        return self._version is not None

    async def run(self) -> None:
        """Keep the Lease and collect dead ones, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep(), name="lease:renew")
            tasks.create_task(self._collect(), name="lease:collect")

    async def stop(self) -> None:
        """Delete the Lease, once ``run`` has ended; a few seconds at most, and it never raises."""
        self._version = None
        why = "no answer in time"
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._release()
            return
        except TimeoutError:
            pass
        except KubeError as exc:
            if exc.status in (_NOT_FOUND, _CONFLICT):
                return
            why = str(exc)
        log(_log, logging.WARNING, "lease is left to expire", lease=self.name, reason=why)

    async def _release(self) -> None:
        """Delete the Lease unless a successor of the same id has taken it over already.

        It is read first: ``run`` may have been cancelled between a write and its answer, so the
        version that we know need not be the last one that we wrote.
        """
        if not self._acquired_at:
            return
        there = await self._leases.get(self.name)
        if abs((there.acquired_at or 0.0) - self._acquired_at) < _SAME_S:
            await self._leases.delete(
                Doomed(name=self.name, resource_version=there.resource_version)
            )

    async def _keep(self) -> None:
        outage = Outage("renewing the lease", cap_s=self._timing.renew_s)
        while True:
            try:
                await self._renew()
            except KubeError as exc:
                delay_s = outage.failed(exc)
            else:
                outage.worked()
                delay_s = self._timing.renew_s
            await asyncio.sleep(delay_s)

    async def _renew(self) -> None:
        """Write the Lease: over our own version of it, or else over whatever is there."""
        if self._version is not None:
            try:
                await self._replace(self._version)
            except KubeError as exc:
                if exc.status not in (_NOT_FOUND, _CONFLICT):
                    raise
                self._version = None
            else:
                return
        await self._acquire()

    async def _acquire(self) -> None:
        self._acquired_at = self._now()
        try:
            made = await self._leases.create(self._draft())
        except KubeError as exc:
            if exc.status != _CONFLICT:
                raise
            # Ours from before a restart, or one that somebody else wrote to.
            await self._replace((await self._leases.get(self.name)).resource_version)
        else:
            self._version = made.resource_version
        log(_log, logging.INFO, "lease held", lease=self.name)

    async def _replace(self, version: str) -> None:
        written = await self._leases.replace(self._draft(), resource_version=version)
        self._version = written.resource_version

    def _draft(self) -> LeaseDraft:
        return LeaseDraft(
            name=self.name,
            labels=self._labels,
            annotations=self._annotations,
            holder=self._server_id,
            acquired_at=self._acquired_at,
            renewed_at=self._now(),
            duration_s=self._timing.duration_s,
        )

    async def _collect(self) -> None:
        outage = Outage("collecting expired leases", cap_s=self._timing.collect_s)
        while True:
            await asyncio.sleep(self._timing.collect_s)
            try:
                found = await self._list()
            except KubeError as exc:
                # Nothing hurries: the next turn comes soon enough.
                outage.failed(exc)
                continue
            outage.worked()
            for doomed in expired(found.leases, now=self._now(), own=self.name):
                await self._delete(doomed)

    async def _list(self) -> LeaseListing:
        with _timed(self._metrics.lease_listed):
            return await self._leases.list(to_selector(self._labels))

    async def _delete(self, doomed: Doomed) -> None:
        try:
            with _timed(self._metrics.lease_deleted):
                await self._leases.delete(doomed)
        except KubeError as exc:
            # Gone, or renewed after all; anything else is tried again at the next turn.
            if exc.status not in (_NOT_FOUND, _CONFLICT):
                log(
                    _log, logging.WARNING, "expired lease stays", lease=doomed.name, reason=str(exc)
                )
        else:
            self._metrics.lease_culled()
            log(_log, logging.INFO, "expired lease deleted", lease=doomed.name)


@contextlib.contextmanager
def _timed(observe: Callable[[int, str, float], None]) -> Iterator[None]:
    """Tell how a call went and how long it took."""
    started = time.monotonic()
    try:
        yield
    except KubeError as exc:
        observe(exc.status, exc.reason, time.monotonic() - started)
        raise
    observe(_OK, "", time.monotonic() - started)
