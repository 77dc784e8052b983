"""The HTTP pages of the node proxy: the health port and the metrics port, as kube-proxy has them.

Handlers ask what they are given; the health itself is programs/node_proxy/kernel/health.py. Both
ports are served by ports.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial

from aiohttp import web

from isthmus.frame.admin.answers import HEADERS, PING, Handler, Routes, reply
from isthmus.frame.admin.routes import metrics_route, probe_routes
from isthmus.programs.node_proxy.kernel.health import ProbeAnswer, ProxyHealth
from isthmus.programs.node_proxy.metrics import NodeProxyMetrics

#: kube-proxy's key in ``/configz``.
CONFIG_GROUP = "kubeproxy.config.k8s.io"


def health_routes(health: ProxyHealth, metrics: NodeProxyMetrics) -> Routes:
    """Give the paths of --healthz-bind-address; every answer is counted by its status."""
    return {
        "/healthz": partial(_probe, health.healthz, metrics.healthz_answered),
        "/livez": partial(_probe, health.livez, metrics.livez_answered),
    }


def metrics_routes(
    metrics: NodeProxyMetrics, *, mode: str, config: Callable[[], Mapping[str, object]]
) -> Routes:
    """Give the paths of --metrics-bind-address.

    ``mode`` is the word for what programs the kernel; ``config`` gives the settings in force, as
    a KubeProxyConfiguration.
    """
    ours = probe_routes(lambda: [PING], lambda: [PING])
    return {
        "/metrics": metrics_route(metrics.render, metrics.render_open),
        "/metrics/slis": partial(_slis, metrics),
        "/healthz": partial(_ping, metrics, ours["/healthz"]),
        "/healthz/ping": partial(_ping, metrics, ours["/healthz"]),
        "/proxyMode": partial(_mode, mode),
        "/configz": partial(_configz, config),
    }


async def _probe(
    ask: Callable[[], ProbeAnswer], count: Callable[[int], None], request: web.BaseRequest
) -> web.Response:
    answer = ask()
    count(answer.status)
    return web.Response(
        status=answer.status, text=answer.body, content_type="application/json", headers=HEADERS
    )


async def _ping(
    metrics: NodeProxyMetrics, handler: Handler, request: web.BaseRequest
) -> web.StreamResponse:
    metrics.pinged()
    return await handler(request)


async def _slis(metrics: NodeProxyMetrics, request: web.BaseRequest) -> web.Response:
    return web.Response(
        body=metrics.render_slis(),
        headers={**HEADERS, "Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
    )


async def _mode(mode: str, request: web.BaseRequest) -> web.Response:
    return reply(200, mode)


async def _configz(
    config: Callable[[], Mapping[str, object]], request: web.BaseRequest
) -> web.Response:
    body = json.dumps({CONFIG_GROUP: config()})
    return web.Response(text=body, content_type="application/json", headers=HEADERS)
