"""Health check node ports on real sockets, asked with httpx."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from isthmus.dial.rules_service_names import ServiceName
from isthmus.net import http_site
from isthmus.programs.node_proxy.kernel.health import WEIGHT_HEADER, ProxyHealth, ServiceHealthPorts
from isthmus.programs.node_proxy.rules.model import IpFamily
from isthmus.testing.clock import ManualClock

WEB = ServiceName("shop", "web")
CART = ServiceName("shop", "cart")
LOOPBACK = ("127.0.0.1",)

Test = Callable[[ServiceHealthPorts, ProxyHealth, httpx.AsyncClient, ManualClock], Awaitable[None]]


@asynccontextmanager
async def bed() -> AsyncIterator[
    tuple[ServiceHealthPorts, ProxyHealth, httpx.AsyncClient, ManualClock]
]:
    clock = ManualClock()
    health = ProxyHealth(timeout_s=60, clock=clock)
    ports = ServiceHealthPorts(health)
    async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
        try:
            yield ports, health, client, clock
        finally:
            await ports.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def run(test: Test) -> None:
    async def inside() -> None:
        async with bed() as (ports, health, client, clock):
            await test(ports, health, client, clock)

    asyncio.run(inside())


def test_counts_decide_and_are_shown() -> None:
    async def test(
        ports: ServiceHealthPorts, health: ProxyHealth, client: httpx.AsyncClient, _: ManualClock
    ) -> None:
        web, cart = free_port(), free_port()
        await ports.sync({WEB: web, CART: cart}, {WEB: 3}, addresses=LOOPBACK)
        answer = await client.get(f"http://127.0.0.1:{web}/")
        assert answer.status_code == 200
        assert answer.headers[WEIGHT_HEADER] == "3"
        assert answer.headers["content-type"].startswith("application/json")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.text == (
            '{\n\t"service": {\n\t\t"namespace": "shop",\n\t\t"name": "web"\n\t},\n'
            '\t"localEndpoints": 3,\n\t"serviceProxyHealthy": true\n}'
        )
        # Any path will do, as in kube-proxy.
        none = await client.get(f"http://127.0.0.1:{cart}/healthz/whatever")
        assert (none.status_code, none.headers[WEIGHT_HEADER]) == (503, "0")
        assert none.json()["service"]["name"] == "cart"
        await ports.sync({WEB: web, CART: cart}, {CART: 1}, addresses=LOOPBACK)
        assert (await client.get(f"http://127.0.0.1:{web}/")).status_code == 503
        assert (await client.get(f"http://127.0.0.1:{cart}/")).status_code == 200

    run(test)


def test_a_proxy_that_does_not_keep_up_takes_no_traffic() -> None:
    async def test(
        ports: ServiceHealthPorts,
        health: ProxyHealth,
        client: httpx.AsyncClient,
        clock: ManualClock,
    ) -> None:
        port = free_port()
        await ports.sync({WEB: port}, {WEB: 1}, addresses=LOOPBACK)
        health.queued(IpFamily.IPV4)
        clock.advance(60)
        answer = await client.get(f"http://127.0.0.1:{port}/")
        assert (answer.status_code, answer.headers[WEIGHT_HEADER]) == (503, "1")
        assert answer.json()["serviceProxyHealthy"] is False
        # A node about to go is a matter of /healthz, not of these.
        health.synced(IpFamily.IPV4)
        health.node(None)
        assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 200

    run(test)


def test_ports_come_go_and_change_hands() -> None:
    async def test(
        ports: ServiceHealthPorts, health: ProxyHealth, client: httpx.AsyncClient, _: ManualClock
    ) -> None:
        first, second = free_port(), free_port()
        await ports.sync({WEB: first}, {WEB: 1}, addresses=LOOPBACK)
        assert (await client.get(f"http://127.0.0.1:{first}/")).json()["service"]["name"] == "web"
        await ports.sync({CART: first, WEB: second}, {WEB: 1}, addresses=LOOPBACK)
        # The same kept connection, and the port is another Service's now.
        assert (await client.get(f"http://127.0.0.1:{first}/")).json()["service"]["name"] == "cart"
        assert (await client.get(f"http://127.0.0.1:{second}/")).json()["service"]["name"] == "web"
        await ports.sync({WEB: second}, {WEB: 1}, addresses=LOOPBACK)
        # What is kept of a closed port says so once, and a new connection is refused.
        assert (await client.get(f"http://127.0.0.1:{first}/")).status_code == 404
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://127.0.0.1:{first}/")

    run(test)


def test_a_port_in_use_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def test(
        ports: ServiceHealthPorts, health: ProxyHealth, client: httpx.AsyncClient, _: ManualClock
    ) -> None:
        other = free_port()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = int(taken.getsockname()[1])
            for _unused in range(3):
                await ports.sync({WEB: port, CART: other}, {WEB: 1}, addresses=LOOPBACK)
            assert list(ports.failed) == [("127.0.0.1", port)]
            said = [each for each in caplog.records if "cannot open" in each.message]
            assert len(said) == 1
            assert (await client.get(f"http://127.0.0.1:{other}/")).status_code == 503
        await ports.sync({WEB: port, CART: other}, {WEB: 1}, addresses=LOOPBACK)
        assert not ports.failed
        assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 200
        await ports.sync({}, {}, addresses=LOOPBACK)
        assert not ports.failed

    run(test)


def test_every_address_is_both_families_where_there_are_two() -> None:
    async def test(
        ports: ServiceHealthPorts, health: ProxyHealth, client: httpx.AsyncClient, _: ManualClock
    ) -> None:
        port = free_port()
        await ports.sync({WEB: port}, {WEB: 1})
        assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 200
        assert not ports.failed
        if socket.has_ipv6:
            assert (await client.get(f"http://[::1]:{port}/")).status_code == 200
        # One address instead of all: the others are let go.
        await ports.sync({WEB: port}, {WEB: 1}, addresses=("127.0.0.2",))
        assert (await client.get(f"http://127.0.0.2:{port}/")).status_code == 200

    run(test)


def test_a_flood_takes_no_more_than_the_places_of_all_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_site, "MOST_OPEN", 4)

    async def test(
        ports: ServiceHealthPorts, health: ProxyHealth, client: httpx.AsyncClient, _: ManualClock
    ) -> None:
        web, cart = free_port(), free_port()
        await ports.sync({WEB: web, CART: cart}, {WEB: 3}, addresses=LOOPBACK)
        silent = [await asyncio.open_connection("127.0.0.1", cart) for _ in range(10)]
        assert (await client.get(f"http://127.0.0.1:{web}/")).status_code in (200, 503)
        async with asyncio.timeout(20):
            for reader, _writer in silent[:7]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        assert len(ports._visitors) <= 4
        for _reader, writer in silent:
            writer.close()

    run(test)
