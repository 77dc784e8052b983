"""A small Kubernetes API over real HTTP with whatever objects: versions, pages, watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from isthmus.kube.client import KubeClient
from isthmus.kube.resources import LightKube

SERVICES = "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
NODES = "/api/v1/nodes"
CIDRS = "/apis/networking.k8s.io/v1/servicecidrs"
LIMIT_S = 20.0


class FakeCluster:
    """The API; what it holds by path, and what it was asked. Selectors are kept, not obeyed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.objects: dict[str, dict[str, Any]] = {
            path: {} for path in (SERVICES, SLICES, NODES, CIDRS)
        }
        self.version = 100
        self.oldest = 0  # a watch from before this is 410
        self.history: list[tuple[int, str, str, Any]] = []
        self.lists: list[tuple[str, dict[str, str]]] = []
        self.watches: list[tuple[str, dict[str, str]]] = []
        self.open: list[LightKube] = []
        self._changed = asyncio.Event()
        self._cut = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self) -> None:
        app = web.Application()
        for path in self.objects:
            app.router.add_get(path, self._asked)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def close(self) -> None:
        for kube in self.open:
            await kube.close()
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()

    def kube(self) -> LightKube:
        path = self._directory / "node.kubeconfig"
        cluster = {"server": f"http://127.0.0.1:{self.port}"}
        config = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "api", "user": "me"}}],
            "clusters": [{"name": "api", "cluster": cluster}],
            "users": [{"name": "me", "user": {"token": "mine"}}],
        }
        path.write_text(json.dumps(config))
        kube = LightKube(KubeClient(str(path), timeout_s=LIMIT_S))
        self.open.append(kube)
        return kube

    def put(self, path: str, name: str, given: dict[str, Any]) -> None:
        """Write an object; its metadata need only have what is special."""
        change = "MODIFIED" if name in self.objects[path] else "ADDED"
        meta = {"name": name, "namespace": "ns", **given.get("metadata", {})}
        self.objects[path][name] = {**given, "metadata": meta}
        self._happened(path, change, self.objects[path][name])

    def drop(self, path: str, name: str) -> None:
        self._happened(path, "DELETED", self.objects[path].pop(name))

    def bookmark(self, path: str) -> None:
        self._happened(path, "BOOKMARK", {"metadata": {}})

    def cut(self) -> None:
        """End every open watch."""
        self._cut.set()
        self._cut = asyncio.Event()

    def forget(self) -> None:
        """Let every version so far be too old."""
        self.history.clear()
        self.version += 10
        self.oldest = self.version

    def _happened(self, path: str, change: str, given: dict[str, Any]) -> None:
        self.version += 1
        given["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, path, change, json.loads(json.dumps(given))))
        self._changed.set()
        self._changed = asyncio.Event()

    async def _asked(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        if "watch" in query:
            return await self._watch(request, query)
        self.lists.append((request.path, query))
        found = list(self.objects[request.path].values())
        first, size = int(query.get("continue", "0")), int(query["limit"])
        meta = {"resourceVersion": str(self.version)}
        if first + size < len(found):
            meta["continue"] = str(first + size)
        return web.json_response({"metadata": meta, "items": found[first : first + size]})

    async def _watch(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        at = int(query["resourceVersion"])
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        self.watches.append((request.path, query))
        if at < self.oldest:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            await answer.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return answer
        cut = self._cut
        while not cut.is_set():
            changed = self._changed
            for version, path, change, given in list(self.history):
                if version > at and path == request.path:
                    at = version
                    line = json.dumps({"type": change, "object": given}).encode() + b"\n"
                    await answer.write(line)
            waits = [asyncio.ensure_future(each.wait()) for each in (changed, cut)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return answer


def with_cluster(directory: Path, test: Callable[[FakeCluster], Awaitable[None]]) -> None:
    """Run a test with an API of its own."""

    async def main() -> None:
        api = FakeCluster(directory)
        await api.start()
        try:
            async with asyncio.timeout(2 * LIMIT_S):
                await test(api)
        finally:
            await api.close()

    asyncio.run(main())
