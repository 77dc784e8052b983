"""The Leases of servers: LeaseKeeper maintains one, LeaseCounter counts them.

A server creates and renews its Lease, and deletes it at the end; it also deletes those of dead
servers. While the API is unreachable the server continues without; the Lease returns with the API.

Agents count Leases to know how many servers to connect to, and where. A Lease that is not renewed
stops counting when it expires, with or without an event. While the API is unreachable the last
count stands, because servers cannot renew then either.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from isthmus.errors import KubeError
from isthmus.kube.api import Change, LeaseDraft, LeaseEvent, LeaseListing, Leases
from isthmus.kube.following import Outage, WatchTiming
from isthmus.kube.rules_leases import (
    ADDRESS_ANNOTATION,
    COLLECT_S,
    DURATION_S,
    RENEW_S,
    Doomed,
    Lease,
    count_valid,
    expired,
    lease_name,
    next_expiry,
    servers,
    to_selector,
)
from isthmus.logs import log
from isthmus.values import HostPort, ServerId

_OK = 200
_NOT_FOUND = 404
_CONFLICT = 409
_STOP_TIMEOUT_S = 3.0
_SAME_S = 1e-3  # times are sent in microseconds
_GONE = 410
_CAP_S = 30.0
_MIN_WATCH_S, _MAX_WATCH_S = 300.0, 600.0  # random, so that agents do not reconnect at once
# Every server renews twice in a Lease's 30 seconds. A silence of more than one renewal
# interval, while servers are known, means a dead connection: list again, before
# the Leases seem to expire.
_TIMING = WatchTiming(silence_s=25.0)
_MARGIN_S = 30.0  # the API ends a watch a little late
_TICK_S = 0.001
_log = logging.getLogger("isthmus.kube")


class KeeperMetrics(Protocol):
    """Metrics of a LeaseKeeper. A status of 0 means that the API did not answer."""

    def lease_listed(self, status: int, reason: str, seconds: float) -> None:
        """Leases were listed, or listing failed."""

    def lease_deleted(self, status: int, reason: str, seconds: float) -> None:
        """An expired Lease was deleted, or deleting it failed."""

    def lease_culled(self) -> None:
        """This program deleted the Lease of a dead server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """How long a Lease lasts, and how often it is renewed and expired ones are collected."""

    duration_s: int = DURATION_S
    renew_s: float = RENEW_S
    collect_s: float = COLLECT_S


class LeaseKeeper:
    """Maintains the Lease of one server while ``run`` runs; ``stop`` deletes it."""

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
        """``labels`` mark the Lease, and select those of other servers.

        ``agent_address`` publishes the address of the agent port; empty does not.

        Raises:
            ValueError: the server id cannot be used in a Lease name.
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
        self._version: str | None = None  # of the Lease as last written; None: not held

    def __repr__(self) -> str:
        return f"<LeaseKeeper {self.name} {'held' if self._version else 'not held'}>"

    @property
    def held(self) -> bool:
        """Whether the Lease was written and, as far as known, still exists."""
        return self._version is not None

    async def run(self) -> None:
        """Maintain the Lease and delete expired ones, until cancelled."""
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
        log(_log, logging.WARNING, "lease not deleted, it will expire", lease=self.name, reason=why)

    async def _release(self) -> None:
        """Delete the Lease unless a successor with the same id has already taken it over.

        It is read first: ``run`` may have been cancelled between a write and its answer, so the
        known version may not be the last one written.
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
        """Write the Lease: replace our own version, or else any existing Lease."""
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
            # Ours from before a restart, or changed by another client.
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
                # Not urgent: the next turn will do.
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
            # Deleted, or renewed after all; any other failure is retried at the next turn.
            if exc.status not in (_NOT_FOUND, _CONFLICT):
                log(
                    _log,
                    logging.WARNING,
                    "cannot delete expired lease",
                    lease=doomed.name,
                    reason=str(exc),
                )
        else:
            self._metrics.lease_culled()
            log(_log, logging.INFO, "expired lease deleted", lease=doomed.name)


@contextlib.contextmanager
def _timed(observe: Callable[[int, str, float], None]) -> Iterator[None]:
    """Report the result and duration of a call."""
    started = time.monotonic()
    try:
        yield
    except KubeError as exc:
        observe(exc.status, exc.reason, time.monotonic() - started)
        raise
    observe(_OK, "", time.monotonic() - started)


class CounterMetrics(Protocol):
    """Metrics of a LeaseCounter. A status of 0 means that the API did not answer."""

    def lease_listed(self, status: int, reason: str, seconds: float) -> None:
        """Leases were listed, or listing failed."""

    def lease_watched(self, status: int, reason: str) -> None:
        """A watch was opened, or opening it failed."""


