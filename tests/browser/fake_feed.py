"""A stand-in for a program's page: the real files and headers, and a feed spoken by hand.

For what is hard to make with real programs: thousands of tunnels, hostile names, certificates that
have expired, programs that come and go. What real programs say is test_real_programs.py's part.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any, Self

from aiohttp import web
from scenes import Scene

from isthmus.frame.dashboard.routes import PAGE_HEADERS, file_routes, say

LIMIT_S = 20.0
Json = dict[str, Any]


class FakeFeed:
    """A page on a free port of loopback; everything is called from the test's own thread."""

    def __init__(self, *scenes: Scene) -> None:
        self.scenes = list(scenes)
        self.version = "0.1.0"
        self.token = ""
        self.busy = ""  # why nobody else may look
        self.refusal: tuple[int, str] | None = None  # how an order to end is answered
        self.orders: list[Json] = []  # the orders that came
        self.tokens: list[str] = []  # the Authorization of each stream that was asked for
        self.port = 0
        self._streams: set[asyncio.Queue[bytes | None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.run_until_complete(self._hang_up())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.port}/ui/"

    @property
    def viewers(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def start(self) -> None:
        """Listen; again on the same port after a stop."""
        self._run(self._start())

    def stop(self) -> None:
        """End every stream and stop listening."""
        self.cut()
        if self._runner is not None:
            self._run(self._runner.cleanup())
        self._runner = None

    def cut(self) -> None:
        """End every stream; pages may come again."""
        self._tell(None)

    def send(self, name: str, data: Json) -> None:
        """Tell all pages an event."""
        self._tell(event(name, data))

    def mumble(self) -> None:
        """Tell all pages what nobody understands."""
        self._tell(b"event: delta\ndata: {nothing\n\n")

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LIMIT_S)

    def _tell(self, written: bytes | None) -> None:
        async def tell() -> None:
            for stream in self._streams:
                stream.put_nowait(written)

        self._run(tell())

    async def _start(self) -> None:
        app = web.Application()
        for path, handler in file_routes("/ui/").items():
            app.router.add_get(path, handler)
        app.router.add_get("/ui/events", self._events)
        app.router.add_post("/ui/end", self._end)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _hang_up(self) -> None:
        """End what aiohttp does not know of: a connection that came while it stopped listening."""
        for transport in list(self._loop._transports.values()):  # type: ignore[attr-defined]
            transport.abort()
        await asyncio.sleep(0)

    def _refused(self, request: web.Request) -> web.Response | None:
        if not self.token or request.headers.get("Authorization") == f"Bearer {self.token}":
            return None
        refused = say(401, "this needs a token")
        refused.headers["WWW-Authenticate"] = "Bearer"
        return refused

    async def _events(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("Authorization", ""))
        if refused := self._refused(request):
            return refused
        if self.busy:
            return say(503, self.busy)
        response = web.StreamResponse(headers={**PAGE_HEADERS, "Content-Type": "text/event-stream"})
        await response.prepare(request)
        stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        for written in self._welcome():
            stream.put_nowait(written)
        self._streams.add(stream)
        try:
            while (piece := await stream.get()) is not None:
                await response.write(piece)
        except ConnectionError:
            pass  # the page has left
        finally:
            self._streams.discard(stream)
        return response

    def _welcome(self) -> list[bytes]:
        hello = {"version": self.version, "everySeconds": 1}
        sources = [scene.source for scene in self.scenes]
        fulls = [event("full", scene.full()) for scene in self.scenes if not scene.lost]
        lost = [
            event("lost", {"source": scene.source["id"], "why": scene.lost})
            for scene in self.scenes
            if scene.lost
        ]
        return [event("hello", {**hello, "sources": sources}), *fulls, *lost]

    async def _end(self, request: web.Request) -> web.Response:
        if refused := self._refused(request):
            return refused
        if request.headers.get("X-Isthmus-Intent") != "end":
            return say(403, "ending a tunnel needs the header X-Isthmus-Intent: end")
        order = await request.json()
        self.orders.append(order)
        if self.refusal is not None:
            return say(*self.refusal)
        ended = {"ended": order["tunnel"], "connectionId": "x"}
        return web.json_response(ended, headers=PAGE_HEADERS)


def event(name: str, data: Json) -> bytes:
    """Write an event as the feed does."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()
