"""What every answer under ``/ui`` carries, and who is refused before anything else.

The page comes from this very port and needs nothing from anywhere else; the headers say so to the
browser, which then runs nothing that somebody smuggled into a name or a log line.
"""

from __future__ import annotations

import asyncio
import os

from aiohttp import web

from isthmus.frame.admin.answers import SAFE_HEADERS
from isthmus.frame.admin.guard import is_from_elsewhere
from isthmus.frame.admin.owner import owner_of

#: Of what is confidential, or new each time.
PAGE_HEADERS = SAFE_HEADERS
#: Of the page's own files: kept by browsers, and asked for each time whether they are still so.
FILE_HEADERS = {**PAGE_HEADERS, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}


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