class LeaseCounter:
    """Counts the valid Leases of a selector while ``run`` runs."""

    def __init__(
        self,
        leases: Leases,
        *,
        selector: str,
        changed: Callable[[int], None],
        metrics: CounterMetrics,
        found: Callable[[Mapping[ServerId, HostPort | None]], None] | None = None,
        timing: WatchTiming = _TIMING,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``changed`` is called with the count when it changes, and the first time.

        ``found`` is called likewise, before that, with the servers that have a Lease, and the
        addresses of those whose Lease has one.
        """
        self._leases = leases
        self._selector = selector
        self._changed = changed
        self._found = found
        self._metrics = metrics
        self._silence_s = timing.silence_s
        self._now = now
        self._outage = Outage("counting leases", cap_s=_CAP_S, first_s=timing.first_retry_s)
        self._known: dict[str, Lease] = {}
        self._count: int | None = None
        self._servers: Mapping[ServerId, HostPort | None] = {}
        self._heard = False
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<LeaseCounter {self._selector} {self._count}>"

    @property
    def count(self) -> int | None:
        """The number of servers with a valid Lease, at least 1; None before the first listing."""
        return self._count

    async def run(self) -> None:
        """Count, until cancelled."""
        while True:
            delay_s = await self._follow()
            if delay_s:
                await asyncio.sleep(delay_s)

    async def _follow(self) -> float:
        """List, then watch as long as possible; return the delay before the next attempt."""
        self._heard = False
        try:
            version = await self._list()
            while True:
                before = version
                version = await self._watch(version)
                if version == before:
                    # An API that ends watches at once must not cause a tight loop.
                    await asyncio.sleep(self._outage.pause_s())
        except TimeoutError:
            return 0.0  # suspiciously silent
        except KubeError as exc:
            if exc.status == _GONE and self._heard:
                return 0.0  # the version expired: list again
            return self._outage.failed(exc)
        finally:
            # Until Leases can be read again it is unknown who renewed; the count stands.
            self._disarm()

    async def _list(self) -> str:
        started = time.monotonic()
        try:
            found = await self._leases.list(self._selector)
        except KubeError as exc:
            self._metrics.lease_listed(exc.status, exc.reason, time.monotonic() - started)
            raise
        self._metrics.lease_listed(_OK, "", time.monotonic() - started)
        self._known = {lease.name: lease for lease in found.leases}
        self._recount()
        return found.resource_version

    async def _watch(self, version: str) -> str:
        """Follow one watch to its end; return the last version.

        Raises:
            TimeoutError: a longer silence than servers ever cause.
            KubeError: the watch could not be opened, or broke.
        """
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            events = await self._open(stack, version)
            async with asyncio.timeout(self._patience_s()) as quiet:
                async for event in events:
                    # Only an event ends an outage, not a mere answer: some APIs accept every
                    # watch and then break it.
                    self._heard = True
                    self._outage.worked()
                    version = event.lease.resource_version
                    self._take(event)
                    quiet.reschedule(loop.time() + self._patience_s())
        return version

    async def _open(
        self, stack: contextlib.AsyncExitStack, version: str
    ) -> AsyncIterator[LeaseEvent]:
        timeout_s = random.uniform(_MIN_WATCH_S, _MAX_WATCH_S)
        watch = self._leases.watch(self._selector, after=version, timeout_s=timeout_s)
        try:
            events = await stack.enter_async_context(watch)
        except KubeError as exc:
            self._metrics.lease_watched(exc.status, exc.reason)
            raise
        self._metrics.lease_watched(_OK, "")
        return events

    def _patience_s(self) -> float:
        somebody = next_expiry(self._known.values(), now=self._now()) is not None
        return self._silence_s if somebody else _MAX_WATCH_S + _MARGIN_S

    def _take(self, event: LeaseEvent) -> None:
        lease = event.lease
        match event.change:
            case Change.ADDED | Change.MODIFIED:
                self._known[lease.name] = lease
            case Change.DELETED:
                self._known.pop(lease.name, None)
            case Change.BOOKMARK:
                return
        self._recount()

    def _recount(self) -> None:
        """Report the count if it changed, and recount when the next Lease expires."""
        self._disarm()
        now = self._now()
        ends = next_expiry(self._known.values(), now=now)
        if ends is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ends - now + _TICK_S, self._recount)
        if self._found is not None:
            there = servers(self._known.values(), now=now)
            if there != self._servers:
                self._servers = there
                self._found(there)
        count = count_valid(self._known.values(), now=now)
        if count != self._count:
            self._count = count
            self._changed(count)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
