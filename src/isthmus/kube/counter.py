"""The count of servers by their Leases, and where those are that say it: listed, then watched.

A Lease that is not renewed stops counting when its time is over, event or not. While the API is
away the last count stands: servers cannot renew then either, and are no fewer for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

from isthmus.errors import KubeError
from isthmus.kube.api import Change, LeaseEvent, Leases
from isthmus.kube.outage import Outage
from isthmus.kube.rules_leases import Lease, addresses, count_valid, next_expiry
from isthmus.values import HostPort, ServerId

_OK = 200
_GONE = 410
_CAP_S = 30.0
_MIN_WATCH_S, _MAX_WATCH_S = 300.0, 600.0  # spread, or all agents would come back in step
# Every server renews twice in a Lease's 30 seconds. Silence for longer than one renewal and a
# bit, while servers are known, means a connection that died without a word: list again, before
# the Leases seem to expire.
_SILENCE_S = 25.0
_MARGIN_S = 30.0  # the API ends a watch a little late
_TICK_S = 0.001


class CounterMetrics(Protocol):
    """What a LeaseCounter counts. A status of 0 means that the API gave no answer."""

    def lease_listed(self, status: int, reason: str, seconds: float) -> None:
        """Leases were listed, or could not be."""

    def lease_watched(self, status: int, reason: str) -> None:
        """A watch was opened, or could not be."""


class LeaseCounter:
    """Counts the valid Leases of a selector while ``run`` runs."""

    def __init__(
        self,
        leases: Leases,
        *,
        selector: str,
        changed: Callable[[int], None],
        metrics: CounterMetrics,
        found: Callable[[Mapping[ServerId, HostPort]], None] | None = None,
        silence_s: float = _SILENCE_S,
        first_retry_s: float = 0.5,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``changed`` hears the count whenever it is another one, the first time included.

        ``found`` hears likewise of the servers whose Leases say where they are, before that.
        """
        self._leases = leases
        self._selector = selector
        self._changed = changed
        self._found = found
        self._metrics = metrics
        self._silence_s = silence_s
        self._now = now
        self._outage = Outage("counting leases", cap_s=_CAP_S, first_s=first_retry_s)
        self._known: dict[str, Lease] = {}
        self._count: int | None = None
        self._addresses: Mapping[ServerId, HostPort] = {}
        self._heard = False
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<LeaseCounter {self._selector} {self._count}>"

    @property
    def count(self) -> int | None:
        """How many servers have a valid Lease, at least 1; None until Leases were ever read."""
        return self._count

    async def run(self) -> None:
        """Count, until cancelled."""
        while True:
            delay_s = await self._follow()
            if delay_s:
                await asyncio.sleep(delay_s)

    async def _follow(self) -> float:
        """List, then watch as long as that works; give the delay before the next time."""
        self._heard = False
        try:
            version = await self._list()
            while True:
                before = version
                version = await self._watch(version)
                if version == before:
                    # Whoever ends watches at once is not to be asked in a tight loop.
                    await asyncio.sleep(self._outage.pause_s())
        except TimeoutError:
            return 0.0  # too quiet to be true
        except KubeError as exc:
            if exc.status == _GONE and self._heard:
                return 0.0  # where we were has aged out: simply list again
            return self._outage.failed(exc)
        finally:
            # Until Leases can be read again nobody knows who renewed; the count stands.
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
        """Follow one watch to its end; give the version that it came to.

        Raises:
            TimeoutError: nothing came for longer than servers are ever quiet.
            KubeError: it could not be opened, or broke.
        """
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            events = await self._open(stack, version)
            async with asyncio.timeout(self._patience_s()) as quiet:
                async for event in events:
                    # An event, and not a mere answer, ends an outage: some APIs accept every
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
        """Tell the count if it is another one, and look again when the next Lease expires."""
        self._disarm()
        now = self._now()
        ends = next_expiry(self._known.values(), now=now)
        if ends is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(ends - now + _TICK_S, self._recount)
        if self._found is not None:
            where = addresses(self._known.values(), now=now)
            if where != self._addresses:
                self._addresses = where
                self._found(where)
        count = count_valid(self._known.values(), now=now)
        if count != self._count:
            self._count = count
            self._changed(count)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
