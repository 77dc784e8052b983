"""The paths under ``/ui``: the page, its files, its feed, and ending a tunnel from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from isthmus.frame.admin.answers import POST, Handler, Routes
from isthmus.frame.admin.changes import end_tunnel
from isthmus.frame.admin.watched import Watched
from isthmus.frame.dashboard.answers import dressed, from_elsewhere, say
from isthmus.frame.dashboard.feed import OWN, Feed, LocalFeed
from isthmus.frame.dashboard.files import file_routes
from isthmus.frame.dashboard.stream import stream
from isthmus.values import TunnelId

PREFIX = "/ui/"
#: Ends a tunnel of the source that is named, for whoever the admin port's guard has let through.
EndOne = Callable[[web.BaseRequest, str, TunnelId], Awaitable[web.Response]]
#: Refuses somebody the feed, or None.
Admit = Callable[[web.BaseRequest], Awaitable[web.Response | None]]

_MOST_BODY_BYTES = 4096
_BODY_S = 10.0
_MOST_ID = 2**53  # what JavaScript counts to


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
    open_routes = file_routes(PREFIX)
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
