"""Counting servers by a watch: events, expiry without one, versions too old, and outages."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from fakeapi import FakeApi, running, status, until, with_api

from isthmus.kube.following import WatchTiming
from isthmus.kube.leases import LeaseCounter

LABELS = {"k8s-app": "konnectivity-server"}
SELECTOR = "k8s-app=konnectivity-server"


class Metrics:
    def __init__(self) -> None:
        self.listed: list[tuple[int, str]] = []
        self.watched: list[tuple[int, str]] = []

    def lease_listed(self, status: int, reason: str, seconds: float) -> None:
        self.listed.append((status, reason))

    def lease_watched(self, status: int, reason: str) -> None:
        self.watched.append((status, reason))


class Counting:
    """A counter that runs, and every count that it told."""

    def __init__(self, api: FakeApi, silence_s: float = 1000.0, timeout_s: float = 20.0) -> None:
        self.counts: list[int] = []
        self.metrics = Metrics()
        self.ahead_s = 0.0
        self.counter = LeaseCounter(
            api.open(timeout_s=timeout_s).leases("kube-system"),
            selector=SELECTOR,
            changed=self.counts.append,
            metrics=self.metrics,
            timing=WatchTiming(silence_s=silence_s, first_retry_s=0.005),
            now=lambda: time.time() + self.ahead_s,
        )

    @contextlib.asynccontextmanager
    async def on(self) -> AsyncIterator[Counting]:
        async with running(self.counter.run()):
            yield self


def renew(api: FakeApi, name: str, lasts_s: float = 1000.0, **labels: str) -> None:
    at = datetime.fromtimestamp(time.time() + lasts_s - 1000, UTC).isoformat()
    api.put(name, labels=labels or LABELS, renewTime=at, leaseDurationSeconds=1000)


def test_leases_are_listed_once_and_then_watched(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        renew(api, "a")
        renew(api, "foreign", **{"k8s-app": "other"})
        counting = Counting(api)
        assert counting.counter.count is None
        async with counting.on():
            await until(lambda: counting.counts == [1] and api.watches)
            renew(api, "b")
            await until(lambda: counting.counts == [1, 2])
            renew(api, "a")
            renew(api, "b")
            renew(api, "c")
            await until(lambda: counting.counts == [1, 2, 3])
            api.drop("a")
            api.drop("b")
            await until(lambda: counting.counts == [1, 2, 3, 2, 1])
            api.drop("c")
            renew(api, "d")
            renew(api, "e")
            await until(lambda: counting.counter.count == 2)
        assert counting.metrics.listed == [(200, "")] == counting.metrics.watched
        assert api.said("GET", "leases") == 1 == api.said("GET", "?watch")
        assert all(query["labelSelector"] == SELECTOR for query in api.queries)
        assert api.queries[1]["resourceVersion"] == "102"
        assert api.queries[1]["allowWatchBookmarks"] == "true"

    with_api(tmp_path, test)


def test_a_lease_expires_without_an_event(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        for name in "abc":
            renew(api, name, lasts_s=100_000)
        renew(api, "short")
        async with Counting(api).on() as counting:
            await until(lambda: counting.counts == [4])
            counting.ahead_s = 999.8
            renew(api, "a", lasts_s=100_000)  # an event, the last one for now
            await until(lambda: counting.counts == [4, 3])
            assert api.said("GET") == 2  # nobody had to be asked
            renew(api, "short", lasts_s=100_000)
            await until(lambda: counting.counts == [4, 3, 4])

    with_api(tmp_path, test)


def test_leases_that_say_too_little_do_not_count(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        renew(api, "a")
        renew(api, "b")
        api.put("mute", labels=LABELS, renewTime="2100-01-01T00:00:00.000001Z")
        api.put("timeless", labels=LABELS, leaseDurationSeconds=30)
        api.put("empty", labels=LABELS)
        acquired = datetime.now(UTC).isoformat()
        api.put("acquired", labels=LABELS, acquireTime=acquired, leaseDurationSeconds=1000)
        async with Counting(api).on() as counting:
            await until(lambda: counting.counts)
            assert counting.counts == [3]

    with_api(tmp_path, test)


def test_a_watch_that_ends_goes_on_where_it_was_without_a_list(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        renew(api, "a")
        async with Counting(api).on() as counting:
            await until(lambda: api.watches == 1)
            renew(api, "b")
            await until(lambda: counting.counts == [1, 2])
            api.cut()
            renew(api, "c")
            await until(lambda: counting.counts == [1, 2, 3])
            assert counting.metrics.listed == [(200, "")]
            assert api.queries[-1]["resourceVersion"] == "102"

    with_api(tmp_path, test)


def test_a_version_too_old_is_listed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(api: FakeApi) -> None:
        renew(api, "a")
        async with Counting(api).on() as counting:
            await until(lambda: api.watches == 1)
            renew(api, "b")
            await until(lambda: counting.counts == [1, 2])
            api.history.clear()
            api.drop("b")
            api.history.clear()  # the watch will never hear of it
            renew(api, "c")
            renew(api, "d")
            renew(api, "e")
            api.history.clear()
            api.oldest = api.version
            api.cut()
            await until(lambda: counting.counts[-1] == 4)
            assert (410, "Expired") in counting.metrics.watched
            assert counting.metrics.listed == [(200, ""), (200, "")]
        assert not caplog.records  # nothing that anybody has to know

    with_api(tmp_path, test)


def test_gone_inside_a_watch_is_listed_again(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        renew(api, "a")
        broken: list[web.StreamResponse] = []

        async def gone(request: web.Request) -> web.StreamResponse | None:
            if "watch" not in request.query or len(broken) == 3:
                return None
            answer = web.StreamResponse()
            broken.append(answer)
            await answer.prepare(request)
            why = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            await answer.write(json.dumps({"type": "ERROR", "object": why}).encode() + b"\n")
            return answer

        api.fault = gone
        async with Counting(api).on() as counting:
            await until(lambda: api.watches == 1)
            assert len(counting.metrics.listed) == 4
            renew(api, "b")
            await until(lambda: counting.counts == [1, 2])

    with_api(tmp_path, test)


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"NEW","object":{}}\n',
        b'{"type":"ADDED","object":{"spec":{"renewTime":"yesterday"}}}\n',
        b'{"type":"ADDED","object":[]}\n',
        b"\xff\xfe\n",
        b"x" * (1024 * 1024 + 1),
    ],
    ids=lambda line: line[:30].decode("latin-1"),
)
def test_garbage_in_a_watch_is_one_line_of_log_and_a_new_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: bytes
) -> None:
    async def test(api: FakeApi) -> None:
        renew(api, "a")
        renew(api, "b")

        async def garbage(request: web.Request) -> web.StreamResponse | None:
            if "watch" not in request.query or api.said("GET", "?watch") > 3:
                return None
            answer = web.StreamResponse()
            await answer.prepare(request)
            await answer.write(line)
            return answer

        api.fault = garbage
        async with Counting(api).on() as counting:
            await until(lambda: api.watches == 1)
            assert counting.counts == [2]
            renew(api, "c")
            await until(lambda: counting.counts == [2, 3])
        (said,) = [r for r in caplog.records if r.levelno == logging.WARNING]
        assert "cannot decode the answer" in said.__dict__["fields"]["reason"]

    with_api(tmp_path, test)


def test_the_count_stands_while_the_api_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(api: FakeApi) -> None:
        caplog.set_level(logging.INFO, logger="isthmus.kube")
        for name in "abc":
            renew(api, name)
        async with Counting(api).on() as counting:
            await until(lambda: counting.counts == [3] and api.watches)
            await api.stop()
            await until(lambda: counting.metrics.listed.count((0, "")) >= 2)
            counting.ahead_s = 5000  # every Lease would have expired by now
            await until(lambda: counting.metrics.listed.count((0, "")) >= 5)
            assert counting.counts == [3] and counting.counter.count == 3
            assert counting.counter._timer is None  # nor will they seem to expire later
            counting.ahead_s = 0
            api.drop("a")
            await api.start()
            await until(lambda: counting.counts == [3, 2])
            await until(lambda: api.watches == 2)
            renew(api, "b")
            await until(lambda: any("succeed again" in r.getMessage() for r in caplog.records))
        warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
        assert len(warnings) == 1

    with_api(tmp_path, test)


def test_refused_lists_keep_the_last_good_count(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        renew(api, "a")
        renew(api, "b")

        async def refuse(request: web.Request) -> web.StreamResponse | None:
            if "watch" in request.query:
                return status(410, "Expired") if api.said("GET", "?watch") == 2 else None
            if api.said("GET", "leases") in (2, 3):
                return status(500, "InternalError")
            return None

        api.fault = refuse
        async with Counting(api).on() as counting:
            await until(lambda: api.watches == 1)
            renew(api, "c")
            await until(lambda: counting.counts == [2, 3])
            api.cut()
            await until(lambda: api.watches == 2)
            assert counting.metrics.listed == [
                (200, ""), (500, "InternalError"), (500, "InternalError"), (200, ""),
            ]  # fmt: skip
            assert counting.counts == [2, 3]

    with_api(tmp_path, test)


def test_a_watch_that_is_too_quiet_is_listed_again(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        renew(api, "a")
        async with Counting(api, silence_s=0.05).on() as counting:
            await until(lambda: api.watches == 1)
            renew(api, "b")
            await until(lambda: counting.counts == [1, 2])
            renew(api, "c")
            api.history.clear()  # as if the connection had died without a word
            await until(lambda: counting.counts == [1, 2, 3])

    with_api(tmp_path, test)


def test_an_api_that_does_not_answer_is_given_up_in_time(tmp_path: Path) -> None:
    async def test(api: FakeApi) -> None:
        async def hang(request: web.Request) -> web.StreamResponse | None:
            if api.said("GET") < 3:
                await until(lambda: False)
            return None

        api.fault = hang
        renew(api, "a")
        renew(api, "b")
        async with Counting(api, timeout_s=0.05).on() as counting:
            await until(lambda: counting.counts == [2])
            assert counting.metrics.listed[:2] == [(0, ""), (0, "")]

    with_api(tmp_path, test)
