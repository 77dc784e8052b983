"""The paths under ``/ui``: the page, its files and feed, ending a tunnel; ``/`` redirects there."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

from isthmus.frame.admin.answers import POST, SAFE_HEADERS, Handler, Routes, Watched
from isthmus.frame.admin.guard import is_from_elsewhere
from isthmus.frame.admin.owner import owner_of
from isthmus.frame.admin.routes import end_tunnel
from isthmus.frame.dashboard.feed import OWN, Feed, LocalFeed
from isthmus.frame.dashboard.viewers import MOST_VIEWERS, Viewer
from isthmus.values import TunnelId

PREFIX = "/ui/"
#: Ends a tunnel of the source that is named, for whoever the admin port's guard has let through.
EndOne = Callable[[web.BaseRequest, str, TunnelId], Awaitable[web.Response]]
#: Refuses somebody the feed, or None.
Admit = Callable[[web.BaseRequest], Awaitable[web.Response | None]]

_MOST_BODY_BYTES = 4096
_BODY_S = 10.0
_MOST_ID = 2**53  # what JavaScript counts to
#: Of what is confidential, or new each time.
PAGE_HEADERS = SAFE_HEADERS
#: Of the page's own files: kept by browsers, and asked for each time whether they are still so.
FILE_HEADERS = {**PAGE_HEADERS, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
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
INDEX = "index.html"
#: What has another ending is not part of the page. Texts, which gzip makes smaller, are marked.
_TYPES = {
    ".html": ("text/html; charset=utf-8", True),
    ".css": ("text/css; charset=utf-8", True),
    ".js": ("text/javascript; charset=utf-8", True),
    ".json": ("application/json", True),
    ".svg": ("image/svg+xml", True),
    ".txt": ("text/plain; charset=utf-8", True),
    ".png": ("image/png", False),
    ".ico": ("image/x-icon", False),
    ".woff2": ("font/woff2", False),
}
_LEAST_GZIPPED_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A page that can be served by an admin port, whose guard says who may end a tunnel.

    ``open_paths`` have nothing confidential and are for everybody who gets to the port: the page
    has to be there before it can ask for a token. Call ``close`` before the port is closed, which
    would wait for the streams to end.
    """

    routes: Routes
    open_paths: Collection[str]
    close: Callable[[], None] = field(repr=False)


def dashboard_routes(watched: Watched) -> Dashboard:
    """Make the page of a program."""
    return page(LocalFeed(watched), partial(_end_own, watched))


def page(feed: Feed, end: EndOne, *, admit: Admit | None = None) -> Dashboard:
    """Make a page of a feed; ``admit`` is asked before anybody is shown it."""
    # The address of a port alone leads to the page.
    root = partial(_moved, PREFIX.strip("/"))
    open_routes: dict[str, Handler] = {"/": root, **file_routes(PREFIX)}
    routes: dict[str, Handler] = {
        **open_routes,
        f"{PREFIX}events": partial(_events, feed, admit),
        f"{POST}{PREFIX}end": partial(_end, end),
    }
    return Dashboard(routes=routes, open_paths=frozenset(open_routes), close=feed.close)


async def _events(feed: Feed, admit: Admit | None, request: web.BaseRequest) -> web.StreamResponse:
    refused = from_elsewhere(request)
    if refused is None and admit is not None:
        refused = await admit(request)
    return refused or await stream(feed, request)


async def _end(end: EndOne, request: web.BaseRequest) -> web.Response:
    try:
        source, tunnel = _asked(await _body(request))
    except (ValueError, TimeoutError, RecursionError):  # the last by [[[[…
        return say(400, 'the body is JSON as {"source":"0","tunnel":1}')
    return dressed(await end(request, source, tunnel))


async def _body(request: web.BaseRequest) -> bytes:
    if request.content_length is None or request.content_length > _MOST_BODY_BYTES:
        raise ValueError("too large")
    async with asyncio.timeout(_BODY_S):
        return await request.read()


def _asked(body: bytes) -> tuple[str, TunnelId]:
    asked = json.loads(body)
    if not isinstance(asked, dict):
        raise ValueError("not an object")
    source, tunnel = asked.get("source"), asked.get("tunnel")
    if not isinstance(source, str) or type(tunnel) is not int or not 0 <= tunnel < _MOST_ID:
        raise ValueError("not a source and a tunnel")
    return source, TunnelId(tunnel)


async def _end_own(
    watched: Watched, request: web.BaseRequest, source: str, tunnel: TunnelId
) -> web.Response:
    if source != OWN:
        return say(404, "there is no such source here")
    return await end_tunnel(watched, request, tunnel)


