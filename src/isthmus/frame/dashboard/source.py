"""One program of a merged page: follows its feed, reconnects, and ends its tunnels.

Its credentials are read for each connection, so that files may be replaced. The page is made in
merging.py.
"""

from __future__ import annotations

import asyncio
import http.client
import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import aiohttp

from isthmus.errors import ConfigError, ProtocolError
from isthmus.frame.admin.guard import INTENT
from isthmus.frame.dashboard.delta import Json
from isthmus.frame.dashboard.feed import EventReader
from isthmus.frame.dashboard.picture import Picture
from isthmus.text.pacing import Backoff
from isthmus.values import TunnelId

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0
#: Timeouts for a connection, and for the start of an answer.
CONNECT_S = 5.0
ANSWER_S = 10.0
#: The feed sends at least a comment every 15 seconds.
SILENT_S = 40.0
#: The size of the state is checked after this many bytes.
LOOKED_AT_EVERY_BYTES = 64 * 1024 * 1024
_SHOWN_CHARS = 200
_MOST_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminCredentials:
    """Credentials for an admin port: a certificate in the context, a token in the headers."""

    context: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """The address of a source. ``credentials`` reads files and may raise ConfigError.

    ``explain`` describes in a sentence why there was no answer, from an OSError or an error of
    http.client.
    """

    url: str
    address: str
    credentials: Callable[[], AdminCredentials]
    explain: Callable[[Exception], str]


class FeedListener(Protocol):
    """Gets the events of a source."""

    def full(self, source: FeedSource, *, renamed: bool) -> None:
        """It has a new picture; ``renamed`` if it is another program than before."""

    def delta(self, source: FeedSource, data: Json) -> None:
        """Its picture changed by this delta."""

    def lost(self, source: FeedSource) -> None:
        """It cannot be reached."""


class _RefusedError(Exception):
    """The source answered, but not with its feed; the message has the reason."""


class FeedSource:
    """A program that is followed. While it is lost, ``picture`` is None and ``why`` the reason."""

    def __init__(self, number: str, remote: Remote, listener: FeedListener) -> None:
        self.id = number
        self.remote = remote
        self.picture: Picture | None = None
        self.why = ""
        self._listener = listener
        self._known: Json = {"program": "", "instance": "", "canEnd": False}
        self._renamed = False
        self._theirs = ""
        self._backoff = Backoff(
            first_s=FIRST_WAIT_S, cap_s=LONGEST_WAIT_S, chance=random.random, factor=2.0
        )

    def named(self) -> Json:
        """The source's entry in a hello."""
        return {"id": self.id, "address": self.remote.address, **self._known}

    async def follow(self) -> None:
        """Follow the feed, forever."""
        while True:
            try:
                await self._listen()
                why = f"{self.remote.url} ended the stream"
            except (_RefusedError, ConfigError, ProtocolError) as exc:
                why = str(exc)
            except (aiohttp.ClientError, OSError) as exc:  # TimeoutError is an OSError
                why = self._explained(exc)
            self.picture, self.why = None, why
            self._listener.lost(self)
            await asyncio.sleep(self._backoff.next_s())

    async def end(self, tunnel: TunnelId) -> tuple[int, bytes]:
        """End a tunnel; the status and the text of the answer."""
        path = f"{self.remote.url}/tunnels/{tunnel}/end"
        try:
            shown = await asyncio.to_thread(self.remote.credentials)
            headers = {**shown.headers, INTENT: "end"}
            async with (
                asyncio.timeout(ANSWER_S),
                _session(shown) as session,
                session.post(path, headers=headers, allow_redirects=False) as answer,
            ):
                return answer.status, await answer.content.read(_MOST_ANSWER_BYTES)
        except ConfigError as exc:
            return 502, f"{exc}\n".encode()
        except (aiohttp.ClientError, OSError) as exc:
            return 502, f"{self._explained(exc)}\n".encode()

    async def _listen(self) -> None:
        shown = await asyncio.to_thread(self.remote.credentials)
        path = f"{self.remote.url}/ui/events"
        async with _session(shown) as session:
            async with asyncio.timeout(ANSWER_S):
                answer = await session.get(path, headers=shown.headers, allow_redirects=False)
            async with answer:
                if answer.status != 200:
                    raise _RefusedError(await self._refusal(answer))
                reader = EventReader()
                due = LOOKED_AT_EVERY_BYTES
                async for piece in answer.content.iter_any():
                    for name, data in reader.take(piece):
                        self._heard(name, data)
                    if reader.taken_bytes > due and self.picture is not None:
                        due = reader.taken_bytes + LOOKED_AT_EVERY_BYTES
                        self.picture.check_size()

    def _heard(self, name: str, data: Json) -> None:
        if name == "hello":
            self._meet(data)
        elif data.get("source") != self._theirs:
            return
        data["source"] = self.id
        if name == "full":
            self.picture, self.why = Picture(data), ""
            self._backoff.reset()
            renamed, self._renamed = self._renamed, False
            self._listener.full(self, renamed=renamed)
        elif name == "delta" and self.picture is not None:
            self.picture.apply(data)
            self._listener.delta(self, data)

    def _meet(self, data: Json) -> None:
        try:
            first = data["sources"][0]
            self._theirs = str(first["id"])
            met: Json = {
                "program": str(first["program"])[:_SHOWN_CHARS],
                "instance": str(first["instance"])[:_SHOWN_CHARS],
                "canEnd": first["canEnd"] is True,
            }
        except (KeyError, IndexError, TypeError) as exc:
            raise ProtocolError(f"invalid hello event from {self.remote.url}") from exc
        self._renamed = self._renamed or met != self._known
        self._known = met

    async def _refusal(self, answer: aiohttp.ClientResponse) -> str:
        said = (await answer.content.read(_SHOWN_CHARS)).decode("utf-8", "replace")
        line = "".join(c for c in next(iter(said.splitlines()), "") if c.isprintable())
        match answer.status:
            case 401:
                return f"{self.remote.url} requires a valid token; see --token-file"
            case 404:
                return f"{self.remote.url} has no dashboard: an older version, or not an admin port"
            case status:
                return (
                    f"{self.remote.url} answered with status {status}{': ' if line else ''}{line}"
                )

    def _explained(self, exc: Exception) -> str:
        return f"{self.remote.url}: {self.remote.explain(_plain(exc))}"


def _session(shown: AdminCredentials) -> aiohttp.ClientSession:
    # Without a context the scheme is http, and True is only the default.
    connector = aiohttp.TCPConnector(ssl=shown.context or True, limit=1, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENT_S)
    return aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
    )


def _plain(exc: Exception) -> Exception:
    """The error of the standard library inside one of aiohttp's, or the closest to it."""
    match exc:
        case aiohttp.ClientConnectorCertificateError():
            return exc.certificate_error
        case aiohttp.ClientConnectorError():
            return exc.os_error
        case aiohttp.ClientPayloadError():
            return http.client.IncompleteRead(b"")
        case aiohttp.ServerDisconnectedError():
            return ConnectionResetError()
        case aiohttp.ClientOSError() if isinstance(exc.__cause__, OSError):
            return exc.__cause__
        case OSError():
            return exc
        case _:
            return http.client.HTTPException()
