"""What an operators' port is told of its program, and what its handlers give back.

Routes, checks, and ``Watched``: plain callables, given by the program. Serving is ports.py, who is
answered guard.py, the paths themselves routes.py.
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

#: Answers a request; may stream, and is cancelled when whoever asked leaves.
Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
#: Handlers by path, for GET and HEAD. A path behind ``POST`` and a space changes something, and a
#: ``*`` in it stands for one segment.
Routes = Mapping[str, Handler]
#: What stands before the path of a change.
POST = "POST "
#: What every answer carries.
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
#: What a page of this port may do: use what comes from this very port, and nothing else.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: What pages carry, and refusals, which a browser may show in place of one.
SAFE_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
T = TypeVar("T")
#: What a program shows it has at hand, or has to ask other processes for.
Metrics = Callable[[], bytes | Awaitable[bytes]]
#: Is told how many tunnels to show at most, and counts the rest as truncated.
Snapshot = Callable[[int], ProgramView | Awaitable[ProgramView]]
#: The last records of the audit log as lines of JSON, oldest first, and the number of the newest:
#: those after a number, at most so many.
RecentRecords = Callable[[int, int], tuple[list[bytes], int]]
#: Ends a tunnel for an operator, who is named; gives its connection id, or None if there is none.
EndTunnel = Callable[[TunnelId, str], str | Awaitable[str | None] | None]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that liveness or readiness depends on; ``failure`` is empty when it is well."""

    name: str
    failure: str = ""


PING = Check("ping")


Checks = Callable[[], list[Check]]


async def settled(given: T | Awaitable[T]) -> T:
    """What was given, at once or in a while."""
    if isawaitable(given):
        found: T = await given
        return found
    return given


def reply(status: int, text: str) -> web.Response:
    """Make an answer of plain text."""
    return web.Response(status=status, text=text, headers=HEADERS)


def refuse(status: int, text: str) -> web.Response:
    """Make an answer to whoever gets nothing else, with the headers of a page."""
    return web.Response(status=status, text=text, headers=SAFE_HEADERS)


def json_reply(body: bytes | str, status: int = 200) -> web.Response:
    """Make an answer of JSON that is written already."""
    raw = body.encode() if isinstance(body, str) else body
    headers = {**HEADERS, "Content-Type": "application/json"}
    return web.Response(status=status, body=raw, headers=headers)


def asked_limit(request: web.BaseRequest, *, default: int, most: int) -> int | None:
    """Read ``?limit=N``, cut to the most there is; None when it is no whole number."""
    asked = request.query.get("limit", str(default))
    if not (asked.isascii() and asked.isdigit() and len(asked) < 10):
        return None
    return min(int(asked), most)


def bad_limit(most: int) -> web.Response:
    """Say what a limit has to be."""
    return reply(400, f"limit: not a whole number from 0 to {most}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A program as its admin port sees it.

    ``program`` is its name on the command line, ``instance`` its id. ``settings`` are those that it
    runs with, a dataclass of declared options. ``records`` is None where nothing is audited, and
    ``end_tunnel`` where there is nothing to end.
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
