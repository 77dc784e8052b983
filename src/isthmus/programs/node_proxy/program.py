"""The node service proxy: Services of the cluster in, rules in the kernel of this node out.

Here are the tasks. Where objects come from is input.py, the ports are in
ports.py, one family's syncs in family.py, what holds on this node in
node.py, the rules in ``isthmus.services``. When it ends, the rules stay, as
kube-proxy's do: a restart is no outage.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time

from isthmus.errors import ConfigError
from isthmus.frame import lifetime
from isthmus.frame.health import Health
from isthmus.logs import configure, log
from isthmus.programs.node_proxy.backends import clean_others, start_backends
from isthmus.programs.node_proxy.config import ConfigChanged, follow_config
from isthmus.programs.node_proxy.family_sync import FamilySync, PendingUpdates
from isthmus.programs.node_proxy.input import ObjectInput, open_input
from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.custom_detectors import find_detector
from isthmus.programs.node_proxy.kernel.health import EVERY_ADDRESS, ProxyHealth, ServiceHealthPorts
from isthmus.programs.node_proxy.kernel.nfacct import counters_work, read_counters
from isthmus.programs.node_proxy.kernel.node_addresses import (
    AddressChanges,
    addresses_of_host,
    has_loopback,
    ranges_of,
)
from isthmus.programs.node_proxy.kernel.sysctls import Sysctls, set_oom_score
from isthmus.programs.node_proxy.kube_proxy import KubeProxyWatch
from isthmus.programs.node_proxy.metrics import NodeProxyMetrics
from isthmus.programs.node_proxy.node import ADDRESS_WAIT_S, HostFacts, OwnNode
from isthmus.programs.node_proxy.ports import RETRY_S, OwnPorts
from isthmus.programs.node_proxy.rules.iptables.base import COUNTERS
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.programs.node_proxy.rules.objects import NodeObject, ServiceBatch, SliceBatch
from isthmus.programs.node_proxy.rules.tracker import ServiceTracker
from isthmus.programs.node_proxy.settings import IPTABLES, NFTABLES, NodeProxySettings

#: Pods come and go in bursts, and with them addresses.
_ADDRESSES_S = 0.5
_log = logging.getLogger("isthmus.node_proxy")


class NodeProxy:
    """A running node proxy."""

    def __init__(self, settings: NodeProxySettings) -> None:
        """Prepare in the loop; nothing is opened.

        Raises:
            ConfigError: there is no such detector.
        """
        self.settings = settings
        self.loop = asyncio.get_running_loop()
        self.draining = False
        self.metrics = NodeProxyMetrics(settings.mode)
        self.proxy_health = ProxyHealth(timeout_s=2 * settings.sync_period_s)
        self.service_ports = ServiceHealthPorts(self.proxy_health)
        self.health = Health(self.metrics, leaving=lambda: self.draining)
        self.metrics.gauges.draining = lambda: int(self.draining)
        self.families: dict[IpFamily, FamilySync] = {}
        self._make = find_detector(settings.detector_mode)
        self._sysctls = Sysctls()
        self._ports = OwnPorts(settings, self.proxy_health, self.metrics)
        self._beside = KubeProxyWatch(self._ports.foreign)
        self._input: ObjectInput | None = None
        self._node: OwnNode | None = None
        self._tracker: ServiceTracker | None = None
        self._changes: AddressChanges | None = None
        self._moved = asyncio.Event()
        self._health_changed = asyncio.Event()
        self._all_synced = asyncio.Event()
        self._bridges = False

    @property
    def node(self) -> OwnNode:
        """Our node, once started."""
        assert self._node is not None
        return self._node

    @property
    def tracker(self) -> ServiceTracker:
        """What is known of the cluster, once started."""
        assert self._tracker is not None
        return self._tracker

    # Program.

    async def start(self) -> None:
        """Look at the host and open the ports; see Program."""
        settings = self.settings
        try:
            for note in settings.notes():
                log(_log, logging.WARNING, note)
            self._input = await open_input(settings)
            await self._beside.check(take_over=settings.take_over)
            facts = await asyncio.to_thread(self._look_around)
            backends = await asyncio.to_thread(start_backends, settings)
            self._open_node(self._input.node_name, facts, [backend.family for backend in backends])
            pending = PendingUpdates(self.tracker, self.metrics)
            for backend in backends:
                self.families[backend.family] = FamilySync(
                    backend, settings, pending=pending, rules=self.node.rules,
                    health=self.proxy_health, metrics=self.metrics, synced=self._synced,
                )  # fmt: skip
            await self._ports.open(wait=not self._beside.alone.is_set())
        except BaseException:
            await self.stop()
            raise
        self.health.start(self._ports.open_ones)
        log(
            _log, logging.INFO, "serving", node=self.node.name, mode=settings.mode,
            families=",".join(family.value for family in self.families),
            detect_local=settings.detector_mode, healthz_port=self._ports.number("healthz"),
            metrics_port=self._ports.number("metrics"),
        )  # fmt: skip

    def _look_around(self) -> HostFacts:
        """Set and see what the kernel has to be like; blocks.

        Raises:
            ConfigError: it cannot be asked.
        """
        settings = self.settings
        wrong = self._sysctls.set_conntrack(settings)
        score = set_oom_score(settings.oom_score_adj)
        for sentence in [*wrong, *([score] if score else [])]:
            log(_log, logging.WARNING, sentence)
        accounting = settings.mode == IPTABLES and counters_work(COUNTERS)
        if accounting:
            self.metrics.packets = _packets
        try:
            addresses = addresses_of_host()
        except OSError as error:
            raise ConfigError(f"the kernel cannot be asked by netlink: {error}") from error
        return HostFacts(
            addresses=addresses,
            drop_invalid=self._sysctls.drops_invalid(),
            accounting=accounting,
        )

    def _open_node(self, name: str, facts: HostFacts, families: list[IpFamily]) -> None:
        self._tracker = ServiceTracker(node_name=name, families=families, since=time.time())
        self.metrics.services_pending = lambda: self.tracker.pending_services
        self.metrics.endpoints_pending = lambda: self.tracker.pending_slices
        # Without the Node yet: another package's may refuse the flags alone.
        detector = self._make(self.settings.detector_settings())
        self._bridges = detector.bridge_ports is not None and self.settings.mode != NFTABLES
        # Files are there, and what they do not say nobody will.
        wait_s = 0.0 if self.settings.manifests else ADDRESS_WAIT_S
        self._node = OwnNode(
            self.settings, name, self._make, facts, self._request, address_wait_s=wait_s
        )
        if self.node.rules(IpFamily.IPV4).localhost_node_ports:
            self._sysctls.ensure_localhost_node_ports()

    async def watch(self) -> None:
        """Follow the cluster, and bring it into the kernel; see Program."""
        async with self.health.tasks() as tasks:
            assert self._input is not None
            tasks.create_task(self._input.run(self), name="input")
            tasks.create_task(self._follow_addresses(), name="addresses")
            tasks.create_task(self._serve_services(), name="service-health")
            tasks.create_task(self._look_at_bridges(), name="bridges")
            tasks.create_task(self._sync(), name="sync")
            tasks.create_task(self._ports.retry(), name="ports")
            tasks.create_task(self._live_beside(), name="kube-proxy")
            if self.settings.config:
                tasks.create_task(follow_config(self.settings), name="config")

    def status(self) -> str:
        """Whether the rules are in the kernel; see Supervisable."""
        return "rules in place" if self._all_synced.is_set() else "waiting for the first rules"

    async def drain(self, timeout_s: float) -> None:
        """Nothing is waited for: what is in the kernel stays there; see Program."""
        self.draining = True

    async def stop(self) -> None:
        """Close everything but the rules; see Program."""
        self.health.stop()
        if self._changes is not None:
            self._changes.close()
            self._changes = None
        for family in self.families.values():
            await family.close()
        await self.service_ports.close()
        if self._input is not None:
            await self._input.close()
        await self._ports.close()

    # Listener.

    def heard_services(self, batch: ServiceBatch) -> None:
        """Services changed; see Listener."""
        self.tracker.hear_services(batch)
        self._request()

    def heard_slices(self, batch: SliceBatch) -> None:
        """Endpoints changed; see Listener."""
        self.tracker.hear_slices(batch)
        self._request()

    def heard_node(self, node: NodeObject | None) -> None:
        """Our Node changed; see Listener."""
        self.proxy_health.node(node)
        self.node.heard(node)
        if node is not None:
            self.tracker.set_node(node.labels)
        if self.tracker.pending:
            self._request()

    def heard_service_cidrs(self, ranges: tuple[str, ...]) -> None:
        """The ranges of cluster IPs changed; see Listener."""
        if self.settings.mode == NFTABLES:
            self.node.heard_service_cidrs(ranges)

    def _request(self) -> None:
        if self.tracker.synced:
            for family in self.families.values():
                family.request()

    # What is done.

    async def _sync(self) -> None:
        """Sync, once the node is known; what goes on for ever is within."""
        await self.node.wait_ready(list(self.families))
        if self.node.primary not in self.families:
            log(
                _log, logging.WARNING, "the node's own family cannot be programmed here",
                family=self.node.primary.value,
            )  # fmt: skip
        async with asyncio.TaskGroup() as syncs:
            syncs.create_task(self._clean_others(), name="clean-others")
            for name, family in self.families.items():
                syncs.create_task(family.run(), name=f"sync-{name.value}")
                syncs.create_task(family.watch_canary(), name=f"canary-{name.value}")

    def _synced(self, family: IpFamily) -> None:
        self._health_changed.set()
        if all(each.syncs for each in self.families.values()):
            self._all_synced.set()

    async def _live_beside(self) -> None:
        """Look after a kube-proxy that is here, or comes."""

        def renew() -> None:
            for family in self.families.values():
                if family.syncs:
                    family.renew()

        period_s = self.settings.sync_period_s
        await self._beside.run(in_force=self._all_synced, renew=renew, period_s=period_s)

    async def _clean_others(self) -> None:
        """Remove what another mode left: not before ours is in force, so that nothing is away.

        And not from under a kube-proxy, which would write it again.
        """
        await self._all_synced.wait()
        await self._beside.alone.wait()
        families = list(self.families)
        try:
            stayed = await asyncio.to_thread(clean_others, self.settings, families)
        except Exception as exc:
            stayed = [str(exc)]
        for sentence in stayed:
            log(_log, logging.WARNING, "rules of another mode stay", reason=sentence)

    async def _serve_services(self) -> None:
        """Keep the health check ports of Services as they should be; a busy one is tried again."""
        await self._health_changed.wait()
        while True:
            self._health_changed.clear()
            addresses: list[str] = []
            for family, everywhere in zip(IpFamily, EVERY_ADDRESS, strict=True):
                chosen = self.node.rules(family).node_port_addresses
                addresses += (everywhere,) if chosen is None else chosen
            tracker = self.tracker
            await self.service_ports.sync(
                tracker.health_ports(), tracker.local_ready(), addresses=addresses
            )
            # As long as a kube-proxy has them, they become free at any moment.
            wait_s = self.settings.sync_period_s if self._beside.alone.is_set() else RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._health_changed.wait()

    async def _follow_addresses(self) -> None:
        """Read this host's addresses again whenever the kernel says that they changed."""
        if self.settings.node_port_ranges:  # else every address will do
            try:
                self._changes = AddressChanges(self._moved.set)
            except OSError as error:
                log(_log, logging.WARNING, "changes of addresses are not heard of", error=error)
        while True:
            await self._moved.wait()
            self._moved.clear()
            try:
                self.node.heard_addresses(await asyncio.to_thread(addresses_of_host))
            except OSError as error:
                log(_log, logging.WARNING, "addresses cannot be read", error=error)
            await asyncio.sleep(_ADDRESSES_S)

    async def _look_at_bridges(self) -> None:
        """Say so when iptables does not hear of the bridge ports that it is to match."""
        said = ""
        while True:
            families = list(self.families) if self._bridges else []
            trouble = self._sysctls.bridge_trouble(families)
            if trouble != said:
                said = trouble
                log(
                    _log, logging.WARNING if trouble else logging.INFO,
                    trouble or "iptables hears of bridge ports now",
                )  # fmt: skip
            await asyncio.sleep(self.settings.sync_period_s)


def _packets() -> dict[str, float]:
    """What rules have counted; nothing where the kernel does not say."""
    try:
        return {name: float(packets) for name, packets in read_counters(COUNTERS).items()}
    except ApplyError:
        return {}


def initialize(settings: NodeProxySettings) -> int:
    """Set what needs full privileges, for a node proxy that runs with less; the exit code."""
    configure(settings.v, "json" if settings.log_format == "json" else "text", sys.stderr)
    sysctls = Sysctls()
    for sentence in sysctls.set_conntrack(settings):
        log(_log, logging.WARNING, sentence)
    ranges = ranges_of(settings.node_port_ranges, IpFamily.IPV4, ())
    if settings.mode == IPTABLES and settings.iptables_localhost_nodeports and has_loopback(ranges):
        sysctls.ensure_localhost_node_ports()
    return 0


def main(settings: NodeProxySettings) -> int:
    """Run a node proxy until it is told to stop; the exit code."""
    os.umask(0o077)
    code = 0
    try:
        code = lifetime.main(lambda: NodeProxy(settings), settings, drain_s=0.0)
    except* ConfigChanged:
        code = 1  # whoever started us starts us again, as they do kube-proxy
    return code
