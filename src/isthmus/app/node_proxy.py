"""The node service proxy: Services of the cluster in, rules in the kernel of this node out.

Here are the ports, the API and the tasks. One family's syncs are app/node_proxy_family.py, what
holds on this node is app/node_proxy_node.py, the rules are ``isthmus.services``. When it ends, the
rules stay, as kube-proxy's do: a restart is no outage.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from functools import partial

from isthmus.app import lifetime, ports
from isthmus.app.debug_routes import debug_routes
from isthmus.app.health import Health
from isthmus.app.node_proxy_backends import clean_others, start_backends
from isthmus.app.node_proxy_family import FamilySync, Pending
from isthmus.app.node_proxy_node import HostFacts, OwnNode
from isthmus.app.node_proxy_pages import health_routes, metrics_routes
from isthmus.config.node_proxy import IPTABLES, NFTABLES, Bound, NodeProxySettings
from isthmus.config.node_proxy_file import document
from isthmus.errors import ConfigError
from isthmus.kube.api import Kube, open_kube
from isthmus.kube.node_proxy_watch import ClusterWatch
from isthmus.nodeproxy.backend import ApplyError
from isthmus.nodeproxy.custom_detectors import find_detector
from isthmus.nodeproxy.health import ProxyHealth
from isthmus.nodeproxy.nfacct import counters_work, read_counters
from isthmus.nodeproxy.node_addresses import (
    AddressChanges,
    addresses_of_host,
    has_loopback,
    ranges_of,
)
from isthmus.nodeproxy.service_health import EVERY_ADDRESS, ServiceHealthPorts
from isthmus.nodeproxy.sysctls import Sysctls, set_oom_score
from isthmus.observe.logs import configure, log
from isthmus.observe.node_proxy_metrics import NodeProxyMetrics
from isthmus.services.iptables.base import COUNTERS
from isthmus.services.model import Family
from isthmus.services.objects import NodeObject, ServiceBatch, SliceBatch
from isthmus.services.tracker import Tracker

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
        self.families: dict[Family, FamilySync] = {}
        self._make = find_detector(settings.detector_mode)
        self._name = (settings.hostname_override or socket.gethostname()).strip().lower()
        self._sysctls = Sysctls()
        self._ports: dict[str, ports.Port] = {}
        self._node: OwnNode | None = None
        self._tracker: Tracker | None = None
        self._kube: Kube | None = None
        self._watch: ClusterWatch | None = None
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
    def tracker(self) -> Tracker:
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
            kube = self._kube = open_kube(
                settings.kubeconfig,
                qps=settings.kube_api_qps,
                burst=settings.kube_api_burst,
                server=settings.master,
            )
            facts = await asyncio.to_thread(self._look_around)
            backends = await asyncio.to_thread(start_backends, settings)
            self._open_node(facts, [backend.family for backend in backends])
            pending = Pending(self.tracker, self.metrics)
            for backend in backends:
                self.families[backend.family] = FamilySync(
                    backend, mode=settings.mode, min_s=settings.min_sync_period_s,
                    period_s=settings.sync_period_s, pending=pending, rules=self.node.rules,
                    health=self.proxy_health, metrics=self.metrics, synced=self._synced,
                )  # fmt: skip
            await self._open_ports()
            self._open_watch(kube)
        except BaseException:
            await self.stop()
            raise
        self.health.start(self._ports)
        log(
            _log, logging.INFO, "serving", node=self._name, mode=settings.mode,
            families=",".join(family.value for family in self.families),
            detect_local=settings.detector_mode, healthz_port=self.port("healthz"),
            metrics_port=self.port("metrics"),
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

    def _open_node(self, facts: HostFacts, families: list[Family]) -> None:
        self._tracker = Tracker(node_name=self._name, families=families, since=time.time())
        self.metrics.services_pending = lambda: self.tracker.pending_services
        self.metrics.endpoints_pending = lambda: self.tracker.pending_slices
        # Without the Node yet: another package's may refuse the flags alone.
        detector = self._make(self.settings.detector_settings())
        self._bridges = detector.bridge_ports is not None and self.settings.mode != NFTABLES
        self._node = OwnNode(self.settings, self._name, self._make, facts, self._request)
        if self.node.rules(Family.IPV4).localhost_node_ports:
            self._sysctls.ensure_localhost_node_ports()

    async def _open_ports(self) -> None:
        settings = self.settings
        healthz = health_routes(self.proxy_health, self.metrics)
        metrics = metrics_routes(
            self.metrics, mode=settings.mode, config=partial(document, settings)
        )
        for name, bound, routes in (
            ("healthz", settings.healthz, healthz),
            ("metrics", settings.metrics, {**metrics, **debug_routes(settings.profiling)}),
        ):
            if bound is not None:
                self._ports[name] = await self._serve(name, bound, routes)

    async def _serve(self, name: str, bound: Bound, routes: ports.Routes) -> ports.Port:
        flag = f"--{name}-bind-address"
        # kube-proxy takes 0.0.0.0 for both families.
        host = "" if bound.host in ("0.0.0.0", "::") else bound.host
        return await ports.serve(routes, host=host, port=bound.port, host_flag=flag, port_flag=flag)

    def port(self, name: str) -> int:
        """The number of the port called "healthz" or "metrics"; 0 where there is none."""
        return self._ports[name].number if name in self._ports else 0

    def _open_watch(self, kube: Kube) -> None:
        nft = self.settings.mode == NFTABLES
        self._watch = ClusterWatch(
            kube.cluster(self._name),
            on_services=self._heard_services,
            on_slices=self._heard_slices,
            on_node=self._heard_node,
            on_service_cidrs=self.node.heard_service_cidrs if nft else None,
        )

    async def watch(self) -> None:
        """Follow the cluster, and bring it into the kernel; see Program."""
        async with self.health.tasks() as tasks:
            assert self._watch is not None
            tasks.create_task(self._watch.run(), name="cluster")
            tasks.create_task(self._follow_addresses(), name="addresses")
            tasks.create_task(self._serve_services(), name="service-health")
            tasks.create_task(self._look_at_bridges(), name="bridges")
            tasks.create_task(self._sync(), name="sync")

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
        if self._kube is not None:
            await self._kube.close()
        for port in self._ports.values():
            await port.close()
        self._ports.clear()

    # What is heard.

    def _heard_services(self, batch: ServiceBatch) -> None:
        self.tracker.hear_services(batch)
        self._request()

    def _heard_slices(self, batch: SliceBatch) -> None:
        self.tracker.hear_slices(batch)
        self._request()

    def _heard_node(self, node: NodeObject | None) -> None:
        self.proxy_health.node(node)
        self.node.heard(node)
        if node is not None:
            self.tracker.set_node(node.labels)
        if self.tracker.pending:
            self._request()

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

    def _synced(self, family: Family) -> None:
        self._health_changed.set()
        if all(each.syncs for each in self.families.values()):
            self._all_synced.set()

    async def _clean_others(self) -> None:
        """Remove what another mode left: not before ours is in force, so that nothing is away."""
        await self._all_synced.wait()
        families = list(self.families)
        try:
            stayed = await asyncio.to_thread(clean_others, self.settings, families)
        except Exception as exc:
            stayed = [str(exc)]
        for sentence in stayed:
            log(_log, logging.WARNING, "rules of another mode stay", reason=sentence)

    async def _serve_services(self) -> None:
        """Keep the health check ports of Services as they should be."""
        while True:
            await self._health_changed.wait()
            self._health_changed.clear()
            addresses: list[str] = []
            for family, everywhere in zip(Family, EVERY_ADDRESS, strict=True):
                chosen = self.node.rules(family).node_port_addresses
                addresses += (everywhere,) if chosen is None else chosen
            tracker = self.tracker
            await self.service_ports.sync(
                tracker.health_ports(), tracker.local_ready(), addresses=addresses
            )

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
    ranges = ranges_of(settings.node_port_ranges, Family.IPV4, ())
    if settings.mode == IPTABLES and settings.iptables_localhost_nodeports and has_loopback(ranges):
        sysctls.ensure_localhost_node_ports()
    return 0


def main(settings: NodeProxySettings) -> int:
    """Run a node proxy until it is told to stop; the exit code."""
    os.umask(0o077)
    return lifetime.main(lambda: NodeProxy(settings), settings, drain_s=0.0)
