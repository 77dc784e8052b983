"""Services by a watch: events, pages, versions too old, outages, and APIs that forbid listing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from fakeapi import running, until
from fakeservices import FakeServices, status, with_services

from isthmus.dial.rules_service_names import Service, ServiceName
from isthmus.errors import KubeError
from isthmus.kube.services import ServiceWatch

API = ServiceName("web", "api")


def watching(api: FakeServices, **how: float) -> ServiceWatch:
    return ServiceWatch(api.open().services(), first_retry_s=0.005, **how)


def test_services_are_listed_once_and_then_watched(tmp_path: Path) -> None:
    async def test(api: FakeServices) -> None:
        tcp = {"ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"port": 5353}]}
        api.put("web/api", "10.0.0.1", "fd00::1", **tcp)
        api.put("web/pods")
        api.put_external("web/far", "far.example.com")
        watch = watching(api)
        async with running(watch.run()):
            found = await watch.find(API)
            assert found == Service(at=API, addresses=("10.0.0.1", "fd00::1"), ports=(("", 5353),))
            headless = await watch.find(ServiceName("web", "pods"))
            assert headless is not None
            assert headless.headless
            far = await watch.find(ServiceName("web", "far"))
            assert far is not None
            assert far.external_name == "far.example.com"
            assert await watch.find(ServiceName("web", "none")) is None
            assert watch.has_address("10.0.0.1")
            assert watch.has_address("fd00:0::1")
            assert not watch.has_address("10.0.0.2")
            assert repr(watch) == "<ServiceWatch 3>"

            await until(lambda: api.watches)
            api.put("web/new", "10.0.0.9")
            await until(lambda: watch.known(ServiceName("web", "new")))
            api.put("web/api", "10.0.0.2")
            await until(lambda: watch.has_address("10.0.0.2"))
            assert not watch.has_address("10.0.0.1")
            api.drop("web/api")
            await until(lambda: watch.known(API) is None)
            assert not watch.has_address("10.0.0.2")
            assert api.asked == ["list", "watch"]

    with_services(tmp_path, test)


def test_an_address_that_went_to_another_service_stays_known(tmp_path: Path) -> None:
    async def test(api: FakeServices) -> None:
        api.put("web/old", "10.0.0.1")
        watch = watching(api)
        async with running(watch.run()):
            await until(lambda: watch.listed and api.watches)
            api.put("web/new", "10.0.0.1")
            api.drop("web/old")
            await until(lambda: watch.known(ServiceName("web", "old")) is None)
            assert watch.has_address("10.0.0.1")

    with_services(tmp_path, test)


def test_a_long_list_comes_in_pages(tmp_path: Path) -> None:
    async def test(api: FakeServices) -> None:
        api.page = 3
        for number in range(10):
            api.put(f"web/s{number}", f"10.0.0.{number}")
        watch = watching(api)
        async with running(watch.run()):
            assert await watch.find(ServiceName("web", "s9")) is not None
            assert len(watch) == 10
            assert api.asked[:4] == ["list"] * 4

    with_services(tmp_path, test)


def test_a_watch_goes_on_where_it_was_after_it_ended(tmp_path: Path) -> None:
    async def test(api: FakeServices) -> None:
        watch = watching(api)
        async with running(watch.run()):
            await until(lambda: api.watches == 1)
            api.put("web/api", "10.0.0.1")
            await until(lambda: watch.known(API))
            api.cut()
            await until(lambda: api.watches == 2)
            api.put("web/api", "10.0.0.2")
            await until(lambda: watch.has_address("10.0.0.2"))
            assert api.asked.count("list") == 1

    with_services(tmp_path, test)


def test_a_version_too_old_is_listed_again(tmp_path: Path) -> None:
    async def test(api: FakeServices) -> None:
        watch = watching(api)
        async with running(watch.run()):
            await until(lambda: api.watches == 1)
            api.put("web/other", "10.0.0.7")
            await until(lambda: watch.known(ServiceName("web", "other")))
            api.cut()
            api.put("web/api", "10.0.0.1")
            api.drop("web/other")
            api.history.clear()
            api.forget_before_now()
            await until(lambda: watch.known(API))
            assert watch.known(ServiceName("web", "other")) is None
            assert api.asked.count("list") == 2

    with_services(tmp_path, test)


def test_what_was_known_stands_while_the_api_is_away(tmp_path: Path) -> None:
    async def test(api: FakeServices) -> None:
        api.put("web/api", "10.0.0.1")
        watch = watching(api)
        async with running(watch.run()):
            await until(lambda: api.watches == 1)
            await api.stop()
            api.put("web/api", "10.0.0.2")
            assert (await watch.find(API)) is not None
            await api.start()
            await until(lambda: watch.has_address("10.0.0.2"))

    with_services(tmp_path, test)


def test_a_watch_that_is_too_quiet_is_opened_anew(tmp_path: Path) -> None:
    async def test(api: FakeServices) -> None:
        watch = watching(api, silence_s=0.05)
        async with running(watch.run()):
            await until(lambda: api.watches >= 3)
            assert api.asked.count("list") == 1
            api.bookmark()
            api.put("web/api", "10.0.0.1")
            await until(lambda: watch.known(API))

    with_services(tmp_path, test)


def test_before_the_first_listing_lookups_wait_but_not_for_ever(tmp_path: Path) -> None:
    async def test(api: FakeServices) -> None:
        watch = watching(api, first_listing_s=0.02)
        with pytest.raises(KubeError, match="not answered yet"):
            await watch.find(API)
        await api.stop()
        async with running(watch.run()):
            with pytest.raises(KubeError):
                while True:
                    await watch.find(API)
            await until(lambda: watch._tried.is_set())
            with pytest.raises(KubeError, match="cannot list Services"):
                await watch.find(API)
            api.put("web/api", "10.0.0.1")
            await api.start()
            await until(lambda: watch.listed)
            assert await watch.find(API) is not None

    with_services(tmp_path, test)


def test_a_waiting_lookup_can_be_cancelled(tmp_path: Path) -> None:
    async def test(api: FakeServices) -> None:
        watch = watching(api)
        work = asyncio.ensure_future(watch.find(API))
        await asyncio.sleep(0)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    with_services(tmp_path, test)


def test_where_listing_is_forbidden_each_is_read_and_remembered(tmp_path: Path) -> None:
    def forbid(request: web.Request) -> web.StreamResponse | None:
        return status(403, "Forbidden") if request.path == "/api/v1/services" else None

    async def test(api: FakeServices) -> None:
        now = 0.0
        api.fault = forbid
        api.put("web/api", "10.0.0.1")
        watch = ServiceWatch(
            api.open().services(), first_retry_s=1000, keep_s=30, clock=lambda: now
        )
        async with running(watch.run()):
            for _ in range(2):
                found = await watch.find(API)
                assert found is not None
                assert found.addresses == ("10.0.0.1",)
                assert await watch.find(ServiceName("web", "none")) is None
            assert watch.forbidden
            gets = [path for path in api.asked if path.startswith("/")]
            assert gets == [
                "/api/v1/namespaces/web/services/api",
                "/api/v1/namespaces/web/services/none",
            ]
            now = 31.0
            api.put("web/api", "10.0.0.2")
            found = await watch.find(API)
            assert found is not None
            assert found.addresses == ("10.0.0.2",)

    with_services(tmp_path, test)


def test_an_answer_that_makes_no_sense_is_an_outage_and_no_crash(tmp_path: Path) -> None:
    def nonsense(request: web.Request) -> web.StreamResponse | None:
        return web.Response(text='{"items": 5}')

    async def test(api: FakeServices) -> None:
        api.fault = nonsense
        watch = watching(api)
        async with running(watch.run()):
            with pytest.raises(KubeError, match="cannot decode the answer"):
                await watch.find(API)
            api.fault = None
            await until(lambda: watch.listed)

    with_services(tmp_path, test)
