"""Syncs one IP family: applies changes to the kernel, and checks that the rules stay.

A backend blocks, so each family has one thread, which makes all calls one after the other. Changes
wait in ``PendingUpdates``, which both families share. ``Runner`` limits the rate of syncs and
retries, like kube-proxy's runner; ``Frequency`` decides when, with time as an argument.
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

#: Rules are checked at least this often, even without changes.
MAX_INTERVAL_S = 3600.0


class Frequency:
    """Computes the time of the next run.

    There are at least ``min_s`` between the end of a run and the start of the next; a failed run is
    retried after ``retry_s``; no wait is longer than ``max_s``.
    """

    def __init__(
        self, *, min_s: float, retry_s: float, max_s: float = MAX_INTERVAL_S, now: float
    ) -> None:
        """Without any run so far, the first request is due at once.

        Raises:
            ValueError: ``max_s`` is shorter than ``min_s``.
        """
        if max_s < min_s:
            raise ValueError(f"maximum interval {max_s:g} s is shorter than minimum {min_s:g} s")
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
        """Something changed: run as soon as possible."""
        self._requested = True

    def due_at(self) -> float:
        """The time of the next run, as of now."""
        return self._earliest if self._requested else max(self._earliest, self._latest)

    def began(self) -> None:
        """A run starts: later requests are for the next one."""
        self._requested = False

    def ended(self, *, now: float, worked: bool) -> None:
        self._earliest = now + self._min_s
        self._latest = now + (self._max_s if worked else min(self._retry_s, self._max_s))


class Runner:
    """Runs ``work``, which returns whether it succeeded, as a ``Frequency`` says."""

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
        """Run as soon as possible; requests before the run are merged."""
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
    """Updates not yet written, by family; taking for one family takes from the tracker for all."""

    def __init__(self, tracker: ServiceTracker, metrics: NodeProxyMetrics) -> None:
        self._tracker = tracker
        self._metrics = metrics
        self._waiting: dict[IpFamily, Update] = {}
        self._views: dict[IpFamily, ServiceView] = {}

    def take(self, family: IpFamily) -> Update:
        """All changes of a family since the last take, including updates given back."""
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
    """Merge two successive updates."""
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
    """Keeps the kernel's rules of one family up to date, while its tasks run."""

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
        """``synced`` is called with the view in force, after every successful sync."""
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
        #: The view in force.
        self.view = ServiceView(family=self.family, ports={})

    def __repr__(self) -> str:
        return f"<FamilySync {self.family.value}, {self.syncs} syncs>"

    def request(self) -> None:
        self._health.queued(self.family)
        self._metrics.queued(self.family.value)
        self._runner.request()

    def renew(self) -> None:
        """Rewrite all rules, whatever the kernel has."""
        self._lost = True
        self.request()

    async def run(self) -> None:
        await self._runner.run()

    async def watch_canary(self) -> None:
        """Check periodically that no other program has removed the rules."""
        while True:
            await asyncio.sleep(self._period_s)
            if self._written is None or self._lost:
                continue
            try:
                intact = await self.blocking(self.backend.intact)
            except Exception as exc:
                log(_log, logging.WARNING, "cannot check the rules", error=exc,
                    family=self.family.value)  # fmt: skip
                continue
            if not intact:
                log(_log, logging.WARNING, "rules changed by another program: rewriting all",
                    family=self.family.value)  # fmt: skip
                self.renew()

    async def blocking(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(self._thread, work)

    async def close(self) -> None:
        """Wait for a running sync; the rules stay in the kernel."""
        await asyncio.to_thread(self._thread.shutdown)

    async def _sync(self) -> bool:
        began = self._loop.time()  # kube-proxy's metric includes updating its maps
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
        # As in kube-proxy: in large clusters rewriting all iptables rules without a need costs too
        # much.
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
            log(_log, logging.INFO, "sync recovered", family=self.family.value,
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
        log(_log, logging.ERROR, "sync failed",
            family=self.family.value, failures=self.failures, retry_in_s=self._period_s,
            error=exc, exc_info=None if ours else exc)  # fmt: skip

    async def _forget_flows(self, update: Update) -> None:
        if not update.udp:
            return
        began = self._loop.time()
        try:
            deleted = await self.blocking(partial(forget_stale_flows, update.view))
        except Exception as exc:
            log(_log, logging.WARNING, "cannot delete stale conntrack entries", error=exc,
                family=self.family.value)  # fmt: skip
            return
        self._metrics.flows_cleaned(self.family.value, self._loop.time() - began, deleted)
        if deleted:
            log(_log, logging.INFO, "deleted stale UDP conntrack entries",
                family=self.family.value, flows=deleted)  # fmt: skip
