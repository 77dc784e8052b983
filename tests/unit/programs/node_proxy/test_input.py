"""A cluster followed for a node proxy: what is asked for, and what is told after which troubles."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from fakeapi import running, until
from fakecluster import CIDRS, NODES, SERVICES, SLICES, FakeCluster, with_cluster

from isthmus.dial.rules_service_names import ServiceName
from isthmus.programs.node_proxy.input import ClusterWatch, cluster_sources
from isthmus.programs.node_proxy.rules.model import IpFamily, NodeObject, ServiceBatch, SliceBatch
from isthmus.programs.node_proxy.rules.tracker import ServiceTracker


class Told:
    """What a watch told, and what a tracker made of it."""

    def __init__(self, api: FakeCluster, *, cidrs: bool = True, silence_s: float = 100.0) -> None:
        self.tracker = ServiceTracker(node_name="here", families=[IpFamily.IPV4])
        self.services: list[ServiceBatch] = []
        self.slices: list[SliceBatch] = []
        self.nodes: list[NodeObject | None] = []
        self.cidrs: list[tuple[str, ...]] = []
        self.watch = ClusterWatch(
            cluster_sources(api.kube().client, "here"),
            self,
            service_cidrs=cidrs,
            silence_s=silence_s,
            first_retry_s=0.005,
        )

    def heard_services(self, batch: ServiceBatch) -> None:
        self.services.append(batch)
        self.tracker.hear_services(batch)

    def heard_slices(self, batch: SliceBatch) -> None:
        self.slices.append(batch)
        self.tracker.hear_slices(batch)

    def heard_node(self, node: NodeObject | None) -> None:
        self.nodes.append(node)

    def heard_service_cidrs(self, ranges: tuple[str, ...]) -> None:
        self.cidrs.append(ranges)

    def reached(self) -> dict[str, list[str]]:
        ports = self.tracker.take()[IpFamily.IPV4].view.ports
        return {
            str(key): [str(each) for each in backed.backends.reachable]
            for key, backed in ports.items()
        }


def service(ip: str = "10.96.0.1", **spec: Any) -> dict[str, Any]:
    return {"spec": {"clusterIP": ip, "ports": [{"name": "p", "port": 80}], **spec}}


def slice_of(name: str, *addresses: str, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [each]} for each in addresses],
        **more,
    }


def test_a_cluster_is_listed_and_then_watched(tmp_path: Path) -> None:
    async def test(api: FakeCluster) -> None:
        api.put(SERVICES, "a", service())
        api.put(SLICES, "a-1", slice_of("a", "10.0.0.1"))
        told = Told(api)
        assert repr(told.watch) == "<ClusterWatch services, slices, node, service-cidrs>"
        async with running(told.watch.run()):
            await until(lambda: told.tracker.synced and len(api.watches) == 4)
            assert told.services[0].complete
            assert told.slices[0].complete
            assert told.reached() == {"ns/a:p": ["10.0.0.1:8080"]}
            api.put(SLICES, "a-1", slice_of("a", "10.0.0.1", "10.0.0.2"))
            api.put(SERVICES, "b", service("10.96.0.2"))
            await until(lambda: len(told.slices) == 2 and len(told.services) == 2)
            assert not told.services[1].complete
            assert told.reached() == {"ns/a:p": ["10.0.0.1:8080", "10.0.0.2:8080"], "ns/b:p": []}
            api.bookmark(SLICES)
            api.drop(SLICES, "a-1")
            api.drop(SERVICES, "a")
            await until(lambda: len(told.slices) == 3 and len(told.services) == 3)
            assert told.slices[2].drop == (("ns", "a-1"),)
            assert told.services[2].drop == (ServiceName("ns", "a"),)
            assert told.reached() == {"ns/b:p": []}

    with_cluster(tmp_path, test)


def test_only_what_is_ours_is_asked_for(tmp_path: Path) -> None:
    async def test(api: FakeCluster) -> None:
        told = Told(api, cidrs=False)
        async with running(told.watch.run()):
            await until(lambda: len(api.watches) == 3)
            for asked in (dict(api.lists), dict(api.watches)):
                assert asked.keys() == {SERVICES, SLICES, NODES}
                assert asked[SERVICES]["fieldSelector"] == "spec.clusterIP!=None"
                no_proxy = "!service.kubernetes.io/service-proxy-name"
                assert asked[SERVICES]["labelSelector"] == no_proxy
                assert asked[SLICES]["labelSelector"] == "!service.kubernetes.io/headless"
                assert asked[NODES]["fieldSelector"] == "metadata.name=here"
            assert all(query["allowWatchBookmarks"] == "true" for _, query in api.watches)

    with_cluster(tmp_path, test)


def test_the_node_is_told_of_and_that_there_is_none(tmp_path: Path) -> None:
    async def test(api: FakeCluster) -> None:
        told = Told(api)
        async with running(told.watch.run()):
            await until(lambda: told.nodes == [None] and len(api.watches) == 4)
            api.put(NODES, "here", {"spec": {"podCIDRs": ["10.1.0.0/24"]}})
            await until(lambda: len(told.nodes) == 2)
            assert told.nodes[1] == NodeObject(name="here", pod_cidrs=("10.1.0.0/24",))
            api.drop(NODES, "here")
            await until(lambda: len(told.nodes) == 3)
            assert told.nodes[2] is None

    with_cluster(tmp_path, test)


def test_ranges_of_cluster_ips_are_told_all_at_once(tmp_path: Path) -> None:
    async def test(api: FakeCluster) -> None:
        api.put(CIDRS, "kubernetes", {"spec": {"cidrs": ["10.96.0.0/12", "fd00::/112"]}})
        told = Told(api)
        async with running(told.watch.run()):
            await until(lambda: len(api.watches) == 4)
            api.put(CIDRS, "more", {"spec": {"cidrs": ["10.0.0.0/16"]}})
            await until(lambda: len(told.cidrs) == 2)
            api.drop(CIDRS, "kubernetes")
            await until(lambda: len(told.cidrs) == 3)
            assert told.cidrs == [
                ("10.96.0.0/12", "fd00::/112"),
                ("10.0.0.0/16", "10.96.0.0/12", "fd00::/112"),
                ("10.0.0.0/16",),
            ]

    with_cluster(tmp_path, test)


def test_what_cannot_be_read_is_as_if_it_were_not_there_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(api: FakeCluster) -> None:
        api.put(SERVICES, "a", service())
        api.put(SERVICES, "bad", {"spec": 5})
        api.put(SLICES, "a-1", slice_of("a", "10.0.0.1"))
        told = Told(api)
        async with running(told.watch.run()):
            await until(lambda: told.tracker.synced and len(api.watches) == 4)
            assert told.reached() == {"ns/a:p": ["10.0.0.1:8080"]}
            for number in range(3):
                api.put(SLICES, "a-1", slice_of("a", endpoints=number))
            api.put(SLICES, "nameless", {"metadata": {"name": 5}})
            api.put(SLICES, "b-1", slice_of("b", "10.0.0.2"))
            await until(lambda: len(told.slices) == 5)
            assert told.slices[4].put
            assert told.reached() == {"ns/a:p": []}
            assert told.slices[1].drop == (("ns", "a-1"),)

    with caplog.at_level(logging.WARNING, "isthmus.kube"):
        with_cluster(tmp_path, test)
    said = [str(getattr(each, "fields", "")) for each in caplog.records]
    assert sum("Service ns/bad" in each for each in said) == 1
    assert sum("EndpointSlice ns/a-1" in each for each in said) == 1


def test_after_a_version_too_old_all_is_told_again(tmp_path: Path) -> None:
    async def test(api: FakeCluster) -> None:
        api.put(SERVICES, "a", service())
        told = Told(api)
        async with running(told.watch.run()):
            await until(lambda: len(api.watches) == 4)
            api.put(SERVICES, "b", service("10.96.0.2"))
            await until(lambda: len(told.services) == 2)
            api.drop(SERVICES, "a")
            api.forget()
            api.cut()
            await until(lambda: "ns/a:p" not in told.reached())
            assert told.services[-1].complete
            assert told.reached() == {"ns/b:p": []}

    with_cluster(tmp_path, test)


def test_a_watch_that_is_too_quiet_goes_on_where_it_was(tmp_path: Path) -> None:
    async def test(api: FakeCluster) -> None:
        told = Told(api, silence_s=0.05)
        async with running(told.watch.run()):
            await until(lambda: len(api.watches) >= 12)
            assert len(api.lists) == 4
            api.put(SERVICES, "a", service())
            await until(lambda: told.reached())
            assert sum(batch.complete for batch in told.services) == 1

    with_cluster(tmp_path, test)


def test_pages_get_shorter_where_objects_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.kube.client._MAX_BODY_BYTES", 20_000)

    async def test(api: FakeCluster) -> None:
        for number in range(20):
            large = {"metadata": {"annotations": {"note": "x" * 3000}}}
            api.put(SERVICES, f"s{number}", {**large, **service(f"10.96.0.{number}")})
        told = Told(api)
        async with running(told.watch.run()):
            await until(lambda: told.services)
            assert len(told.services[0].put) == 20
            sizes = [int(query["limit"]) for path, query in api.lists if path == SERVICES]
            assert sizes[0] == 500
            assert sizes[-1] in (3, 5, 7)

    with_cluster(tmp_path, test)


def test_one_object_longer_than_an_answer_may_be_is_an_outage_and_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.kube.client._MAX_BODY_BYTES", 2_000)

    async def test(api: FakeCluster) -> None:
        api.put(SERVICES, "large", {**service(), "metadata": {"annotations": {"x": "x" * 3000}}})
        told = Told(api)
        async with running(told.watch.run()):
            await until(lambda: sum(path == SERVICES for path, _ in api.lists) > 10)
            assert told.services == []
            api.drop(SERVICES, "large")
            await until(lambda: told.services)

    with_cluster(tmp_path, test)
