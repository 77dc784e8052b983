"""What handlers of an operators' port are and give back: routes, checks, answers.

Serving them is ports.py, who is answered guard.py, the paths themselves routes.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from typing import TypeVar

from aiohttp import web

from isthmus.frame.model.snapshot import ProgramView

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


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that liveness or readiness depends on; ``failure`` is empty when it is well."""

    name: str
    failure: str = ""


PING = Check("ping")

T = TypeVar("T")

Checks = Callable[[], list[Check]]
#: What a program shows it has at hand, or has to ask other processes for.
Metrics = Callable[[], bytes | Awaitable[bytes]]
#: Is told how many tunnels to show at most, and counts the rest as truncated.
Snapshot = Callable[[int], ProgramView | Awaitable[ProgramView]]


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
