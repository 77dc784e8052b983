"""A server's Lease against an API over HTTP: made, renewed, taken over, lost, deleted."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from aiohttp import web
from fakeapi import FakeApi, running, status, until, with_api

from isthmus.kube.leases import LeaseKeeper, LeaseTiming
from isthmus.values import ServerId

LABELS = {"k8s-app": "konnectivity-server"}
NAME = "konnectivity-proxy-server-one"
FAST = LeaseTiming(renew_s=0.01, collect_s=0.01)
SLOW = LeaseTiming(renew_s=1000, collect_s=1000)
LONG_AGO = "2020-01-01T00:00:00.000001Z"


class Metrics:
    def __init__(self) -> None:
        self.listed: list[tuple[int, str]] = []
        self.deleted: list[tuple[int, str]] = []
        self.culled = 0

    def lease_listed(self, status: int, reason: str, seconds: float) -> None:
        assert seconds >= 0
        self.listed.append((status, reason))

    def lease_deleted(self, status: int, reason: str, seconds: float) -> None:
        assert seconds >= 0
        self.deleted.append((status, reason))

    def lease_culled(self) -> None:
        self.culled += 1


def keeper(
    api: FakeApi,
    metrics: Metrics | None = None,
    timing: LeaseTiming = FAST,
    now: Callable[[], float] = time.time,
) -> LeaseKeeper:
    return LeaseKeeper(
        api.open().leases("kube-system"),
        server_id=ServerId("one"),
        labels=LABELS,
        metrics=metrics or Metrics(),
        timing=timing,
        now=now,
    )


def renewed(api: FakeApi) -> float:
    return datetime.fromisoformat(api.leases[NAME]["spec"]["renewTime"]).timestamp()


def test_the_lease_is_made_renewed_and_deleted(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        kept = keeper(api)
        began = time.time()
        async with running(kept.run()):
            await until(lambda: NAME in api.leases)
            made = api.leases[NAME]
            assert made["metadata"]["labels"] == LABELS
            assert made["spec"]["holderIdentity"] == "one"
            assert made["spec"]["leaseDurationSeconds"] == 30
            first = renewed(api)
            assert began - 0.001 <= first <= time.time()
            await until(lambda: renewed(api) > first)
            # Renewing is no new acquiring.
            assert api.leases[NAME]["spec"]["acquireTime"] == made["spec"]["acquireTime"]
        assert kept.held
        await kept.stop()
        assert not kept.held and api.leases == {}
        await kept.stop()  # nothing left to do
        assert api.said("DELETE") == 1

    with_api(tmp_path, test)


@pytest.mark.parametrize("at", [1_800_000_000.0, 1_800_000_000.5, 1_800_000_000.123456])
def test_times_have_six_digits_as_go_wants_them(tmp_path: Path, at: float) -> None:
    async def test(api: FakeApi) -> None:
        kept = keeper(api, timing=SLOW, now=lambda: at)
        async with running(kept.run()):
            await until(lambda: NAME in api.leases)
        for key in ("acquireTime", "renewTime"):
            text = api.leases[NAME]["spec"][key]
            assert re.fullmatch(r"2027-01-15T08:00:00\.[0-9]{6}Z", text), text
        await kept.stop()
        assert api.leases == {}

    with_api(tmp_path, test)


def test_a_lease_from_before_a_restart_is_taken_over(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        api.put(NAME, holderIdentity="one", leaseDurationSeconds=30, renewTime=LONG_AGO)
        async with running(keeper(api, timing=SLOW).run()):
            await until(lambda: api.leases[NAME]["spec"]["renewTime"] != LONG_AGO)
            assert api.leases[NAME]["metadata"]["labels"] == LABELS

    with_api(tmp_path, test)


def test_a_lease_that_somebody_deleted_or_wrote_to_comes_back(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        async with running(keeper(api).run()):
            await until(lambda: NAME in api.leases)
            api.drop(NAME)
            await until(lambda: NAME in api.leases)
            api.put(NAME, holderIdentity="other", leaseDurationSeconds=30, renewTime=LONG_AGO)
            await until(lambda: api.leases[NAME]["spec"]["holderIdentity"] == "one")

    with_api(tmp_path, test)


def test_stopping_leaves_a_successor_alone(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        kept = keeper(api, timing=SLOW)
        async with running(kept.run()):
            await until(lambda: kept.held)
        api.put(NAME, holderIdentity="one", leaseDurationSeconds=30, renewTime=LONG_AGO)
        await kept.stop()
        assert NAME in api.leases and api.said("DELETE") == 0

    with_api(tmp_path, test)


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_write_whose_answer_was_not_waited_for_leaves_no_lease(
    tmp_path: Path, method: str
) -> None:
    async def test(api: FakeApi) -> None:
        kept = keeper(api)
        async with running(kept.run()):
            if method == "PUT":
                await until(lambda: kept.held)
            written = api.hold_answers_to(method)
            await until(written.is_set)
        assert NAME in api.leases
        await kept.stop()
        assert api.leases == {}

    with_api(tmp_path, test)


def test_only_dead_leases_with_our_label_are_collected(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        dead = {"holderIdentity": "x", "leaseDurationSeconds": 30, "renewTime": LONG_AGO}
        api.put("dead", labels=LABELS, **dead)
        api.put("mute", labels=LABELS, renewTime=LONG_AGO)
        api.put("foreign", labels={"k8s-app": "other"}, **dead)
        api.put("alive", labels=LABELS, **{**dead, "leaseDurationSeconds": 2**31 - 1})
        version = api.leases["dead"]["metadata"]["resourceVersion"]
        metrics = Metrics()
        async with running(keeper(api, metrics).run()):
            await until(lambda: metrics.culled)
            await until(lambda: len(metrics.listed) > 2)
        assert set(api.leases) == {"mute", "foreign", "alive", NAME}
        assert metrics.deleted == [(200, "")] and set(metrics.listed) == {(200, "")}
        deletes = [b for b in api.bodies if b["kind"] == "DeleteOptions"]
        assert deletes == [
            {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "preconditions": {"resourceVersion": version},
            }
        ]

    with_api(tmp_path, test)


def test_a_lease_renewed_after_the_list_is_not_deleted(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        spec = {"holderIdentity": "x", "leaseDurationSeconds": 30, "renewTime": LONG_AGO}
        api.put("late", labels=LABELS, **spec)

        async def renew_first(request: web.Request) -> None:
            if request.method == "DELETE" and api.said("DELETE") == 1:
                api.put("late", labels=LABELS, **spec)

        api.fault = renew_first
        metrics = Metrics()
        async with running(keeper(api, metrics).run()):
            await until(lambda: len(metrics.deleted) >= 2)
        assert metrics.deleted[:2] == [(409, "Conflict"), (200, "")] and metrics.culled == 1

    with_api(tmp_path, test)


def test_an_outage_is_survived_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(api: FakeApi) -> None:
        caplog.set_level(logging.INFO, logger="isthmus.kube")
        metrics = Metrics()
        async with running(keeper(api, metrics).run()):
            await until(lambda: NAME in api.leases)
            await api.stop()
            await until(lambda: metrics.listed.count((0, "")) > 3)
            first = renewed(api)
            await api.start()
            await until(lambda: renewed(api) > first)
            # Once by who renews, once by who collects.
            await until(
                lambda: caplog.messages.count("requests to the Kubernetes API succeed again") == 2
            )
        assert caplog.messages.count("request to the Kubernetes API failed") == 2

    with_api(tmp_path, test)


def test_a_refusal_is_named_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(api: FakeApi) -> None:
        async def forbid(request: web.Request) -> web.StreamResponse | None:
            if request.method == "POST" and api.said("POST") < 3:
                return status(403, "Forbidden", "leases is forbidden")
            return None

        api.fault = forbid
        async with running(keeper(api).run()):
            await until(lambda: NAME in api.leases)
        (line,) = [r for r in caplog.records if r.levelno == logging.WARNING]
        fields = line.__dict__["fields"]
        assert fields["status"] == 403 and "leases is forbidden" in fields["reason"]

    with_api(tmp_path, test)


def test_stopping_without_an_api_does_not_raise(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        kept = keeper(api, timing=SLOW)
        async with running(kept.run()):
            await until(lambda: kept.held)
        await api.stop()
        await kept.stop()
        assert not kept.held

    with_api(tmp_path, test)


def test_a_server_id_that_names_no_lease_is_refused_at_once(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        with pytest.raises(ValueError, match="Server_1"):
            LeaseKeeper(
                api.open().leases("kube-system"),
                server_id=ServerId("Server_1"),
                labels=LABELS,
                metrics=Metrics(),
            )

    with_api(tmp_path, test)
