"""The node service proxy: Services of the cluster become rules in the kernel of this node.

This module has its parts and their tasks. input.py delivers objects, ports.py has the ports,
family_sync.py syncs one IP family, node.py knows this node, and
``isthmus.programs.node_proxy.rules`` renders rules. The rules stay when the program ends, as
kube-proxy's do: a restart is no outage.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from typing_extensions import override

from isthmus import __version__
from isthmus.errors import ConfigError
from isthmus.frame import running
from isthmus.frame.admin.routes import DEFAULT_TUNNELS
from isthmus.frame.part import Ground, LongTask, Part
from isthmus.frame.resources import allow_connections
from isthmus.frame.tunnels import TunnelsPart
from isthmus.logs import configure, log
from isthmus.programs.node_proxy import PROGRAM
from isthmus.programs.node_proxy.backends import clean_others, start_backends
from isthmus.programs.node_proxy.config import ConfigChanged, follow_config
from isthmus.programs.node_proxy.family_sync import FamilySync, PendingUpdates
from isthmus.programs.node_proxy.input import ObjectInput, open_input
from isthmus.programs.node_proxy.kernel.backend import ApplyError
from isthmus.programs.node_proxy.kernel.health import (
    EVERY_ADDRESS,
    ProxyHealth,
    ServiceHealthPorts,
)
from isthmus.programs.node_proxy.kernel.host import (
    AddressChanges,
    Sysctls,
    addresses_of_host,
    has_loopback,
    ranges_of,
    set_oom_score,
)
from isthmus.programs.node_proxy.kernel.netlink import counters_work, read_counters
from isthmus.programs.node_proxy.kube_proxy import KubeProxyWatch
from isthmus.programs.node_proxy.metrics import NodeProxyMetrics
from isthmus.programs.node_proxy.node import ADDRESS_WAIT_S, HostFacts, OwnNode, find_detector
from isthmus.programs.node_proxy.ports import RETRY_S, OwnPorts
from isthmus.programs.node_proxy.rules.iptables.base import COUNTERS
from isthmus.programs.node_proxy.rules.model import (
    IpFamily,
    NodeObject,
    ServiceBatch,
    ServiceView,
    SliceBatch,
)
from isthmus.programs.node_proxy.rules.tracker import ServiceTracker
from isthmus.programs.node_proxy.settings import IPTABLES, NFTABLES, NodeProxySettings
from isthmus.programs.node_proxy.view import NodeProxyView, ProxyFamilyView

#: The size of the default range of node ports in Kubernetes, 30000 to 32767.
_NODE_PORTS = 2768
#: Addresses change in bursts, with pods: wait this long before reading them.
_ADDRESSES_S = 0.5
_log = logging.getLogger("isthmus.node_proxy")


def parts(ground: Ground[NodeProxySettings, NodeProxyMetrics]) -> tuple[Part, ...]:
    """The parts of a node proxy, foundations first.

    Raises:
        ConfigError: the detector does not exist.
    """
    settings, metrics = ground.settings, ground.metrics
    health = ProxyHealth(timeout_s=2 * settings.sync_period_s)
    ports = OwnPorts(settings, health, metrics)
    rules = NodeRules(settings, metrics, health, ports)
    every = (
        ports, rules, HostWatch(rules), ServiceHealth(rules), ConfigWatch(settings),
        *_localhost(ground, rules),
    )  # fmt: skip
    ports.waiting_for = rules.waiting_for
    ports.look = partial(_look, ground, rules, every)
    return every


def _look(
    ground: Ground[NodeProxySettings, NodeProxyMetrics], rules: NodeRules, every: tuple[Part, ...]
) -> NodeProxyView | None:
    """A snapshot of all parts; None before the node is known."""
    if not rules.families:
        return None
    fields: dict[str, Any] = {}
    for part in every:
        fields |= part.snapshot(DEFAULT_TUNNELS)
    return NodeProxyView(
        version=__version__,
        taken_at=datetime.now(UTC),
        uptime_s=ground.now() - ground.started_at,
        draining=ground.draining,
        **fields,
    )


def _localhost(
    ground: Ground[NodeProxySettings, NodeProxyMetrics], rules: NodeRules
) -> tuple[Part, ...]:
    """The parts of node ports on localhost, if enabled."""
    settings = ground.settings
    if not settings.nftables_localhost_nodeports or settings.mode != NFTABLES:
        return ()
    from isthmus.programs.node_proxy.localhost import LocalhostConnections, LocalhostListeners

    # A connection takes two descriptors; a port takes one listener in each of two families.
    allow_connections(settings.max_connections + _NODE_PORTS)
    tunnels = TunnelsPart(ground, noun="")
    connections = LocalhostConnections(ground, tunnels.table)
    listeners = LocalhostListeners(ground, connections)
    rules.heard_view = listeners.heard_view
    return tunnels, connections, listeners


def _ignore_view(view: ServiceView) -> None:
    """The receiver of views without node ports on localhost."""


class NodeRules(Part):
    """Follows the cluster and syncs the kernel; it is the ``ObjectListener`` of its input."""

    def __init__(
        self,
        settings: NodeProxySettings,
        metrics: NodeProxyMetrics,
        health: ProxyHealth,
        ports: OwnPorts,
    ) -> None:
        self.settings = settings
        self.health = health
        self.sysctls = Sysctls()
        self.kube_proxy = KubeProxyWatch(ports.foreign)
        self.families: dict[IpFamily, FamilySync] = {}
        #: Set after every successful sync; its consumer clears it.
        self.synced = asyncio.Event()
        #: Called with the view in force, by family, after every successful sync.
        self.heard_view: Callable[[ServiceView], None] = _ignore_view
        #: Whether the detector matches bridge ports, which iptables sees only with a sysctl.
        self.matches_bridge_ports = False
        self._metrics = metrics
        self._ports = ports
        self._make = find_detector(settings.detector_mode)
        self._input: ObjectInput | None = None
        self._node: OwnNode | None = None
        self._tracker: ServiceTracker | None = None
        self._all_synced = asyncio.Event()

    @property
    def node(self) -> OwnNode:
        """This node, once opened."""
        assert self._node is not None
        return self._node

    @property
    def tracker(self) -> ServiceTracker:
        """The known state of the cluster, once opened."""
        assert self._tracker is not None
        return self._tracker

    @override
    async def prepare(self) -> None:
        for note in self.settings.notes():
            log(_log, logging.WARNING, note)
        self._input = await open_input(self.settings)
        await self.kube_proxy.check(take_over=self.settings.take_over)
        self._ports.wait_for_busy = not self.kube_proxy.alone.is_set()

    @override
    async def open(self) -> None:
        settings = self.settings
        facts = await asyncio.to_thread(self._look_around)
        backends = await asyncio.to_thread(start_backends, settings)
        assert self._input is not None
        self._open_node(self._input.node_name, facts, [backend.family for backend in backends])
        pending = PendingUpdates(self.tracker, self._metrics)
        for backend in backends:
            self.families[backend.family] = FamilySync(
                backend, settings, pending=pending, rules=self.node.rules,
                health=self.health, metrics=self._metrics, synced=self._synced,
            )  # fmt: skip

    def _look_around(self) -> HostFacts:
        """Set sysctls and read the kernel's capabilities; blocks.

        Raises:
            ConfigError: netlink is not available.
        """
        settings = self.settings
        score = set_oom_score(settings.oom_score_adj)
        for message in [*self.sysctls.set_conntrack(settings), *([score] if score else [])]:
            log(_log, logging.WARNING, message)
        accounting = settings.mode == IPTABLES and counters_work(COUNTERS)
        if accounting:
            self._metrics.packets = _packets
        try:
            addresses = addresses_of_host()
        except OSError as error:
            raise ConfigError(f"netlink is not available: {error}") from error
        return HostFacts(
            addresses=addresses,
            drop_invalid=self.sysctls.drops_invalid(),
            accounting=accounting,
        )

    def _open_node(self, name: str, facts: HostFacts, families: list[IpFamily]) -> None:
        self._tracker = ServiceTracker(node_name=name, families=families, since=time.time())
        self._metrics.services_pending = lambda: self.tracker.pending_services
        self._metrics.endpoints_pending = lambda: self.tracker.pending_slices
        # Before the Node is known: another package's detector may reject the flags alone.
        detector = self._make(self.settings.detector_settings())
        nftables = self.settings.mode == NFTABLES
        self.matches_bridge_ports = detector.bridge_ports is not None and not nftables
        # Files are read already: nothing that is missing now will come later.
        wait_s = 0.0 if self.settings.manifests else ADDRESS_WAIT_S
        self._node = OwnNode(
            self.settings, name, self._make, facts, self._request, address_wait_s=wait_s
        )
        if self.node.rules(IpFamily.IPV4).localhost_node_ports:
            self.sysctls.ensure_localhost_node_ports()

    @override
    def tasks(self) -> Iterable[LongTask]:
        assert self._input is not None
        yield "input", self._input.run(self)
        yield "sync", self._sync()
        yield (
            "kube-proxy",
            self.kube_proxy.run(
                in_force=self._all_synced, renew=self._renew, period_s=self.settings.sync_period_s
            ),
        )

    @override
    async def wait_closed(self) -> None:
        # The rules stay in the kernel.
        for family in self.families.values():
            await family.close()
        if self._input is not None:
            await self._input.close()

    @override
    def status(self) -> str:
        waiting_for = self.waiting_for()
        return f"waiting for {waiting_for}" if waiting_for else "rules in place"

    def waiting_for(self) -> str:
        """What the first rules wait for; empty once they are in force."""
        if self._all_synced.is_set():
            return ""
        if self._tracker is None or not self._tracker.synced:
            return "Services and EndpointSlices"
        return self.node.waiting_for or "the first sync"

    @override
    def snapshot(self, limit: int) -> dict[str, Any]:
        waiting_for = self.waiting_for()
        return {
            "node": self.node.name,
            "mode": self.settings.mode,
            "ready": not waiting_for,
            "waiting_for": waiting_for,
            "families": tuple(
                ProxyFamilyView(
                    family=each.family.value,
                    syncs=each.syncs,
                    ports=len(each.view.ports),
                    endpoints=each.view.endpoints,
                    failures=each.failures,
                )
                for each in self.families.values()
            ),
        }

    @override
    def serving(self) -> Mapping[str, Any]:
        return {
            "node": self.node.name,
            "mode": self.settings.mode,
            "families": ",".join(family.value for family in self.families),
            "detect_local": self.settings.detector_mode,
        }

    # ObjectListener.

    def heard_services(self, batch: ServiceBatch) -> None:
        self.tracker.hear_services(batch)
        self._request()

    def heard_slices(self, batch: SliceBatch) -> None:
        self.tracker.hear_slices(batch)
        self._request()

    def heard_node(self, node: NodeObject | None) -> None:
        self.health.node(node)
        self.node.heard(node)
        if node is not None:
            self.tracker.set_node(node.labels)
        if self.tracker.pending:
            self._request()

    def heard_service_cidrs(self, ranges: tuple[str, ...]) -> None:
        if self.settings.mode == NFTABLES:
            self.node.heard_service_cidrs(ranges)

    # Syncs.

    def _request(self) -> None:
        if self.tracker.synced:
            for family in self.families.values():
                family.request()

    def _renew(self) -> None:
        for family in self.families.values():
            if family.syncs:
                family.renew()

    async def _sync(self) -> None:
        """Run all syncs, once the node is known."""
        await self.node.wait_ready(list(self.families))
        if self.node.primary not in self.families:
            log(
                _log, logging.WARNING, "cannot program the IP family of the node's address",
                family=self.node.primary.value,
            )  # fmt: skip
        async with asyncio.TaskGroup() as syncs:
            syncs.create_task(self._clean_others(), name="clean-others")
            for name, family in self.families.items():
                syncs.create_task(family.run(), name=f"sync-{name.value}")
                syncs.create_task(family.watch_canary(), name=f"canary-{name.value}")

    def _synced(self, view: ServiceView) -> None:
        self.synced.set()
        self.heard_view(view)
        if all(each.syncs for each in self.families.values()):
            self._all_synced.set()

    async def _clean_others(self) -> None:
        """Remove rules of other modes once the present mode's are in force.

        It waits for a kube-proxy to end, which would write its rules again.
        """
        await self._all_synced.wait()
        await self.kube_proxy.alone.wait()
        families = list(self.families)
        try:
            stayed = await asyncio.to_thread(clean_others, self.settings, families)
        except Exception as exc:
            stayed = [str(exc)]
        for message in stayed:
            log(
                _log,
                logging.WARNING,
                "rules of another proxy mode were left in place",
                reason=message,
            )


class HostWatch(Part):
    """Watches this host while rules depend on it: its addresses, and a sysctl about bridges."""

    def __init__(self, rules: NodeRules) -> None:
        self._rules = rules
        self._moved = asyncio.Event()
        self._changes: AddressChanges | None = None

    @override
    def tasks(self) -> Iterable[LongTask]:
        yield "addresses", self._follow_addresses()
        yield "bridges", self._look_at_bridges()

    @override
    def close(self) -> None:
        if self._changes is not None:
            self._changes.close()
            self._changes = None

    async def _follow_addresses(self) -> None:
        """Read this host's addresses whenever the kernel reports a change."""
        if self._rules.settings.node_port_ranges:  # otherwise all addresses count
            try:
                self._changes = AddressChanges(self._moved.set)
            except OSError as error:
                log(_log, logging.WARNING, "cannot watch for address changes", error=error)
        while True:
            await self._moved.wait()
            self._moved.clear()
            try:
                self._rules.node.heard_addresses(await asyncio.to_thread(addresses_of_host))
            except OSError as error:
                log(_log, logging.WARNING, "cannot read addresses of this host", error=error)
            await asyncio.sleep(_ADDRESSES_S)

    async def _look_at_bridges(self) -> None:
        """Warn while iptables does not see the bridge ports that rules match."""
        said = ""
        while True:
            families = list(self._rules.families) if self._rules.matches_bridge_ports else []
            trouble = self._rules.sysctls.bridge_trouble(families)
            if trouble != said:
                said = trouble
                log(
                    _log, logging.WARNING if trouble else logging.INFO,
                    trouble or "iptables sees bridge ports now",
                )  # fmt: skip
            await asyncio.sleep(self._rules.settings.sync_period_s)


