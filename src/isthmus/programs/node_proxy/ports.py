"""The node proxy's own ports: health and metrics, with kube-proxy's paths.

They are opened at once, or when kube-proxy releases them. kernel/health.py computes the health.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from aiohttp import web
from typing_extensions import override

from isthmus.errors import ConfigError
from isthmus.frame.admin import ports
from isthmus.frame.admin.answers import (
    HEADERS,
    PING,
    Check,
    Checks,
    Handler,
    Routes,
    json_reply,
    reply,
)
from isthmus.frame.admin.debug_routes import debug_routes
from isthmus.frame.admin.guard import health_tls, say_refused
from isthmus.frame.admin.routes import AGENT, metrics_route, probe_routes
from isthmus.frame.model.snapshot import to_json
from isthmus.frame.part import LongTask, Part
from isthmus.logs import OncePer, log
from isthmus.net.contexts import HotContext, watch
from isthmus.programs.node_proxy.kernel.health import ProbeAnswer, ProxyHealth
from isthmus.programs.node_proxy.metrics import NodeProxyMetrics
from isthmus.programs.node_proxy.settings import (
    HEALTHZ_PORT,
    METRICS_PORT,
    BindAddress,
    NodeProxySettings,
)
from isthmus.programs.node_proxy.settings_file import document
from isthmus.programs.node_proxy.view import NodeProxyView

#: The key of kube-proxy's configuration in ``/configz``.
CONFIG_GROUP = "kubeproxy.config.k8s.io"


def health_routes(health: ProxyHealth, metrics: NodeProxyMetrics, ready: Checks) -> Routes:
    """The paths of --healthz-bind-address; a counter of kube-proxy's counts answers by status."""
    ours = probe_routes(lambda: [PING], ready, AGENT)
    return {
        "/healthz": partial(_probe, health.healthz, metrics.healthz_answered),
        "/livez": partial(_probe, health.livez, metrics.livez_answered),
        "/readyz": ours["/readyz"],
    }


def metrics_routes(
    metrics: NodeProxyMetrics,
    *,
    mode: str,
    config: Callable[[], Mapping[str, object]],
    view: Callable[[], NodeProxyView | None],
) -> Routes:
    """The paths of --metrics-bind-address.

    ``mode`` is the proxy mode; ``config`` returns the settings as a KubeProxyConfiguration;
    ``view`` returns the snapshot, None before the program has started.
    """
    ours = probe_routes(lambda: [PING], lambda: [PING])
    return {
        "/metrics": metrics_route(metrics.render, metrics.render_open),
        "/metrics/slis": partial(_slis, metrics),
        "/healthz": partial(_ping, metrics, ours["/healthz"]),
        "/healthz/ping": partial(_ping, metrics, ours["/healthz"]),
        "/proxyMode": partial(_mode, mode),
        "/configz": partial(_configz, config),
        "/snapshot": partial(_snapshot, view),
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


#: The interval of attempts to open a port that kube-proxy has.
RETRY_S = 0.5
_log = logging.getLogger("isthmus.node_proxy")


async def _snapshot(
    look: Callable[[], NodeProxyView | None], request: web.BaseRequest
) -> web.Response:
    view = look()
    return reply(503, "starting\n") if view is None else json_reply(json.dumps(to_json(view)))


class OwnPorts(Part):
    """The ports "healthz" and "metrics", as far as the settings enable them.

    ``waiting_for`` and ``look`` return what /readyz and /snapshot show. ``open_ones`` are the open
    ports. With ``wait_for_busy`` a port in use is opened when it becomes free.
    """

    def __init__(
        self, settings: NodeProxySettings, health: ProxyHealth, metrics: NodeProxyMetrics
    ) -> None:
        self.wait_for_busy = False
        self._once = OncePer()
        self.open_ones: dict[str, ports.Port] = {}
        self._tls = health_tls(settings.health_cert, settings.health_key)
        self.waiting_for: Callable[[], str] = lambda: "starting"
        self.look: Callable[[], NodeProxyView | None] = lambda: None
        pages = metrics_routes(
            metrics, mode=settings.mode, config=partial(document, settings),
            view=lambda: self.look(),
        )  # fmt: skip
        self._wanted: dict[str, tuple[BindAddress | None, Routes]] = {
            "healthz": (settings.healthz, health_routes(health, metrics, self._checks)),
            "metrics": (settings.metrics, {**pages, **debug_routes(settings.profiling)}),
        }

    def __repr__(self) -> str:
        return f"<OwnPorts {', '.join(self.open_ones)}>"

    def _checks(self) -> list[Check]:
        waiting_for = self.waiting_for()
        return [PING, Check("rules", waiting_for and f"waiting for {waiting_for}")]

    def number(self, name: str) -> int:
        return self.open_ones[name].number if name in self.open_ones else 0

    def foreign(self) -> set[int]:
        """Ports that another node proxy may answer on: its defaults, and those not opened yet."""
        wanted = {bound.port for bound, _ in self._wanted.values() if bound is not None}
        numbers = {HEALTHZ_PORT, METRICS_PORT, *wanted} - {0}
        return numbers - {port.number for port in self.open_ones.values()}

    @override
    async def open(self) -> None:
        for name, (bound, routes) in self._wanted.items():
            if bound is None or name in self.open_ones:
                continue
            try:
                self.open_ones[name] = await _serve(name, bound, routes, self._access(name))
            except ConfigError as error:
                if not (self.wait_for_busy and _is_in_use(error)):
                    raise

    @override
    def tasks(self) -> Iterable[LongTask]:
        yield "ports", self._retry()
        if self._tls is not None:
            yield "reload", watch([self._tls])

    @override
    def contexts(self) -> Iterable[HotContext]:
        return () if self._tls is None else (self._tls,)

    def _access(self, name: str) -> ports.PortAccess:
        return ports.PortAccess(tls=self._tls, refused=partial(say_refused, self._once, port=name))

    @override
    def serving(self) -> Mapping[str, Any]:
        return {f"{name}_port": self.number(name) for name in self._wanted}

    async def _retry(self) -> None:
        """Open the remaining ports as soon as they become free."""
        waiting = self._waiting()
        for name in waiting:
            log(_log, logging.INFO, "waiting for kube-proxy to release a port", port=name)
        while waiting:
            await asyncio.sleep(RETRY_S)
            await self.open()
            for name in waiting - self._waiting():
                log(_log, logging.INFO, "own port opened", port=name,
                    number=self.number(name))  # fmt: skip
            waiting = self._waiting()

    def _waiting(self) -> set[str]:
        return {
            name
            for name, (bound, _) in self._wanted.items()
            if bound is not None and name not in self.open_ones
        }

    @override
    async def wait_closed(self) -> None:
        for port in self.open_ones.values():
            await port.close()
        self.open_ones.clear()


def _is_in_use(error: ConfigError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE


async def _serve(
    name: str, bound: BindAddress, routes: Routes, access: ports.PortAccess
) -> ports.Port:
    flag = f"--{name}-bind-address"
    # kube-proxy binds 0.0.0.0 for both families.
    host = "" if bound.host in ("0.0.0.0", "::") else bound.host
    return await ports.serve(
        routes, host=host, port=bound.port, host_flag=flag, port_flag=flag, access=access
    )
