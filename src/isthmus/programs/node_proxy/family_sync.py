"""One IP family of the node proxy: brings what changed into the kernel, and looks after it.

A backend blocks, so that each family has a thread of its own, and one only: its calls come one
after the other. What changed waits in ``PendingUpdates``, which both families share. ``Runner``
runs syncs neither too often nor too seldom, as kube-proxy's runner does; ``Frequency`` decides,
with time as an argument.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TypeVar

from isthmus.errors import IsthmusError
from isthmus.logs import log
from isthmus.programs.node_proxy.kernel.backend import KernelBackend, SyncReport
from isthmus.programs.node_proxy.kernel.conntrack import forget_stale_flows
from isthmus.programs.node_proxy.kernel.health import ProxyHealth
from isthmus.programs.node_proxy.metrics import NodeProxyMetrics
from isthmus.programs.node_proxy.rules.model import IpFamily, ServiceView, Update
from isthmus.programs.node_proxy.rules.settings import LARGE_CLUSTER_ENDPOINTS, RuleSettings
from isthmus.programs.node_proxy.rules.tracker import ServiceTracker
from isthmus.programs.node_proxy.settings import IPTABLES, NodeProxySettings

#: However quiet it is, rules are looked at this often.
MAX_INTERVAL_S = 3600.0


class Frequency:
    """Says when to run next.

    At least ``min_s`` lie between the end of a run and the beginning of the next; a failed run is
    tried again after ``retry_s``; and nothing ever waits longer than ``max_s``.
    """

    def __init__(
        self, *, min_s: float, retry_s: float, max_s: float = MAX_INTERVAL_S, now: float
    ) -> None:
        """Nothing has run yet: the first request may run at once.

        Raises:
            ValueError: the longest wait is shorter than the shortest.
        """
        if max_s < min_s:
            raise ValueError(f"the longest interval, {max_s:g} s, is shorter than {min_s:g} s")
        self._min_s = min_s
        self._retry_s = retry_s
        self._max_s = max_s
        self._requested = False
        self._earliest = now
        self._latest = now + max_s

    def __repr__(self) -> str:
        asked = "requested, " if self._requested else ""
        return f"<Frequency {asked}due at {self.due_at():g}>"

    def request(self) -> None:
        """Something changed: run as soon as may be."""
        self._requested = True

    def due_at(self) -> float:
        """When to run, as far as is known now."""
        return self._earliest if self._requested else max(self._earliest, self._latest)

    def began(self) -> None:
        """A run begins: what is requested from now on is for the next."""
        self._requested = False

    def ended(self, *, now: float, worked: bool) -> None:
        self._earliest = now + self._min_s
        self._latest = now + (self._max_s if worked else min(self._retry_s, self._max_s))


class Runner:
    """Runs ``work`` by a Frequency while ``run`` runs; ``work`` says whether it worked."""

    def __init__(
        self, work: Callable[[], Awaitable[bool]], *, min_s: float, retry_s: float
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._frequency = Frequency(min_s=min_s, retry_s=retry_s, now=self._loop.time())
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Runner {self._frequency!r}>"

    def request(self) -> None:
        """Run as soon as may be; many requests before that are one."""
        self._frequency.request()
        self._changed.set()

    async def run(self) -> None:
        while True:
            await self._wait_due()
            self._frequency.began()
            worked = await self._work()
            self._frequency.ended(now=self._loop.time(), worked=worked)

    async def _wait_due(self) -> None:
        while True:
            self._changed.clear()
            due = self._frequency.due_at()
            if due <= self._loop.time():
                return
            try:
                async with asyncio.timeout_at(due):
                    await self._changed.wait()
            except TimeoutError:
                return


T = TypeVar("T")
_log = logging.getLogger("isthmus.node_proxy")


class PendingUpdates:
    """What is still to be written, by family; whoever takes, takes from the tracker for all."""

    def __init__(self, tracker: ServiceTracker, metrics: NodeProxyMetrics) -> None:
        self._tracker = tracker
        self._metrics = metrics
        self._waiting: dict[IpFamily, Update] = {}
        self._views: dict[IpFamily, ServiceView] = {}

    def take(self, family: IpFamily) -> Update:
        """All that changed in a family since it was last taken, and was not given back."""
        if self._tracker.pending:
            updates = self._tracker.take()
            self._metrics.service_changes += max(
                (each.services for each in updates.values()), default=0
            )
            for each, update in updates.items():
                self._metrics.endpoint_changes += update.endpoint_slices
                self._views[each] = update.view
                self._waiting[each] = joined(self._waiting.get(each), update)
        nothing = ServiceView(family=family, ports={})
        return self._waiting.pop(family, Update(view=self._views.get(family, nothing)))

    def give_back(self, update: Update) -> None:
        family = update.view.family
        newer = self._waiting.get(family) or Update(view=self._views.get(family, update.view))
        self._waiting[family] = joined(update, newer)


def joined(older: Update | None, newer: Update) -> Update:
    """Two updates, one after the other, as one."""
    if older is None:
        return newer
    return replace(
        newer,
        changed=older.changed | newer.changed,
        udp=older.udp or newer.udp,
        services=older.services + newer.services,
        endpoint_slices=older.endpoint_slices + newer.endpoint_slices,
        triggers=older.triggers + newer.triggers,
    )


class FamilySync:
    """Keeps the kernel's rules of one family as they should be, while its tasks run."""

    def __init__(
        self,
        backend: KernelBackend,
        settings: NodeProxySettings,
        *,
        pending: PendingUpdates,
        rules: Callable[[IpFamily], RuleSettings],
        health: ProxyHealth,
        metrics: NodeProxyMetrics,
        synced: Callable[[ServiceView], None],
    ) -> None:
        """``synced`` is called with what is in force, after every sync that worked."""
        self.family = backend.family
        self.backend = backend
        self.syncs = 0
        self._mode = settings.mode
        self._period_s = settings.sync_period_s
        self._pending = pending
        self._rules = rules
        self._health = health
        self._metrics = metrics
        self._synced = synced
        self._loop = asyncio.get_running_loop()
        self._runner = Runner(
            self._sync, min_s=settings.min_sync_period_s, retry_s=settings.sync_period_s
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"sync-{self.family.value}")
        self._written: RuleSettings | None = None
        self._lost = False
        self._full_at = float("-inf")
        self.failures = 0
        #: What is in force.
        self.view = ServiceView(family=self.family, ports={})

    def __repr__(self) -> str:
        return f"<FamilySync {self.family.value}, {self.syncs} syncs>"

    def request(self) -> None:
        self._health.queued(self.family)
        self._metrics.queued(self.family.value)
        self._runner.request()

    def renew(self) -> None:
        """Have all rules written again, whatever is in the kernel."""
        self._lost = True
        self.request()

    async def run(self) -> None:
        await self._runner.run()

    async def watch_canary(self) -> None:
        """Look, once in a period, whether somebody took our rules away."""
        while True:
            await asyncio.sleep(self._period_s)
            if self._written is None or self._lost:
                continue
            try:
                intact = await self.blocking(self.backend.intact)
            except Exception as exc:
                log(_log, logging.WARNING, "rules cannot be looked at", error=exc,
                    family=self.family.value)  # fmt: skip
                continue
            if not intact:
                log(_log, logging.WARNING, "not all is as it was written; writing everything again",
                    family=self.family.value)  # fmt: skip
                self.renew()

    async def blocking(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Wait for what runs; rules stay where they are."""
        await asyncio.to_thread(self._thread.shutdown)

    async def _sync(self) -> bool:
        began = self._loop.time()  # kube-proxy counts bringing its maps up to date too
        update, rules = self._pending.take(self.family), self._rules(self.family)
        full = self._lost or self._written is None or self._is_full_due(began, update)
        if not full and not update.changed and rules == self._written:
            self._health.synced(self.family)
            return True
        self._lost = False
        try:
            report = await self.blocking(partial(self.backend.sync, update, rules, full=full))
        except Exception as exc:
            self._pending.give_back(update)
            self._failed(exc, self._loop.time() - began, full=full)
            return False
        self._worked(report, update, rules, began)
        await self._forget_flows(update)
        return True

    def _is_full_due(self, now: float, update: Update) -> bool:
        # As kube-proxy: in large clusters writing all of iptables' rules costs too much to be done
        # for no reason.
        large = self._mode == IPTABLES and update.view.endpoints > LARGE_CLUSTER_ENDPOINTS
        return not large and now - self._full_at >= MAX_INTERVAL_S

    def _worked(
        self, report: SyncReport, update: Update, rules: RuleSettings, began: float
    ) -> None:
        now = self._loop.time()
        self.syncs += 1
        self._written = rules
        if report.full:
            self._full_at = now
        if self.failures:
            log(_log, logging.INFO, "rules are written again", family=self.family.value,
                failures=self.failures)  # fmt: skip
        self.failures = 0
        self._health.synced(self.family)
        self._metrics.synced(
            self.family.value, now - began, full=report.full, rules=report.rules,
            written=report.written, no_local_endpoints=report.no_local_endpoints,
            triggers=update.triggers,
        )  # fmt: skip
        log(_log, logging.INFO if self.syncs == 1 else logging.DEBUG, "synced",
            family=self.family.value, full=report.full, ports=len(update.view.ports),
            endpoints=update.view.endpoints, changed=len(update.changed),
            seconds=round(now - began, 3))  # fmt: skip
        self.view = update.view
        self._synced(update.view)

    def _failed(self, exc: Exception, seconds: float, *, full: bool) -> None:
        self.failures += 1
        self._lost = True
        self._metrics.sync_failed(self.family.value, seconds, full=full)
        ours = isinstance(exc, IsthmusError)
        log(_log, logging.ERROR, "rules cannot be written; it is tried again",
            family=self.family.value, failures=self.failures, again_in_s=self._period_s,
            error=exc, exc_info=None if ours else exc)  # fmt: skip

    async def _forget_flows(self, update: Update) -> None:
        if not update.udp:
            return
        began = self._loop.time()
        try:
            deleted = await self.blocking(partial(forget_stale_flows, update.view))
        except Exception as exc:
            log(_log, logging.WARNING, "cannot clean up connections", error=exc,
                family=self.family.value)  # fmt: skip
            return
        self._metrics.flows_cleaned(self.family.value, self._loop.time() - began, deleted)
        if deleted:
            log(_log, logging.INFO, "forgot UDP flows to endpoints that are gone",
                family=self.family.value, flows=deleted)  # fmt: skip
