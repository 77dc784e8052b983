"""One family of the node proxy, with a kernel that is told what to answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy import family_sync as node_proxy_family
from isthmus.programs.node_proxy.family_sync import FamilySync, PendingUpdates, joined
from isthmus.programs.node_proxy.kernel.backend import ApplyError, SyncReport
from isthmus.programs.node_proxy.kernel.health import ProxyHealth
from isthmus.programs.node_proxy.metrics import NodeProxyMetrics
from isthmus.programs.node_proxy.rules.model import (
    IpFamily,
    ObjectPort,
    PortProtocol,
    ServiceObject,
    ServiceView,
    SliceEndpoint,
    SliceObject,
    SlicePort,
    Update,
)
from isthmus.programs.node_proxy.rules.settings import RuleSettings
from isthmus.programs.node_proxy.rules.tracker import ServiceTracker
from isthmus.programs.node_proxy.settings import NodeProxySettings

V4, V6 = IpFamily.IPV4, IpFamily.IPV6
LIMIT_S = 20.0
SETTINGS = NodeProxySettings(iptables_min_sync_period_s=0.0, iptables_sync_period_s=0.01)


class Kernel:
    """A backend that remembers, and fails as often as it is told to."""

    def __init__(self, family: IpFamily = V4) -> None:
        self.family = family
        self.syncs: list[tuple[Update, RuleSettings, bool]] = []
        self.fail: list[Exception] = []
        self.flushed = False

    def start(self) -> None:
        pass

    def sync(self, update: Update, settings: RuleSettings, *, full: bool) -> SyncReport:
        self.syncs.append((update, settings, full))
        if self.fail:
            raise self.fail.pop()
        self.flushed = False
        return SyncReport(full=full, rules={"nat": len(update.view.ports)})

    def intact(self) -> bool:
        return not self.flushed

    def cleanup(self) -> list[str]:
        return []


def service(name: str, protocol: PortProtocol = PortProtocol.TCP) -> ServiceObject:
    return ServiceObject(
        name=ServiceName("ns", name),
        cluster_ips=("10.96.0.1",),
        ports=(ObjectPort(port=53, protocol=protocol),),
    )


def slice_of(name: str, *addresses: str, protocol: PortProtocol = PortProtocol.TCP) -> SliceObject:
    return SliceObject(
        namespace="ns", name=f"{name}-1", service=ServiceName("ns", name), family=V4,
        ports=(SlicePort("", protocol, 5353),),
        endpoints=tuple(SliceEndpoint(address=address) for address in addresses),
    )  # fmt: skip


class Bed:
    """A tracker, a kernel and what is between them."""

    def __init__(self, *families: IpFamily) -> None:
        self.metrics = NodeProxyMetrics("iptables")
        self.health = ProxyHealth(timeout_s=60.0)
        self.tracker = ServiceTracker(node_name="node", families=families or (V4,))
        self.pending = PendingUpdates(self.tracker, self.metrics)
        self.rules = RuleSettings(family=V4)
        self.kernel = Kernel()
        self.synced: list[IpFamily] = []
        self.sync = FamilySync(
            self.kernel, SETTINGS, pending=self.pending, rules=lambda family: self.rules,
            health=self.health, metrics=self.metrics,
            synced=lambda view: self.synced.append(view.family),
        )  # fmt: skip

    def has(self, *objects: ServiceObject, slices: tuple[SliceObject, ...] = ()) -> None:
        self.tracker.replace_services(objects)
        self.tracker.replace_slices(slices)
        self.sync.request()

    async def wait_syncs(self, count: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            while len(self.kernel.syncs) < count or len(self.synced) < self.sync.syncs:
                await asyncio.sleep(0.001)

    @contextlib.asynccontextmanager
    async def running(self, *more: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(work()) for work in (self.sync.run, *more)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.sync.close()


def test_the_first_sync_is_full_and_the_next_is_not() -> None:
    async def scenario() -> None:
        bed = Bed()
        async with bed.running():
            bed.has(service("a"), service("b"))
            await bed.wait_syncs(1)
            bed.tracker.put_service(service("c"))
            bed.sync.request()
            await bed.wait_syncs(2)
        (first, _, full), (second, _, partial) = bed.kernel.syncs
        assert (full, partial) == (True, False)
        assert len(first.view.ports) == 2
        assert second.changed == {ServiceName("ns", "c")}
        assert len(second.view.ports) == 3

    asyncio.run(scenario())


def test_nothing_is_written_when_nothing_changed() -> None:
    async def scenario() -> None:
        bed = Bed()
        async with bed.running():
            bed.has(service("a"))
            await bed.wait_syncs(1)
            bed.sync.request()
            bed.health.queued(V4)
            bed.tracker.put_service(service("a"))  # the same again
            bed.sync.request()
            # Something that does change shows that the others are done.
            bed.tracker.put_service(service("b"))
            bed.sync.request()
            await bed.wait_syncs(2)
        assert len(bed.kernel.syncs) == 2
        assert bed.kernel.syncs[1][0].changed == {ServiceName("ns", "b")}

    asyncio.run(scenario())


def test_other_settings_are_written() -> None:
    async def scenario() -> None:
        bed = Bed()
        async with bed.running():
            bed.has(service("a"))
            await bed.wait_syncs(1)
            bed.rules = replace(bed.rules, masquerade_all=True)
            bed.sync.request()
            await bed.wait_syncs(2)
        assert bed.kernel.syncs[1][1].masquerade_all

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", [ApplyError("no", rule="-A X"), RuntimeError("a mistake")])
def test_a_failure_is_counted_and_tried_again_with_everything(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        bed = Bed()
        async with bed.running():
            bed.has(service("a"))
            await bed.wait_syncs(1)
            bed.kernel.fail = [failure]
            bed.tracker.put_service(service("b"))
            bed.sync.request()
            await bed.wait_syncs(3)
        _, (failed, _, was_full), (again, _, full) = bed.kernel.syncs
        assert not was_full
        assert full
        assert again.changed == failed.changed == {ServiceName("ns", "b")}
        assert bed.metrics.partial_failures == {"IPv4": 1}
        assert bed.health.healthy
        assert bed.synced == [V4, V4]

    asyncio.run(scenario())


def test_what_was_flushed_is_written_again() -> None:
    async def scenario() -> None:
        bed = Bed()
        async with bed.running(bed.sync.watch_canary):
            bed.has(service("a"))
            await bed.wait_syncs(1)
            bed.kernel.flushed = True
            await bed.wait_syncs(2)
        assert bed.kernel.syncs[1][2]
        assert not bed.kernel.flushed

    asyncio.run(scenario())


@pytest.mark.parametrize(("protocol", "rounds"), [(PortProtocol.UDP, 2), (PortProtocol.TCP, 0)])
def test_connections_are_cleaned_up_when_udp_endpoints_change(
    protocol: PortProtocol, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[ServiceView] = []

    def forget(view: ServiceView) -> int:
        cleaned.append(view)
        return 3

    monkeypatch.setattr(node_proxy_family, "forget_stale_flows", forget)

    async def scenario() -> None:
        bed = Bed()
        async with bed.running():
            first = slice_of("dns", "10.1.0.1", protocol=protocol)
            bed.has(service("dns", protocol), slices=(first,))
            await bed.wait_syncs(1)
            bed.tracker.put_slice(slice_of("dns", "10.1.0.2", protocol=protocol))
            bed.sync.request()
            await bed.wait_syncs(2)
            bed.tracker.put_service(service("other"))
            bed.sync.request()
            await bed.wait_syncs(3)
        assert len(cleaned) == rounds
        assert bed.metrics.flows_deleted.get("IPv4", 0) == 3 * rounds

    asyncio.run(scenario())


def test_what_one_family_takes_waits_for_the_other() -> None:
    metrics = NodeProxyMetrics("iptables")
    tracker = ServiceTracker(node_name="node", families=(V4, V6))
    pending = PendingUpdates(tracker, metrics)
    both = ServiceObject(
        name=ServiceName("ns", "a"), cluster_ips=("10.96.0.1", "fd00::1"),
        ports=(ObjectPort(port=80),),
    )  # fmt: skip
    tracker.replace_services((both,))
    tracker.replace_slices(())
    assert pending.take(V4).changed == {both.name}
    tracker.drop_service(both.name)
    assert pending.take(V4).changed == {both.name}
    later = pending.take(V6)
    assert later.changed == {both.name}
    assert not later.view.ports
    assert pending.take(V6).changed == frozenset()
    assert metrics.service_changes == 2


def test_what_is_given_back_is_taken_again_with_what_came_since() -> None:
    tracker = ServiceTracker(node_name="node", families=(V4,))
    pending = PendingUpdates(tracker, NodeProxyMetrics("iptables"))
    tracker.replace_services((service("a"),))
    tracker.replace_slices(())
    taken = pending.take(V4)
    tracker.put_service(service("b"))
    pending.give_back(taken)
    again = pending.take(V4)
    assert again.changed == {ServiceName("ns", "a"), ServiceName("ns", "b")}
    assert len(again.view.ports) == 2


def test_joining_updates() -> None:
    old_view, new_view = (ServiceView(family=V4, ports={}, endpoints=each) for each in (1, 2))
    one = Update(view=old_view, changed=frozenset({ServiceName("n", "a")}), udp=True, services=1,
                 endpoint_slices=2, triggers=(1.0,))  # fmt: skip
    two = Update(view=new_view, changed=frozenset({ServiceName("n", "b")}), services=3,
                 endpoint_slices=4, triggers=(2.0,))  # fmt: skip
    assert joined(None, two) is two
    assert joined(one, two) == Update(
        view=new_view, changed=one.changed | two.changed, udp=True, services=4,
        endpoint_slices=6, triggers=(1.0, 2.0),
    )  # fmt: skip
