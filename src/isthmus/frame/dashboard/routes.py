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
#: Ends a tunnel of a source, for a client that the admin port's guard has admitted.
EndOne = Callable[[web.BaseRequest, str, TunnelId], Awaitable[web.Response]]
#: Refuses the feed to a client, or None.
Admit = Callable[[web.BaseRequest], Awaitable[web.Response | None]]

_MOST_BODY_BYTES = 4096
_BODY_S = 10.0
_MOST_ID = 2**53  # what JavaScript counts to
#: Headers of answers that are confidential or must not be cached.
PAGE_HEADERS = SAFE_HEADERS
#: Headers of the page's files: browsers cache them and revalidate each time.
FILE_HEADERS = {**PAGE_HEADERS, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
#: A comment is sent after this long a silence, for proxies that drop idle connections.
ALIVE_S = 15.0
#: A connection that accepts not one piece in this time is closed.
STALLED_S = 20.0
_ALIVE = b": alive\n\n"
_PIECE_BYTES = 64 * 1024
_GOODBYE_S = 1.0
_HEADERS = {
    **PAGE_HEADERS,
    "Content-Type": "text/event-stream; charset=utf-8",
    "X-Accel-Buffering": "no",  # nginx would buffer the stream
}
INDEX = "index.html"
#: Files with another ending are not part of the page. True marks texts, which are gzipped.
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
    """A page for an admin port, whose guard decides who may end a tunnel.

    ``open_paths`` contain nothing confidential and need no token: the page must load before it can
    ask for one. Call ``close`` before closing the port, which would wait for the streams to end.
    """

    routes: Routes
    open_paths: Collection[str]
    close: Callable[[], None] = field(repr=False)


def dashboard_routes(watched: Watched) -> Dashboard:
    """The page of a program."""
    return page(LocalFeed(watched), partial(_end_own, watched))


def page(feed: Feed, end: EndOne, *, admit: Admit | None = None) -> Dashboard:
    """The page of a feed; ``admit`` may refuse a client."""
    # The root of the port leads to the page.
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
        return say(400, 'the body must be JSON such as {"source":"0","tunnel":1}')
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
        return say(404, "unknown source")
    return await end_tunnel(watched, request, tunnel)


def say(status: int, sentence: str) -> web.Response:
    """A short plain-text answer."""
    return web.Response(status=status, text=f"{sentence}\n", headers=PAGE_HEADERS)


def dressed(answer: web.Response) -> web.Response:
    """Add the headers to an answer made elsewhere."""
    answer.headers.update(PAGE_HEADERS)
    return answer


def from_elsewhere(request: web.BaseRequest) -> web.Response | None:
    """Refuse a cross-site request of a browser; None for any other request.

    Such a page could read nothing, but its requests would use up the places for viewers.
    Browsers send the origin of a request (Fetch Metadata, ``Sec-Fetch-Site``); other clients do
    not.
    """
    return say(403, "cross-site requests are not allowed") if is_from_elsewhere(request) else None


async def not_ours(request: web.BaseRequest) -> web.Response | None:
    """Refuse users other than root and the user of this process; None for those two.

    The page uses the credentials of one user and is for that user only, while every user of the
    machine can connect to loopback.
    """
    transport = request.transport
    ends = [transport.get_extra_info(end) for end in ("peername", "sockname")] if transport else []
    if len(ends) != 2 or not all(ends):
        return say(403, "the client has disconnected")
    client, ours = ((str(host), int(port)) for host, port, *_ in ends)
    owner = await asyncio.to_thread(owner_of, client, ours)
    if owner is not None and owner.uid in (0, os.geteuid()):
        return None
    who = (
        f"this request is from {owner.user}"
        if owner is not None
        else "the user of this request is unknown"
    )
    return say(403, f"this page is only for root and the user who started it; {who}")


async def stream(feed: Feed, request: web.BaseRequest) -> web.StreamResponse:
    """Answer with the feed until either side ends it; 503 if there are too many viewers."""
    if request.method == "HEAD":
        return web.Response(headers=_HEADERS)
    viewer = feed.enter()
    if viewer is None:
        refused = say(503, f"{MOST_VIEWERS} pages are already open, or the program is stopping")
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
        return  # the client has disconnected
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
    """Send an event in pieces: bytes not yet sent stay in the one shared object."""
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
        """The gzipped body, made on first use; None if gzip does not help."""
        if not self._is_text or len(self.body) < _LEAST_GZIPPED_BYTES:
            return None
        return gzip.compress(self.body, mtime=0)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer with the file, or 304 if the browser has it."""
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
    """The paths of all files below ``prefix``, which is the page itself."""
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
    # A cache on the way may have weakened the tag, which still matches here (RFC 9110 §13.1.2).
    return [tag.strip().removeprefix("W/") for tag in given]


async def _no_page(request: web.BaseRequest) -> web.Response:
    return say(404, "the dashboard is not part of this installation")


async def _moved(name: str, request: web.BaseRequest) -> web.Response:
    answer = say(308, f"the dashboard is at {name}/")
    answer.headers["Location"] = f"{name}/"  # relative: a proxy may add a prefix to the path
    return answer