def say(status: int, sentence: str) -> web.Response:
    """Answer with one sentence."""
    return web.Response(status=status, text=f"{sentence}\n", headers=PAGE_HEADERS)


def dressed(answer: web.Response) -> web.Response:
    """Put the headers on an answer that was made elsewhere."""
    answer.headers.update(PAGE_HEADERS)
    return answer


def from_elsewhere(request: web.BaseRequest) -> web.Response | None:
    """Refuse what a page of another site makes a browser ask; None if it is not that.

    Such a page could read nothing, but its requests would fill the room that there is for viewers.
    Browsers say where a request comes from (Fetch Metadata, ``Sec-Fetch-Site``); tools do not.
    """
    return say(403, "this is not for pages of other sites") if is_from_elsewhere(request) else None


async def not_ours(request: web.BaseRequest) -> web.Response | None:
    """Refuse whoever is neither root nor the user that we run as; None if it is one of them.

    A page that asks its sources with somebody's credentials is for that user alone, and loopback
    is for everybody on the machine.
    """
    transport = request.transport
    ends = [transport.get_extra_info(end) for end in ("peername", "sockname")] if transport else []
    if len(ends) != 2 or not all(ends):
        return say(403, "whoever asked has gone")
    client, ours = ((str(host), int(port)) for host, port, *_ in ends)
    owner = await asyncio.to_thread(owner_of, client, ours)
    if owner is not None and owner.uid in (0, os.geteuid()):
        return None
    who = f"this comes from {owner.user}" if owner is not None else "whose this is cannot be told"
    return say(403, f"this page is only for root and for the user who started it, and {who}")


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


class PageFile:
    """One file of the page."""

    def __init__(self, name: str, body: bytes) -> None:
        self.content_type, self._is_text = _TYPES[_ending(name)]
        self.body = body
        self._tag = hashlib.sha256(body).hexdigest()[:24]

    @cached_property
    def gzipped(self) -> bytes | None:
        """The body for who takes gzip, made for the first who does; None where it does not pay."""
        if not self._is_text or len(self.body) < _LEAST_GZIPPED_BYTES:
            return None
        return gzip.compress(self.body, mtime=0)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Give the file, or say that the browser has it already."""
        squeezed = self.gzipped if _takes_gzip(request) else None
        # Two bodies, two tags: a strong tag names bytes (RFC 9110 §8.8.1).
        tag = f'"{self._tag}{"-gzip" if squeezed else ""}"'
        headers = {**FILE_HEADERS, "ETag": tag}
        if tag in _tags(request):
            return web.Response(status=304, headers=headers)
        headers["Content-Type"] = self.content_type
        if squeezed:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=squeezed or self.body, headers=headers)


def file_routes(prefix: str) -> dict[str, Handler]:
    """Give the paths of all files below ``prefix``, which itself is the page."""
    found = {name: PageFile(name, body) for name, body in _read(_assets())}
    routes: dict[str, Handler] = {f"{prefix}{name}": file.answer for name, file in found.items()}
    routes[prefix] = found[INDEX].answer if INDEX in found else _no_page
    routes[prefix.rstrip("/")] = partial(_moved, prefix.strip("/").rpartition("/")[2])
    return routes


def _assets() -> Traversable:
    return files("isthmus.frame.dashboard") / "assets"


def _read(directory: Traversable, path: str = "") -> Iterator[tuple[str, bytes]]:
    if not directory.is_dir():
        return
    for entry in directory.iterdir():
        if entry.is_dir():
            yield from _read(entry, f"{path}{entry.name}/")
        elif _ending(entry.name) in _TYPES:
            yield f"{path}{entry.name}", entry.read_bytes()


def _ending(name: str) -> str:
    return f".{name.rpartition('.')[2]}"


def _takes_gzip(request: web.BaseRequest) -> bool:
    accepted = request.headers.get("Accept-Encoding", "").lower().split(",")
    return any(one.strip() in ("gzip", "gzip;q=1.0", "gzip;q=1") for one in accepted)


def _tags(request: web.BaseRequest) -> list[str]:
    given = request.headers.get("If-None-Match", "").split(",")
    # A cache on the way may have made it a weak one; that compares as well here (RFC 9110 §13.1.2).
    return [tag.strip().removeprefix("W/") for tag in given]


async def _no_page(request: web.BaseRequest) -> web.Response:
    return say(404, "the page is not part of this installation")


async def _moved(name: str, request: web.BaseRequest) -> web.Response:
    answer = say(308, f"the dashboard is at {name}/")
    answer.headers["Location"] = f"{name}/"  # relative: something may be before us in the path
    return answer
