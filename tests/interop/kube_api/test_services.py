"""Services of a real kube-apiserver: listed, watched, found again after it was replaced."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from kube.api import Api, write_kubeconfig
from kube.build import Binaries
from kube.cluster import plain_control_plane
from kube.controlplane import VISITOR_TOKEN

from isthmus.dial.rules_service_names import ServiceName
from isthmus.errors import KubeError
from isthmus.kube.api import Kube
from isthmus.kube.listing import LightSource
from isthmus.kube.opening import open_kube
from isthmus.kube.services import ServiceWatch

pytestmark = pytest.mark.interop

LIMIT_S = 60.0
PATH = "/api/v1/namespaces/default/services"
PORTS = [
    {"name": "dns", "port": 53, "protocol": "UDP"},
    {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
]


def service(name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


@contextlib.asynccontextmanager
async def watching(kubeconfig: str) -> AsyncIterator[tuple[ServiceWatch, Kube]]:
    kube = open_kube(kubeconfig)
    watch = ServiceWatch(kube.services(), first_retry_s=0.05)
    task = asyncio.ensure_future(watch.run())
    try:
        yield watch, kube
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


def named(name: str) -> ServiceName:
    return ServiceName("default", name)


def test_services_are_listed_and_watched(kube_api: Api) -> None:
    tag = uuid.uuid4().hex[:8]

    async def main() -> None:
        async def create(name: str, **spec: Any) -> dict[str, Any]:
            made: dict[str, Any] = await asyncio.to_thread(
                kube_api.call, "POST", PATH, service(f"{name}-{tag}", **spec)
            )
            return made

        before = await create("before", ports=PORTS)
        async with watching(str(kube_api.kubeconfig)) as (watch, kube):
            found = await watch.find(named(f"before-{tag}"))
            assert found is not None
            assert found.addresses == (before["spec"]["clusterIP"],)
            assert found.tcp_port("dns-tcp", 1) == 53
            assert found.ports == (("dns-tcp", 53),)
            assert watch.has_address(before["spec"]["clusterIP"])
            # The API's own, which every cluster has.
            assert await watch.find(named("kubernetes")) is not None

            await create("pods", clusterIP="None", ports=PORTS)
            await until(lambda: watch.known(named(f"pods-{tag}")))
            headless = await watch.find(named(f"pods-{tag}"))
            assert headless is not None
            assert headless.headless
            await create("far", type="ExternalName", externalName="far.example.com")
            await until(lambda: watch.known(named(f"far-{tag}")))
            far = await watch.find(named(f"far-{tag}"))
            assert far is not None
            assert far.external_name == "far.example.com"

            await asyncio.to_thread(kube_api.call, "DELETE", f"{PATH}/before-{tag}")
            await until(lambda: watch.known(named(f"before-{tag}")) is None)
            assert not watch.has_address(before["spec"]["clusterIP"])

            # One by one, as where listing is forbidden.
            assert (await kube.services().get(named(f"far-{tag}"))) == far
            with pytest.raises(KubeError) as caught:
                await kube.services().get(named(f"before-{tag}"))
            assert caught.value.status == 404

    uvloop.run(main())


def test_a_long_list_comes_in_pages(kube_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LightSource.__init__.__kwdefaults__, "page", 2)
    tag = uuid.uuid4().hex[:8]
    for number in range(5):
        kube_api.call("POST", PATH, service(f"s{number}-{tag}", ports=PORTS))

    async def main() -> None:
        async with watching(str(kube_api.kubeconfig)) as (watch, _):
            for number in range(5):
                assert await watch.find(named(f"s{number}-{tag}")) is not None

    uvloop.run(main())


def test_a_replaced_api_is_followed(kube_binaries: Binaries, tmp_path: Path) -> None:
    """Another kube-apiserver takes the place of the first, with what was written meanwhile."""

    kubeconfig = tmp_path / "kubeconfig"

    async def work(control_plane: Any) -> None:
        async with contextlib.AsyncExitStack() as stack:
            opened = control_plane.apiserver(prefix="same")
            api = await asyncio.to_thread(opened.__enter__)
            write_kubeconfig(kubeconfig, api.url, api.ca_cert, api.token)
            await asyncio.to_thread(api.call, "POST", PATH, service("old", ports=PORTS))
            watch, _ = await stack.enter_async_context(watching(str(kubeconfig)))
            await until(lambda: watch.known(named("old")))
            await asyncio.to_thread(opened.__exit__, None, None, None)
            assert await watch.find(named("old")) is not None  # what was known stands
            opened = control_plane.apiserver(prefix="same")
            api = await asyncio.to_thread(opened.__enter__)
            try:
                write_kubeconfig(kubeconfig, api.url, api.ca_cert, api.token)
                await asyncio.to_thread(api.call, "POST", PATH, service("new", ports=PORTS))
                await asyncio.to_thread(api.call, "DELETE", f"{PATH}/old")
                await until(lambda: watch.known(named("new")))
                await until(lambda: watch.known(named("old")) is None)
            finally:
                await asyncio.to_thread(opened.__exit__, None, None, None)

    with plain_control_plane(kube_binaries) as (control_plane, _):
        uvloop.run(work(control_plane))


RBAC = "/apis/rbac.authorization.k8s.io/v1"


def allow(api: Api, name: str, *verbs: str) -> None:
    rules = [{"apiGroups": [""], "resources": ["services"], "verbs": list(verbs)}]
    api.call("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": "visitor"}],
    }
    api.call("POST", f"{RBAC}/clusterrolebindings", binding)


def test_an_identity_that_may_only_get_reads_one_by_one(
    kube_binaries: Binaries, tmp_path: Path
) -> None:
    async def work(api: Api) -> None:
        made = await asyncio.to_thread(api.call, "POST", PATH, service("one", ports=PORTS))
        kubeconfig = write_kubeconfig(tmp_path / "visitor", api.url, api.ca_cert, VISITOR_TOKEN)
        async with watching(str(kubeconfig)) as (watch, _):
            with pytest.raises(KubeError, match="forbidden"):
                await watch.find(named("one"))
            assert watch.forbidden
            await asyncio.to_thread(allow, api, "getter", "get")
            async with asyncio.timeout(LIMIT_S):
                while True:  # roles are believed when the API's own watch has seen them
                    with contextlib.suppress(KubeError):
                        found = await watch.find(named("one"))
                        break
                    await asyncio.sleep(0.02)
            assert found is not None
            assert found.addresses == (made["spec"]["clusterIP"],)
            assert watch.forbidden
            assert await watch.find(named("none")) is None
            await asyncio.to_thread(allow, api, "lister", "list", "watch")
            await until(lambda: watch.listed)
            assert not watch.forbidden
            assert await watch.find(named("one")) == found

    with (
        plain_control_plane(kube_binaries) as (control_plane, _),
        control_plane.apiserver("--authorization-mode=RBAC") as api,
    ):
        uvloop.run(work(api))
