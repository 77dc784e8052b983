"""The paths under ``/debug/pprof/`` of an admin port, named as Go's net/http/pprof names them.

Without --enable-profiling they only name the flag; nothing is loaded, measured or started. The
profiles themselves are observe/profiles.py.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from html import escape

from aiohttp import web

from isthmus.frame.admin.answers import HEADERS, Handler, Routes, reply

PREFIX = "/debug/pprof"
DEFAULT_SECONDS = 30
MAX_SECONDS = 300
_OFFERED = {
    "profile": "CPU time by stack, measured for ?seconds=N (30)",
    "heap": "live objects by type; with ?seconds=N, by place of allocation during that time",
    "goroutine": "every task and thread with its stack; ?debug=1 or 2 as text",
    "cmdline": "the command line",
}
#: Profiles of Go that do not exist here.
_NOT_OFFERED = ("allocs", "block", "mutex", "symbol", "threadcreate", "trace")
# The timer and the tracing belong to the process, which may run two programs.
_measuring = threading.Lock()


def debug_routes(enabled: bool) -> Routes:
    """The paths of the profiles; without --enable-profiling they answer with a hint."""
    names = ("", "/", *(f"/{name}" for name in (*_OFFERED, *_NOT_OFFERED)))
    routes: dict[str, Handler] = {f"{PREFIX}{name}": _off for name in names}
    if not enabled:
        return routes
    routes |= {f"{PREFIX}/{name}": _missing for name in _NOT_OFFERED}
    return routes | {
        PREFIX: _to_index,
        f"{PREFIX}/": _index,
        f"{PREFIX}/profile": partial(_one_at_a_time, _profile),
        f"{PREFIX}/heap": partial(_one_at_a_time, _heap),
        f"{PREFIX}/goroutine": _goroutine,
        f"{PREFIX}/cmdline": _cmdline,
    }


async def _off(request: web.BaseRequest) -> web.Response:
    return reply(404, "profiling is disabled; enable it with --enable-profiling\n")


async def _missing(request: web.BaseRequest) -> web.Response:
    return reply(404, f"unknown profile; {PREFIX}/ has a list\n")


async def _to_index(request: web.BaseRequest) -> web.Response:
    response = reply(301, "moved permanently\n")
    response.headers["Location"] = f"{PREFIX}/"
    return response


async def _index(request: web.BaseRequest) -> web.Response:
    rows = "".join(
        f'<li><a href="{name}">{name}</a>: {escape(what)}</li>\n' for name, what in _OFFERED.items()
    )
    text = f"<!doctype html>\n<title>{PREFIX}/</title>\n<h1>{PREFIX}/</h1>\n<ul>\n{rows}</ul>\n"
    return web.Response(text=text, content_type="text/html", headers=HEADERS)


async def _cmdline(request: web.BaseRequest) -> web.Response:
    return reply(200, "\0".join(sys.orig_argv))


async def _one_at_a_time(
    measure: Callable[[float | None], Awaitable[tuple[str, bytes]]], request: web.BaseRequest
) -> web.Response:
    asked = request.query.get("seconds", "")
    digits = asked.isascii() and asked.isdigit() and len(asked) < 10
    if asked and not (digits and int(asked) <= MAX_SECONDS):
        return reply(400, f"seconds: must be a whole number from 1 to {MAX_SECONDS}\n")
    if not _measuring.acquire(blocking=False):
        return reply(409, "another profile is already running\n")
    try:
        return _file(*await measure(float(asked) if asked and int(asked) else None))
    finally:
        _measuring.release()


async def _profile(seconds: float | None) -> tuple[str, bytes]:
    from isthmus.frame.observe.profiles import cpu_profile

    return "profile", await cpu_profile(seconds or DEFAULT_SECONDS)


async def _heap(seconds: float | None) -> tuple[str, bytes]:
    from isthmus.frame.observe.profiles import heap_by_type, heap_traced

    return "heap", await (heap_by_type() if seconds is None else heap_traced(seconds))


async def _goroutine(request: web.BaseRequest) -> web.Response:
    from isthmus.frame.observe.profiles import as_groups, as_profile, as_stacks, everything

    found = everything()
    match request.query.get("debug", "0"):
        case "0" | "":
            return _file("goroutine", as_profile(found))
        case "1":
            return reply(200, as_groups(found))
        case "2":
            return reply(200, as_stacks(found))
        case _:
            return reply(400, "debug: must be 0, 1 or 2\n")


def _file(name: str, body: bytes) -> web.Response:
    response = web.Response(body=body, content_type="application/octet-stream", headers=HEADERS)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}.pb.gz"'
    return response
