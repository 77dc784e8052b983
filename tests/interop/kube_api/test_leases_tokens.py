"""Leases and tokens against a real kube-apiserver: it takes what we write, we read what it says."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvloop
from kube.api import Api, write_kubeconfig
from kube.build import Binaries
from kube.cluster import plain_control_plane

from isthmus.errors import KubeError
from isthmus.kube.api import Kube, LeaseDraft
from isthmus.kube.leases import LeaseCounter, LeaseKeeper, LeaseTiming
from isthmus.kube.opening import open_kube
from isthmus.kube.rules_leases import Doomed
from isthmus.kube.tokens import (
    Accepted,
    Expected,
    Rejected,
    ReviewLimits,
    TokenReviewer,
    Unavailable,
)
from isthmus.values import ServerId

pytestmark = pytest.mark.interop

LIMIT_S = 60.0
NAMESPACE = "kube-system"
PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
AUDIENCE = "system:konnectivity-server"
AGENT = "konnectivity-agent"


class Metrics:
    def __init__(self) -> None:
        self.listed: list[tuple[int, str]] = []
        self.watched: list[tuple[int, str]] = []
        self.deleted: list[tuple[int, str]] = []
        self.culled = 0

    def lease_listed(self, status: int, reason: str, seconds: float) -> None:
        self.listed.append((status, reason))

    def lease_watched(self, status: int, reason: str) -> None:
        self.watched.append((status, reason))

    def lease_deleted(self, status: int, reason: str, seconds: float) -> None:
        self.deleted.append((status, reason))

    def lease_culled(self) -> None:
        self.culled += 1


class Bed:
    """One test: a label of its own, so that tests do not count each other's servers."""

    def __init__(self, api: Api, kube: Kube) -> None:
        self.api = api
        self.kube = kube
        self.leases = kube.leases(NAMESPACE)
        self.label = f"test-{uuid.uuid4().hex[:8]}"
        self.metrics = Metrics()
        self.counts: list[int] = []

    def keeper(self, name: str, **timing: Any) -> LeaseKeeper:
        return LeaseKeeper(
            self.leases,
            server_id=ServerId(f"{self.label}-{name}"),
            labels={"k8s-app": self.label},
            metrics=self.metrics,
            timing=LeaseTiming(**{"renew_s": 0.2, "collect_s": 0.2, **timing}),
        )

    def counter(self) -> LeaseCounter:
        return LeaseCounter(
            self.leases,
            selector=f"k8s-app={self.label}",
            changed=self.counts.append,
            metrics=self.metrics,
        )

    def seen(self, keeper: LeaseKeeper) -> Any:
        return self.api.get(f"{PATH}/{keeper.name}")

    def names(self) -> set[str]:
        found = self.api.get(f"{PATH}?labelSelector=k8s-app%3D{self.label}")
        return {item["metadata"]["name"] for item in found["items"]}

    def draft(self, name: str, at: float, duration_s: int = 1000) -> LeaseDraft:
        return LeaseDraft(
            name=f"{self.label}-{name}",
            labels={"k8s-app": self.label},
            holder=name,
            acquired_at=at,
            renewed_at=at,
            duration_s=duration_s,
        )


