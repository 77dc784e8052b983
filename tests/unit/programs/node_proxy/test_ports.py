"""The node proxy's own ports, when somebody has them."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
from pathlib import Path
from urllib.request import urlopen

import pytest

from isthmus.errors import ConfigError
from isthmus.programs.node_proxy import ports as node_proxy_ports
from isthmus.programs.node_proxy.kernel.health import ProxyHealth
from isthmus.programs.node_proxy.metrics import NodeProxyMetrics
from isthmus.programs.node_proxy.ports import OwnPorts
from isthmus.programs.node_proxy.settings import NodeProxySettings
from isthmus.tools.pki import making

LIMIT_S = 20.0


def ports(healthz: int, metrics: int) -> OwnPorts:
    settings = NodeProxySettings(
        healthz_bind_address=f"127.0.0.1:{healthz}", metrics_bind_address=f"127.0.0.1:{metrics}"
    )
    return OwnPorts(settings, ProxyHealth(timeout_s=1), NodeProxyMetrics("iptables"))


def test_a_port_in_use_is_a_sentence_or_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_proxy_ports, "RETRY_S", 0.01)

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as busy:
            number = busy.getsockname()[1]
            own = ports(number, 0)
            with pytest.raises(ConfigError, match=f"--healthz-.*: port {number} .*in use"):
                await own.open()
            own.wait_for_busy = True
            await own.open()
            assert list(own.open_ones) == ["metrics"]
            assert number in own.foreign()
            ((_, retry),) = own.tasks()
            retrying = asyncio.ensure_future(retry)
            await asyncio.sleep(0.05)
            assert not retrying.done()
        await asyncio.wait_for(retrying, LIMIT_S)
        assert own.number("healthz") == number
        assert number not in own.foreign()
        await own.wait_closed()
        assert own.number("healthz") == 0

    asyncio.run(run())


def test_an_address_that_is_not_ours_is_not_waited_for() -> None:
    async def run() -> None:
        settings = NodeProxySettings(healthz_bind_address="192.0.2.1:1")
        own = OwnPorts(settings, ProxyHealth(timeout_s=1), NodeProxyMetrics("iptables"))
        own.wait_for_busy = True
        with pytest.raises(ConfigError, match="not an address of this machine"):
            await own.open()

    asyncio.run(run())


def test_another_proxy_is_looked_for_at_its_ports_and_at_ours() -> None:
    async def run() -> None:
        assert ports(7, 8).foreign() == {10256, 10249, 7, 8}
        assert ports(0, 0).foreign() == {10256, 10249}

    asyncio.run(run())


def test_both_ports_by_https(tmp_path: Path) -> None:
    files = making.init(tmp_path / "pki", server_names=("localhost", "127.0.0.1"))
    settings = NodeProxySettings(
        healthz_bind_address="127.0.0.1:0", metrics_bind_address="127.0.0.1:0",
        health_cert=str(files.server_cert), health_key=str(files.server_key),
    )  # fmt: skip

    def status(number: int, path: str) -> int:
        context = ssl.create_default_context(cafile=str(files.ca_cert))
        asked = http.client.HTTPSConnection("localhost", number, timeout=LIMIT_S, context=context)
        with contextlib.closing(asked) as connection:
            connection.request("GET", path)
            return connection.getresponse().status

    async def run() -> None:
        own = OwnPorts(settings, ProxyHealth(timeout_s=1), NodeProxyMetrics("iptables"))
        await own.open()
        assert {name for name, task in own.tasks() if not task.close()} == {"ports", "reload"}
        assert [it.files.cert for it in own.contexts()] == [settings.health_cert]
        for name, path in (("healthz", "/livez"), ("metrics", "/metrics")):
            number = own.number(name)
            assert await asyncio.to_thread(status, number, path) in (200, 503)
            with pytest.raises((http.client.HTTPException, OSError)):
                await asyncio.to_thread(urlopen, f"http://localhost:{number}{path}")
        await own.wait_closed()

    asyncio.run(run())


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ConfigError, match="--health-cert needs --health-key as well"):
        NodeProxySettings(health_cert="a.crt").validate()
