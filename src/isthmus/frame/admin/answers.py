"""The interface between operator ports and programs: the data they get, and their answers.

Routes, checks, and ``Watched``: plain callables, given by the program. ports.py serves, guard.py
decides whom to answer, routes.py has the paths.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from inspect import isawaitable
from typing import TypeVar

from aiohttp import web

from isthmus.frame.model.history import History
from isthmus.frame.model.snapshot import ProgramView
from isthmus.values import TunnelId

#: Answers a request; may stream, and is cancelled when the client leaves.
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
#: Handlers by path, for GET and HEAD. A path after ``POST`` and a space is a change, and a ``*``
#: in it is one segment.
Routes = Mapping[str, Handler]
#: The prefix of the path of a change.
POST = "POST "
#: Headers of every answer.
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: The policy for pages of this port: only resources of the same port.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: Headers of pages, and of refusals, which a browser may show instead.
SAFE_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
T = TypeVar("T")
#: A program has these at once, or asks other processes for them.
Metrics = Callable[[], bytes | Awaitable[bytes]]
#: Called with the maximum number of tunnels; counts the rest as truncated.
Snapshot = Callable[[int], ProgramView | Awaitable[ProgramView]]
#: The last records of the audit log as lines of JSON, oldest first, and the number of the newest:
#: called with the number to start after, and the most to return.
RecentRecords = Callable[[int, int], tuple[list[bytes], int]]
#: Ends a tunnel for a named operator; returns its connection id, or None if there is no such
#: tunnel.
EndTunnel = Callable[[TunnelId, str], str | Awaitable[str | None] | None]


@dataclass(frozen=True, slots=True)
class Check:
    """A check of liveness or readiness; ``failure`` is empty if it passed."""

    name: str
    failure: str = ""


PING = Check("ping")


Checks = Callable[[], list[Check]]


async def settled(given: T | Awaitable[T]) -> T:
    """The value, awaited if need be."""
    if isawaitable(given):
        found: T = await given
        return found
    return given


def reply(status: int, text: str) -> web.Response:
    """A plain-text answer."""
    return web.Response(status=status, text=text, headers=HEADERS)


def refuse(status: int, text: str) -> web.Response:
    """A refusal, with the headers of a page."""
    return web.Response(status=status, text=text, headers=SAFE_HEADERS)


def json_reply(body: bytes | str, status: int = 200) -> web.Response:
    """An answer with serialized JSON."""
    raw = body.encode() if isinstance(body, str) else body
    headers = {**HEADERS, "Content-Type": "application/json"}
    return web.Response(status=status, body=raw, headers=headers)


def asked_limit(request: web.BaseRequest, *, default: int, most: int) -> int | None:
    """Read ``?limit=N``, at most ``most``; None if it is not a whole number."""
    asked = request.query.get("limit", str(default))
    if not (asked.isascii() and asked.isdigit() and len(asked) < 10):
        return None
    return min(int(asked), most)


def bad_limit(most: int) -> web.Response:
    """The refusal of an invalid limit."""
    return reply(400, f"limit: must be a whole number from 0 to {most}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A program as its admin port sees it.

    ``program`` is its name on the command line, ``instance`` its id. ``settings`` are its
    settings, a dataclass of declared options. ``records`` is None without an audit log, and
    ``end_tunnel`` without tunnels.
    """

    program: str
    instance: str
    settings: object
    live: Checks
    ready: Checks
    metrics: Metrics
    open_metrics: Metrics
    snapshot: Snapshot
    history: History
    records: RecentRecords | None = None
    end_tunnel: EndTunnel | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
