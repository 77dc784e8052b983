"""A program that is watched, and its ports, asked over real sockets on loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from isthmus.frame.admin.answers import Checks, Metrics, Routes, Snapshot, Watched
from isthmus.frame.admin.ports import AdminAccess, Port, serve
from isthmus.frame.model.history import History
from isthmus.frame.model.snapshot import ServerView, Totals, TunnelState, TunnelView
from isthmus.programs.server.settings import ServerSettings
from isthmus.values import AgentId, ServerId, TunnelId

TUNNELS = 2500


def view(limit: int) -> ServerView:
    shown = min(limit, TUNNELS)
    return ServerView(
        server_id=ServerId("s1"),
        version="0.1.0",
        uptime_s=1.0,
        draining=False,
        totals=Totals(),
        agents=(),
        links=(),
        tunnels=tuple(
            TunnelView(
                id=TunnelId(n),
                frontend="http-connect",
                requester="uid:0",
                target="demo.internal:80",
                agent_id=AgentId("a"),
                link_id=1,
                state=TunnelState.OPEN,
                age_s=0.0,
                bytes_to_target=0,
                bytes_to_client=0,
            )
            for n in range(shown)
        ),
        truncated=TUNNELS - shown,
    )


def watched(
    *,
    live: Checks = list,
    ready: Checks = list,
    metrics: Metrics = bytes,
    open_metrics: Metrics = bytes,
    snapshot: Snapshot = view,
    **more: Any,
) -> Watched:
    """A program as its ports see it."""
    defaults: dict[str, Any] = {"settings": ServerSettings(), "history": History()}
    return Watched(
        program="server",
        instance="s1",
        live=live,
        ready=ready,
        metrics=metrics,
        open_metrics=open_metrics,
        snapshot=snapshot,
        **(defaults | more),
    )


def listen(routes: Routes, host: str = "127.0.0.1", **more: object) -> Awaitable[Port]:
    asked: dict[str, object] = {"host": host, "port": 0, "host_flag": "--h", "port_flag": "--p"}
    is_admin = more.pop("admin", False)
    access = {key: more.pop(key) for key in ("tls", "refused", "admits", "token", "open_paths")
              if key in more}  # fmt: skip
    if is_admin:
        asked["access"] = AdminAccess(**access)  # type: ignore[arg-type]
    return serve(routes, **(asked | more))  # type: ignore[arg-type]


class Asked:
    """One answered request."""

    def __init__(self, response: aiohttp.ClientResponse, text: str) -> None:
        self.status = response.status
        self.port = response.url.port
        self.headers = response.headers
        self.text = text


Ask = Callable[..., Awaitable[Asked]]


@asynccontextmanager
async def asking(routes: Routes, **more: object) -> AsyncIterator[Ask]:
    port = await listen(routes, **more)  # type: ignore[arg-type]
    async with aiohttp.ClientSession() as session:

        async def ask(path: str, method: str = "GET", **options: object) -> Asked:
            url = f"http://127.0.0.1:{port.number}{path}"
            async with session.request(method, url, allow_redirects=False, **options) as response:  # type: ignore[arg-type]
                return Asked(response, await response.text())

        yield ask
    await port.close()
