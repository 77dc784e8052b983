"""A small Kubernetes API over real HTTP that has Services: versions, pages, watches, bookmarks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from isthmus.kube.client import KubeClient
from isthmus.kube.resources import LightKube

ALL = "/api/v1/services"
ONE = "/api/v1/namespaces/{namespace}/services/{name}"
LIMIT_S = 20.0

Fault = Callable[[web.Request], web.StreamResponse | None]


def status(code: int, reason: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": f"{reason} it is"}
    return web.json_response(body, status=code)


class FakeServices:
    """The API; what it holds, what it was asked, and what it shall do wrong."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.services: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = 100
        self.oldest = 0  # a watch from before this is 410
        self.page = 1000
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.asked: list[str] = []
        self.fault: Fault | None = None
        self.watches = 0
        self.opened: list[LightKube] = []
        self._changed = asyncio.Event()
        self._cut = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        app = web.Application(middlewares=[self._meddle])
        app.router.add_get(ALL, self._list)
        app.router.add_get(ONE, self._get)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
        """Go away; ``start`` comes back at the same port."""
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def close(self) -> None:
        for kube in self.opened:
            await kube.close()
        await self.stop()

    def kubeconfig(self) -> str:
        path = self._directory / "guest.kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self.port}"}
        path.write_text(
            json.dumps(
                {
                    "current-context": "here",
                    "contexts": [{"name": "here", "context": {"cluster": "api", "user": "me"}}],
                    "clusters": [{"name": "api", "cluster": cluster}],
                    "users": [{"name": "me", "user": {"token": "mine"}}],
                }
            )
        )
        return str(path)

    def open(self, timeout_s: float = LIMIT_S) -> LightKube:
        kube = LightKube(KubeClient(self.kubeconfig(), timeout_s=timeout_s))
        self.opened.append(kube)
        return kube

    def put(self, at: str, *ips: str, **spec: Any) -> None:
        """Write a Service, named as namespace/name; without addresses it is headless."""
        namespace, name = at.split("/")
        kind = "MODIFIED" if (namespace, name) in self.services else "ADDED"
        given = {"type": "ClusterIP", "clusterIP": ips[0] if ips else "None"}
        made = {
            "metadata": {"namespace": namespace, "name": name},
            "spec": {**given, "clusterIPs": list(ips or ("None",)), **spec},
        }
        self.services[namespace, name] = made
        self._happened(kind, made)

    def put_external(self, at: str, name: str) -> None:
        self.put(at, type="ExternalName", externalName=name, clusterIP=None, clusterIPs=None)

    def drop(self, at: str) -> None:
        namespace, name = at.split("/")
        self._happened("DELETED", self.services.pop((namespace, name)))

    def bookmark(self) -> None:
        self._happened("BOOKMARK", {"metadata": {}, "spec": {}})

    def cut(self) -> None:
        """End every open watch."""
        self._cut.set()
        self._cut = asyncio.Event()

    def forget_before_now(self) -> None:
        self.oldest = self.version + 1

    def _happened(self, kind: str, service: dict[str, Any]) -> None:
        self.version += 1
        service["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, kind, json.loads(json.dumps(service))))
        self._changed.set()
        self._changed = asyncio.Event()

    @web.middleware
    async def _meddle(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        kind = "watch" if "watch" in request.query else "list" if request.path == ALL else "get"
        self.asked.append(kind if kind != "get" else request.path)
        wrong = self.fault(request) if self.fault is not None else None
        return wrong if wrong is not None else await handler(request)

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        first = int(request.query.get("continue", "0"))
        size = min(self.page, int(request.query.get("limit", "1000000")))
        found = list(self.services.values())
        meta = {"resourceVersion": str(self.version)}
        if first + size < len(found):
            meta["continue"] = str(first + size)
        return web.json_response({"metadata": meta, "items": found[first : first + size]})

    async def _get(self, request: web.Request) -> web.StreamResponse:
        found = self.services.get((request.match_info["namespace"], request.match_info["name"]))
        return web.json_response(found) if found else status(404, "NotFound")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        at = int(request.query["resourceVersion"])
        if at < self.oldest - 1:
            return status(410, "Expired")
        cut = self._cut
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        self.watches += 1
        while not cut.is_set():
            changed = self._changed
            for version, kind, service in list(self.history):
                if version > at:
                    at = version
                    line = json.dumps({"type": kind, "object": service}).encode() + b"\n"
                    await answer.write(line[:10])  # a line may come in pieces
                    await answer.write(line[10:])
            waits = [asyncio.ensure_future(e.wait()) for e in (changed, cut)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return answer


def with_services(directory: Path, test: Callable[[FakeServices], Awaitable[None]]) -> None:
    """Run a test with an API of its own."""

    async def main() -> None:
        api = FakeServices(directory)
        await api.start()
        try:
            async with asyncio.timeout(2 * LIMIT_S):
                await test(api)
        finally:
            await api.close()

    asyncio.run(main())
