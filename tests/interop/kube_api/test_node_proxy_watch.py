"""A node proxy watches a real kube-apiserver, with kube-proxy's rights and after outages."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from kube.api import Api, CallFailedError, write_kubeconfig
from kube.build import Binaries
from kube.cluster import plain_control_plane
from kube.controlplane import VISITOR_TOKEN

from isthmus.dial.rules_service_names import ServiceName
from isthmus.errors import KubeError
from isthmus.kube.opening import open_kube
from isthmus.programs.node_proxy.input import ClusterWatch, cluster_sources
from isthmus.programs.node_proxy.rules.model import (
    IpFamily,
    NodeObject,
    PortKey,
    PortProtocol,
    ServiceBatch,
    SliceBatch,
    Update,
)
from isthmus.programs.node_proxy.rules.tracker import ZONE_LABEL, ServiceTracker

pytestmark = pytest.mark.interop

LIMIT_S = 60.0
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
NODES = "/api/v1/nodes"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PROXY_NAME = "service.kubernetes.io/service-proxy-name"
HTTP = {"name": "http", "port": 80, "protocol": "TCP"}


class Seen:
    """What is known of the cluster on node "here"."""

    def __init__(self) -> None:
        self.tracker = ServiceTracker(node_name="here", families=[IpFamily.IPV4])
        self.nodes: list[NodeObject | None] = []
        self.cidrs: tuple[str, ...] = ()

    def heard_node(self, node: NodeObject | None) -> None:
        self.nodes.append(node)
        self.tracker.set_node(node.labels if node is not None else {})

    def heard_service_cidrs(self, ranges: tuple[str, ...]) -> None:
        self.cidrs = ranges

    def heard_services(self, batch: ServiceBatch) -> None:
        self.tracker.hear_services(batch)

    def heard_slices(self, batch: SliceBatch) -> None:
        self.tracker.hear_slices(batch)

    def update(self) -> Update:
        return self.tracker.take()[IpFamily.IPV4]

    def has(self, name: str) -> bool:
        return any(key.service.name == name for key in self.update().view.ports)

    def reached(self, name: str) -> list[str]:
        key = PortKey(ServiceName("default", name), "http", PortProtocol.TCP)
        backed = self.update().view.ports.get(key)
        return [str(each) for each in backed.backends.reachable] if backed is not None else []


@contextlib.asynccontextmanager
async def watching(kubeconfig: str) -> AsyncIterator[Seen]:
    kube = open_kube(kubeconfig)
    seen = Seen()
    watch = ClusterWatch(
        cluster_sources(kube.client, "here"),
        seen,
        first_retry_s=0.05,
    )
    task = asyncio.ensure_future(watch.run())
    try:
        yield seen
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await kube.close()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.02)


def service(name: str, **spec: Any) -> dict[str, Any]:
    given = {"ports": [HTTP], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": given}


def slice_of(service: str, *addresses: str, zones: str = "") -> dict[str, Any]:
    hints = [{"hints": {"forZones": [{"name": zone}]}} for zone in zones] or [{}] * len(addresses)
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service}-1",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [
            {"addresses": [address], **hint} for address, hint in zip(addresses, hints, strict=True)
        ],
    }


async def call(api: Api, method: str, path: str, body: Any = None) -> Any:
    return await asyncio.to_thread(api.call, method, path, body)


async def relabel(api: Api, path: str, **labels: str) -> None:
    found = await call(api, "GET", path)
    found["metadata"]["labels"] = {**found["metadata"].get("labels", {}), **labels}
    await call(api, "PUT", path, found)


def test_what_is_ours_is_listed_and_watched(kube_api: Api) -> None:
    tag = uuid.uuid4().hex[:8]
    web, head, far = (f"{name}-{tag}" for name in ("web", "head", "far"))

    async def main() -> None:
        made = await call(kube_api, "POST", SERVICES, service(web))
        await call(kube_api, "POST", SERVICES, service(head, clusterIP="None"))
        far_away = service(far, type="ExternalName", externalName="far.example.com")
        await call(kube_api, "POST", SERVICES, far_away)
        await call(kube_api, "POST", SLICES, slice_of(web, "10.1.0.2", "10.1.0.1"))
        async with watching(str(kube_api.kubeconfig)) as seen:
            await until(lambda: seen.tracker.synced and seen.cidrs)
            update = seen.update()
            names = {key.service.name for key in update.view.ports}
            assert {"kubernetes", web} <= names
            assert not {head, far} & names
            (port,) = (b.port for k, b in update.view.ports.items() if k.service.name == web)
            assert port.cluster_ip == made["spec"]["clusterIP"]
            assert seen.reached(web) == ["10.1.0.1:8080", "10.1.0.2:8080"]

            # A label by which something else proxies it takes it from us, and gives it back.
            await relabel(kube_api, f"{SERVICES}/{web}", **{PROXY_NAME: "other"})
            await until(lambda: not seen.has(web))
            found = await call(kube_api, "GET", f"{SERVICES}/{web}")
            del found["metadata"]["labels"][PROXY_NAME]
            await call(kube_api, "PUT", f"{SERVICES}/{web}", found)
            await until(lambda: seen.reached(web))

            await call(kube_api, "PUT", f"{SLICES}/{web}-1", slice_of(web, "10.1.0.3"))
            await until(lambda: seen.reached(web) == ["10.1.0.3:8080"])
            await call(kube_api, "DELETE", f"{SLICES}/{web}-1")
            await until(lambda: seen.has(web) and seen.reached(web) == [])
            await call(kube_api, "DELETE", f"{SERVICES}/{web}")
            await until(lambda: not seen.has(web))

    uvloop.run(main())


def test_our_node_is_followed_and_its_zone_chooses(kube_api: Api) -> None:
    name = f"zoned-{uuid.uuid4().hex[:8]}"

    async def main() -> None:
        await call(kube_api, "POST", SERVICES, service(name))
        await call(kube_api, "POST", SLICES, slice_of(name, "10.1.0.1", "10.1.0.2", zones="ab"))
        async with watching(str(kube_api.kubeconfig)) as seen:
            await until(lambda: seen.nodes == [None])
            await until(lambda: seen.reached(name) == ["10.1.0.1:8080", "10.1.0.2:8080"])
            for other in ("there", "here"):
                node = {
                    "metadata": {"name": other, "labels": {ZONE_LABEL: "b"}},
                    "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
                }
                await call(kube_api, "POST", NODES, node)
            await until(lambda: len(seen.nodes) > 1)
            mine = seen.nodes[1]
            assert mine is not None
            assert mine.name == "here"
            assert mine.pod_cidrs == ("10.1.0.0/24",)
            await until(lambda: seen.reached(name) == ["10.1.0.2:8080"])
            await relabel(kube_api, f"{NODES}/here", **{ZONE_LABEL: "a"})
            await until(lambda: seen.reached(name) == ["10.1.0.1:8080"])
            for other in ("there", "here"):
                await call(kube_api, "DELETE", f"{NODES}/{other}")
            await until(lambda: seen.nodes[-1] is None)

    uvloop.run(main())


async def expect_gone(kubeconfig: str) -> None:
    """A watch from a version that the API has forgotten is refused in the way that we know."""
    kube = open_kube(kubeconfig)
    try:
        sources = cluster_sources(kube.client, "here")
        for source in (sources.services, sources.slices):
            with pytest.raises(KubeError) as caught:
                async with (
                    asyncio.timeout(LIMIT_S / 4),
                    source.watch(after="1", timeout_s=LIMIT_S) as events,
                ):
                    async for _ in events:
                        pass
            assert caught.value.status == 410
    finally:
        await kube.close()


def test_a_replaced_api_is_followed(kube_binaries: Binaries, tmp_path: Path) -> None:
    """Another kube-apiserver takes the place of the first, with what was written meanwhile."""
    kubeconfig = tmp_path / "kubeconfig"

    async def work(control_plane: Any) -> None:
        async with contextlib.AsyncExitStack() as stack:
            opened = control_plane.apiserver(prefix="same")
            api = await asyncio.to_thread(opened.__enter__)
            write_kubeconfig(kubeconfig, api.url, api.ca_cert, api.token)
            await call(api, "POST", SERVICES, service("old"))
            await call(api, "POST", SLICES, slice_of("old", "10.1.0.1"))
            seen = await stack.enter_async_context(watching(str(kubeconfig)))
            await until(lambda: seen.reached("old"))
            await asyncio.to_thread(opened.__exit__, None, None, None)
            assert seen.reached("old") == ["10.1.0.1:8080"]  # what was known stands
            opened = control_plane.apiserver(prefix="same")
            api = await asyncio.to_thread(opened.__enter__)
            try:
                write_kubeconfig(kubeconfig, api.url, api.ca_cert, api.token)
                await call(api, "POST", SERVICES, service("new"))
                await call(api, "POST", SLICES, slice_of("new", "10.1.0.2"))
                await call(api, "DELETE", f"{SERVICES}/old")
                await until(lambda: seen.reached("new") == ["10.1.0.2:8080"])
                await until(lambda: not seen.has("old"))
                await expect_gone(str(kubeconfig))
            finally:
                await asyncio.to_thread(opened.__exit__, None, None, None)

    with plain_control_plane(kube_binaries) as (control_plane, _):
        uvloop.run(work(control_plane))


def test_the_rights_of_kube_proxy_are_enough(kube_binaries: Binaries, tmp_path: Path) -> None:
    binding = {
        "metadata": {"name": "visitor-proxies"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:node-proxier",
        },
        "subjects": [{"kind": "User", "name": "visitor"}],
    }

    async def bind(api: Api) -> None:
        async with asyncio.timeout(LIMIT_S):
            while True:  # the API makes its own roles when it is up
                with contextlib.suppress(CallFailedError):
                    await call(api, "GET", f"{RBAC}/clusterroles/system:node-proxier")
                    break
                await asyncio.sleep(0.05)
        await call(api, "POST", f"{RBAC}/clusterrolebindings", binding)

    async def work(api: Api) -> None:
        kubeconfig = write_kubeconfig(tmp_path / "visitor", api.url, api.ca_cert, VISITOR_TOKEN)
        async with watching(str(kubeconfig)) as seen:
            assert not seen.tracker.synced
            await bind(api)
            await until(lambda: seen.tracker.synced and seen.nodes == [None] and seen.cidrs)
            assert seen.has("kubernetes")

    with (
        plain_control_plane(kube_binaries) as (control_plane, _),
        control_plane.apiserver("--authorization-mode=RBAC") as api,
    ):
        uvloop.run(work(api))
