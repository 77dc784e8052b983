"""The node proxy's health and metrics ports, on real ports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx

from isthmus.frame.admin.answers import PING, Check, Routes
from isthmus.frame.admin.ports import serve
from isthmus.programs.node_proxy.kernel.health import ProxyHealth
from isthmus.programs.node_proxy.metrics import NodeProxyMetrics
from isthmus.programs.node_proxy.ports import health_routes, metrics_routes
from isthmus.programs.node_proxy.rules.model import IpFamily, NodeObject
from isthmus.testing.clock import ManualClock


def ask(routes: Routes, test: Callable[[str], None]) -> None:
    async def inside() -> None:
        port = await serve(
            routes,
            host="127.0.0.1",
            port=0,
            host_flag="--healthz-bind-address",
            port_flag="--healthz-bind-address",
        )
        try:
            await asyncio.to_thread(test, f"http://127.0.0.1:{port.number}")
        finally:
            await port.close()

    asyncio.run(inside())


def test_the_health_port() -> None:
    clock = ManualClock()
    health, metrics = ProxyHealth(timeout_s=60, clock=clock), NodeProxyMetrics()
    health.node(NodeObject(name="n"))

    def test(url: str) -> None:
        with httpx.Client(base_url=url, trust_env=False) as client:
            assert client.get("/healthz").json()["healthy"] is True
            health.node(None)
            answer = client.get("/healthz")
            assert (answer.status_code, answer.json()["nodeEligible"]) == (503, False)
            assert answer.headers["content-type"].startswith("application/json")
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert client.get("/livez").status_code == 200
            health.queued(IpFamily.IPV4)
            clock.advance(60)
            assert client.get("/livez").status_code == 503
            assert client.get("/metrics").status_code == 404
            ready = client.get("/readyz")
            assert (ready.status_code, ready.text) == (
                503,
                "[+]ping ok\n[-]rules failed: not yet\n",
            )

    ask(health_routes(health, metrics, lambda: [PING, Check("rules", "not yet")]), test)
    assert metrics.healthz_codes == {"200": 1, "503": 1}
    assert metrics.livez_codes == {"200": 1, "503": 1}


def test_the_metrics_port() -> None:
    metrics = NodeProxyMetrics("nftables")
    config = {"kind": "KubeProxyConfiguration", "mode": "nftables"}

    def test(url: str) -> None:
        with httpx.Client(base_url=url, trust_env=False) as client:
            mode = client.get("/proxyMode")
            assert (mode.text, mode.headers["content-type"]) == (
                "nftables",
                "text/plain; charset=utf-8",
            )
            assert client.get("/healthz").text == "ok"
            assert client.get("/configz").json() == {"kubeproxy.config.k8s.io": config}
            assert "kubeproxy_sync_proxy_rules_service_changes_total" in client.get("/metrics").text
            assert 'kubernetes_healthchecks_total{name="ping"' in client.get("/metrics/slis").text
            assert client.get("/snapshot").status_code == 503

    pages = metrics_routes(metrics, mode="nftables", config=lambda: config, view=lambda: None)
    ask(pages, test)
