"""The page's own files: read once, served by a fixed list of names."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from functools import cached_property, partial
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

from isthmus.frame.admin.answers import Handler
from isthmus.frame.dashboard.answers import FILE_HEADERS, say

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


class File:
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
    found = {name: File(name, body) for name, body in _read(_assets())}
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
    answer = say(308, "the page is one slash further")
    answer.headers["Location"] = f"{name}/"  # relative: something may be before us in the path
    return answer
