"""One viewer's stream of events, as ``/ui/events`` sends it.

The page reads it with fetch(), not EventSource, so that a bearer token can go with the request. A
viewer that stops reading is cut; the others do not notice (viewers.py).
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from isthmus.frame.dashboard.answers import PAGE_HEADERS, say
from isthmus.frame.dashboard.feed import Feed
from isthmus.frame.dashboard.viewers import MOST_VIEWERS, Viewer

#: Silence is broken after so long, for whatever is between us that drops idle connections.
ALIVE_S = 15.0
#: A connection that takes not one piece in so long is cut.
STALLED_S = 20.0
_ALIVE = b": alive\n\n"
_PIECE_BYTES = 64 * 1024
_GOODBYE_S = 1.0
_HEADERS = {
    **PAGE_HEADERS,
    "Content-Type": "text/event-stream; charset=utf-8",
    "X-Accel-Buffering": "no",  # nginx would wait for more
}


async def stream(feed: Feed, request: web.BaseRequest) -> web.StreamResponse:
    """Answer with the feed until either side ends it; 503 when too many look."""
    if request.method == "HEAD":
        return web.Response(headers=_HEADERS)
    viewer = feed.enter()
    if viewer is None:
        refused = say(503, f"{MOST_VIEWERS} pages are open already, or the program is stopping")
        refused.headers["Retry-After"] = "5"
        return refused
    try:
        response = web.StreamResponse(headers=_HEADERS)
        await response.prepare(request)
        await _send(viewer, response, request)
        return response
    finally:
        feed.leave(viewer)


async def _send(viewer: Viewer, response: web.StreamResponse, request: web.BaseRequest) -> None:
    transport = request.transport
    if transport is None:
        return  # it has left already
    while True:
        try:
            async with asyncio.timeout(ALIVE_S):
                event = await viewer.wait()
        except TimeoutError:
            event = _ALIVE
        viewer.writing = transport
        try:
            if event is None:
                async with asyncio.timeout(_GOODBYE_S):
                    return await response.write_eof()
            await _write(response, event)
        except TimeoutError:
            return transport.abort()
        finally:
            viewer.writing = None


async def _write(response: web.StreamResponse, event: bytes) -> None:
    """Send an event in pieces: what a connection has not taken stays in the one shared object."""
    view = memoryview(event)
    for start in range(0, len(event), _PIECE_BYTES):
        async with asyncio.timeout(STALLED_S):
            await response.write(view[start : start + _PIECE_BYTES])