class ServiceHealth(Part):
    """Keeps the health check ports of Services open; retries ports in use."""

    def __init__(self, rules: NodeRules) -> None:
        self._rules = rules
        self._ports = ServiceHealthPorts(rules.health)

    @override
    def tasks(self) -> Iterable[LongTask]:
        yield "service-health", self._run()

    @override
    async def wait_closed(self) -> None:
        await self._ports.close()

    async def _run(self) -> None:
        rules = self._rules
        await rules.synced.wait()
        while True:
            rules.synced.clear()
            addresses: list[str] = []
            for family, everywhere in zip(IpFamily, EVERY_ADDRESS, strict=True):
                chosen = rules.node.rules(family).node_port_addresses
                addresses += (everywhere,) if chosen is None else chosen
            await self._ports.sync(
                rules.tracker.health_ports(), rules.tracker.local_ready(), addresses=addresses
            )
            # While a kube-proxy runs, it has these ports and may end at any moment.
            alone = rules.kube_proxy.alone.is_set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rules.settings.sync_period_s if alone else RETRY_S):
                    await rules.synced.wait()


class ConfigWatch(Part):
    """Ends the program when the file of --config changes."""

    def __init__(self, settings: NodeProxySettings) -> None:
        self._settings = settings

    @override
    def tasks(self) -> Iterable[LongTask]:
        if self._settings.config:
            yield "config", follow_config(self._settings)


def _packets() -> dict[str, float]:
    """The nfacct counters; empty if they cannot be read."""
    try:
        return {name: float(packets) for name, packets in read_counters(COUNTERS).items()}
    except ApplyError:
        return {}


def initialize(settings: NodeProxySettings) -> int:
    """Apply settings that need full privileges, for a node proxy with fewer; the exit code."""
    configure(settings.log.v, "json" if settings.log.log_format == "json" else "text", sys.stderr)
    sysctls = Sysctls()
    for message in sysctls.set_conntrack(settings):
        log(_log, logging.WARNING, message)
    ranges = ranges_of(settings.node_port_ranges, IpFamily.IPV4, ())
    if settings.mode == IPTABLES and settings.iptables_localhost_nodeports and has_loopback(ranges):
        sysctls.ensure_localhost_node_ports()
    return 0


def main(settings: NodeProxySettings) -> int:
    """Run a node proxy until it is told to stop; returns the exit code."""
    code = 0
    try:
        code = running.main(PROGRAM, settings)
    except* ConfigChanged:
        code = 1  # the service manager restarts the program, as it does kube-proxy
    return code
