"""A small Kubernetes API over real HTTP: Leases with versions and watches, and token reviews.

Faults are put in by the test: ``fault`` sees every request before anything is done with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from isthmus.kube.api import Kube
from isthmus.kube.client import KubeClient
from isthmus.kube.resources import LightKube

NAMESPACE = "kube-system"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
LIMIT_S = 20.0

Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


def status(code: int, reason: str, message: str = "") -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message or reason}
    return web.json_response(body, status=code)


class FakeApi:
    """The API; what it holds, what it was asked, and what it shall do wrong."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.leases: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.oldest = 0  # a watch from before this is 410
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[Any] = []
        self.queries: list[dict[str, str]] = []
        self.fault: Fault | None = None
        self.review: Callable[[dict[str, Any]], dict[str, Any]] = lambda spec: {}
        self.reviewing = self.most_reviewing = 0
        self.gate: asyncio.Event | None = None
        self.watches = 0
        self.opened: list[Kube] = []
        self._changed = asyncio.Event()
        self._cut = asyncio.Event()
        self._mute = ""
        self._done = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.port = 0

    # What a test does with it

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        app = web.Application(middlewares=[self._meddle])
        app.router.add_get(LEASES, self._list)
        app.router.add_post(LEASES, self._create)
        app.router.add_get(LEASES + "/{name}", self._get)
        app.router.add_put(LEASES + "/{name}", self._replace)
        app.router.add_delete(LEASES + "/{name}", self._delete)
        app.router.add_post(REVIEWS, self._review)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=tls)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    async def stop(self) -> None:
        """Go away; ``start`` comes back at the same port."""
        self.cut()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def kubeconfig(self, **user: str) -> str:
        path = self._directory / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "current-context": "here",
                    "contexts": [{"name": "here", "context": {"cluster": "api", "user": "me"}}],
                    "clusters": [
                        {"name": "api", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}
                    ],
                    "users": [{"name": "me", "user": user}],
                }
            )
        )
        return str(path)

    def open(self, timeout_s: float = LIMIT_S, **how: Any) -> Kube:
        kube = LightKube(KubeClient(self.kubeconfig(token="mine"), timeout_s=timeout_s, **how))
        self.opened.append(kube)
        return kube

    def put(self, name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> None:
        """Write a Lease behind everybody's back."""
        kind = "MODIFIED" if name in self.leases else "ADDED"
        self._store(kind, {"metadata": {"name": name, "labels": labels or {}}, "spec": spec})

    def drop(self, name: str) -> None:
        self._happened("DELETED", self.leases.pop(name))

    def cut(self) -> None:
        """End every open watch."""
        self._cut.set()
        self._cut = asyncio.Event()

    def said(self, method: str, path: str = "") -> int:
        return sum(m == method and p.endswith(path) for m, p in self.asked)

    def hold_answers_to(self, method: str) -> asyncio.Event:
        """Do what is asked but never answer; the event says that it was done."""
        self._mute, done = method, asyncio.Event()
        self._done = done
        return done

    # How it works

    @web.middleware
    async def _meddle(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        watch = "?watch" if "watch" in request.query else ""
        self.asked.append((request.method, request.path + watch))
        self.queries.append(dict(request.query))
        if self.fault is not None:
            wrong = await self.fault(request)
            if wrong is not None:
                return wrong
        answer = await handler(request)
        if request.method == self._mute:
            self._done.set()
            await asyncio.Event().wait()
        return answer

    def _happened(self, kind: str, lease: dict[str, Any]) -> None:
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.history.append((self.version, kind, json.loads(json.dumps(lease))))
        self._changed.set()
        self._changed = asyncio.Event()

    def _store(self, kind: str, lease: dict[str, Any]) -> dict[str, Any]:
        self.leases[lease["metadata"]["name"]] = lease
        self._happened(kind, lease)
        return lease

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        body = {
            "metadata": {"resourceVersion": str(self.version)},
            "items": [it for it in self.leases.values() if _selected(it, request)],
        }
        return web.json_response(body)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        at = int(request.query["resourceVersion"])
        if at < self.oldest:
            return status(410, "Expired", "too old resource version")
        cut = self._cut
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        self.watches += 1
        while not cut.is_set():
            changed = self._changed
            for version, kind, lease in list(self.history):
                if version > at and _selected(lease, request):
                    at = version
                    line = json.dumps({"type": kind, "object": lease}).encode() + b"\n"
                    await answer.write(line[:10])  # a line may come in pieces
                    await answer.write(line[10:])
            waits = [asyncio.ensure_future(e.wait()) for e in (changed, cut)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return answer

    async def _get(self, request: web.Request) -> web.Response:
        lease = self.leases.get(request.match_info["name"])
        return web.json_response(lease) if lease else status(404, "NotFound")

    async def _create(self, request: web.Request) -> web.Response:
        lease = await request.json()
        self.bodies.append(lease)
        if lease["metadata"]["name"] in self.leases:
            return status(409, "AlreadyExists")
        return web.json_response(self._store("ADDED", lease), status=201)

    async def _replace(self, request: web.Request) -> web.Response:
        lease = await request.json()
        self.bodies.append(lease)
        old = self.leases.get(request.match_info["name"])
        if old is None:
            return status(404, "NotFound")
        if old["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]:
            return status(409, "Conflict")
        return web.json_response(self._store("MODIFIED", lease))

    async def _delete(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        options = await request.json()
        self.bodies.append(options)
        if name not in self.leases:
            return status(404, "NotFound")
        wanted = options["preconditions"]["resourceVersion"]
        if self.leases[name]["metadata"]["resourceVersion"] != wanted:
            return status(409, "Conflict")
        self.drop(name)
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _review(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.bodies.append(asked)
        self.reviewing += 1
        self.most_reviewing = max(self.most_reviewing, self.reviewing)
        try:
            if self.gate is not None:
                await self.gate.wait()
            return web.json_response({**asked, "status": self.review(asked["spec"])}, status=201)
        finally:
            self.reviewing -= 1


def _selected(lease: dict[str, Any], request: web.Request) -> bool:
    wanted = dict(p.split("=") for p in request.query.get("labelSelector", "").split(",") if p)
    return wanted.items() <= lease["metadata"].get("labels", {}).items()


async def until(holds: Callable[[], object]) -> None:
    """Wait for something to come true; the bound is for a test that would hang."""
    async with asyncio.timeout(LIMIT_S):
        while not holds():
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def running(work: Awaitable[None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run something beside the test, and cancel it at the end."""
    task = asyncio.ensure_future(work)
    assert isinstance(task, asyncio.Task)
    try:
        yield task
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def with_api(directory: Path, test: Callable[[FakeApi], Awaitable[None]]) -> None:
    """Run a test with an API of its own."""

    async def main() -> None:
        api = FakeApi(directory)
        await api.start()
        try:
            await test(api)
        finally:
            for kube in api.opened:
                await kube.close()
            await api.stop()

    asyncio.run(main())