def run(api: Api, test: Callable[[Bed], Awaitable[None]]) -> None:
    async def main() -> None:
        kube = open_kube(str(api.kubeconfig))
        try:
            await test(Bed(api, kube))
        finally:
            await kube.close()

    uvloop.run(main())


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running(work: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_a_server_keeps_its_lease(kube_api: Api) -> None:
    async def test(bed: Bed) -> None:
        keeper = bed.keeper("one")
        async with running(keeper.run()):
            await until(lambda: keeper.held)
            made = bed.seen(keeper)
            assert made["metadata"]["name"] == f"konnectivity-proxy-server-{bed.label}-one"
            assert made["metadata"]["labels"] == {"k8s-app": bed.label}
            assert made["spec"]["holderIdentity"] == f"{bed.label}-one"
            assert made["spec"]["leaseDurationSeconds"] == 30
            await until(lambda: bed.seen(keeper)["spec"]["renewTime"] > made["spec"]["renewTime"])
            assert bed.seen(keeper)["spec"]["acquireTime"] == made["spec"]["acquireTime"]
            await asyncio.to_thread(bed.api.call, "DELETE", f"{PATH}/{keeper.name}")
            await until(lambda: keeper.name in bed.names())
        await keeper.stop()
        assert bed.names() == set()

    run(kube_api, test)


def test_whole_seconds_are_written_as_go_reads_them(kube_api: Api) -> None:
    async def test(bed: Bed) -> None:
        written = await bed.leases.create(bed.draft("whole", at=1_800_000_000.0))
        assert written.renewed_at == pytest.approx(1_800_000_000.0, abs=1e-5)

    run(kube_api, test)


def test_an_agent_counts_servers_as_they_come_and_go(kube_api: Api) -> None:
    async def test(bed: Bed) -> None:
        one, two, three = (bed.keeper(name, renew_s=5) for name in ("one", "two", "three"))
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(running(bed.counter().run()))
            await until(lambda: bed.counts == [1])
            await stack.enter_async_context(running(one.run()))
            await until(lambda: one.held)
            for known, keeper in ((2, two), (3, three)):
                await stack.enter_async_context(running(keeper.run()))
                await until(lambda known=known: bed.counts[-1] == known)  # type: ignore[misc]
            async with asyncio.timeout(LIMIT_S):
                await three.stop()
            await until(lambda: bed.counts[-1] == 2)
        # Heard by one watch: neither polled nor listed again.
        assert bed.metrics.watched == [(200, "")]

    run(kube_api, test)


def test_a_dead_servers_lease_stops_counting_and_is_collected(kube_api: Api) -> None:
    async def test(bed: Bed) -> None:
        dead, alive = bed.keeper("dead", duration_s=2, renew_s=1000), bed.keeper("alive")
        async with running(bed.counter().run()), running(alive.run()):
            async with running(dead.run()):
                await until(lambda: bed.counts[-1:] == [2])
            await until(lambda: bed.counts[-1] == 1)
            await until(lambda: bed.names() == {alive.name})
        assert bed.metrics.culled == 1 and (200, "") in bed.metrics.deleted

    run(kube_api, test)


def test_deleting_needs_the_version_that_was_seen(kube_api: Api) -> None:
    async def test(bed: Bed) -> None:
        draft = bed.draft("late", at=1.5)
        old = await bed.leases.create(draft)
        new = await bed.leases.replace(draft, resource_version=old.resource_version)
        if new.resource_version == old.resource_version:  # a write that changed nothing
            changed = bed.draft("late", at=2.5)
            new = await bed.leases.replace(changed, resource_version=old.resource_version)
        for call in (
            bed.leases.delete(Doomed(name=draft.name, resource_version=old.resource_version)),
            bed.leases.replace(draft, resource_version=old.resource_version),
            bed.leases.create(draft),
        ):
            with pytest.raises(KubeError) as caught:
                await call
            assert caught.value.status == 409
        await bed.leases.delete(Doomed(name=draft.name, resource_version=new.resource_version))
        with pytest.raises(KubeError) as caught:
            await bed.leases.get(draft.name)
        assert (caught.value.status, caught.value.reason) == (404, "NotFound")

    run(kube_api, test)


def test_a_version_too_old_to_watch_is_410(kube_binaries: Binaries) -> None:
    async def write(bed: Bed) -> None:
        for number in range(3):
            await bed.leases.create(bed.draft(f"old-{number}", at=1.5))

    async def test(bed: Bed) -> None:
        with pytest.raises(KubeError) as caught:
            async with bed.leases.watch("", after="1", timeout_s=5) as events:
                async for _ in events:
                    pass
        assert (caught.value.status, caught.value.reason) == (410, "Expired")

    with plain_control_plane(kube_binaries) as (control_plane, _):
        with control_plane.apiserver(prefix="same") as first:
            run(first, write)
        # It begins with what is there now, and knows nothing of what was before.
        with control_plane.apiserver(prefix="same") as second:
            run(second, test)


def expected(**other: str) -> Expected:
    given = {"audience": AUDIENCE, "namespace": "default", "service_account": AGENT, **other}
    return Expected(**given)


def test_tokens_of_the_agents_account_for_our_audience_are_accepted(kube_api: Api) -> None:
    token = kube_api.service_account_token(AGENT, audience=AUDIENCE)

    async def test(bed: Bed) -> None:
        verdict = await TokenReviewer(bed.kube.tokens, expected()).review(token)
        assert isinstance(verdict, Accepted), verdict
        assert verdict.identity.name == f"system:serviceaccount:default:{AGENT}"
        assert "system:serviceaccounts:default" in verdict.identity.groups

    run(kube_api, test)


def test_other_tokens_are_rejected(kube_api: Api) -> None:
    good = kube_api.service_account_token(AGENT, audience=AUDIENCE)
    elsewhere = kube_api.service_account_token(AGENT, audience="https://elsewhere")
    other = kube_api.service_account_token("somebody", audience=AUDIENCE)

    async def test(bed: Bed) -> None:
        reviews = TokenReviewer(bed.kube.tokens, expected())
        signature = good.rpartition(".")[2]
        forged = good.removesuffix(signature) + signature[::-1]
        for token in (elsewhere, other, forged, "garbage", bed.api.token):
            verdict = await reviews.review(token)
            assert isinstance(verdict, Rejected), token
            assert token not in verdict.reason
        wrong = TokenReviewer(bed.kube.tokens, expected(namespace="kube-system"))
        verdict = await wrong.review(good)
        assert isinstance(verdict, Rejected) and "not of system:serv" in verdict.reason

    run(kube_api, test)


def test_the_account_being_gone_ends_its_tokens(kube_api: Api) -> None:
    token = kube_api.service_account_token("leaving", audience=AUDIENCE)
    path = "/api/v1/namespaces/default/serviceaccounts/leaving"

    async def test(bed: Bed) -> None:
        reviews = TokenReviewer(
            bed.kube.tokens,
            expected(service_account="leaving"),
            limits=ReviewLimits(remember_s=0.0),
        )
        assert isinstance(await reviews.review(token), Accepted)
        bed.api.call("DELETE", path)
        # The API caches what it accepted for ten seconds too.
        async with asyncio.timeout(LIMIT_S):
            while not isinstance(await reviews.review(token), Rejected):
                await asyncio.sleep(0.2)

    run(kube_api, test)


def test_an_api_that_does_not_know_us_makes_agents_wait(kube_api: Api) -> None:
    path = write_kubeconfig(
        kube_api.home / "stranger", kube_api.url, kube_api.ca_cert, "not-a-known-token"
    )

    async def main() -> None:
        kube = open_kube(str(path))
        try:
            verdict = await TokenReviewer(kube.tokens, expected()).review("some-token")
            assert isinstance(verdict, Unavailable) and "401" in verdict.reason
        finally:
            await kube.close()

    uvloop.run(main())
