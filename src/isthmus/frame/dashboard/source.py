"""One program of a merged page: its feed, followed and found again, and what it may be asked.

Its credentials are read anew for each connection, so that files may be replaced meanwhile. What
the page makes of it is merging.py.
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
#: For a connection, and for the beginning of an answer.
CONNECT_S = 5.0
ANSWER_S = 10.0
#: The feed breaks its silence every 15 seconds.
SILENT_S = 40.0
#: After so much has been heard, it is seen that what is kept of it has not grown too large.
LOOKED_AT_EVERY_BYTES = 64 * 1024 * 1024
_SHOWN_CHARS = 200
_MOST_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminCredentials:
    """What is shown to an admin port: a certificate in the context, a token in the headers."""

    context: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where a source is. ``credentials`` reads files and may raise ConfigError.

    ``explain`` says in a sentence why there was no answer; it is asked with an OSError or one of
    http.client's errors.
    """

    url: str
    address: str
    credentials: Callable[[], AdminCredentials]
    explain: Callable[[Exception], str]


class FeedListener(Protocol):
    """Who is told how a source fares."""

    def full(self, source: FeedSource, *, renamed: bool) -> None:
        """It has a new picture; ``renamed``: and is another program than it was."""

    def delta(self, source: FeedSource, data: Json) -> None:
        """Its picture has changed by this."""

    def lost(self, source: FeedSource) -> None:
        """It cannot be reached."""


class _RefusedError(Exception):
    """The source answered, but not with its feed; the sentence says how."""


class FeedSource:
    """A program that is followed. ``picture`` is None and ``why`` a sentence while it is lost."""

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
        """The source, as a hello names it."""
        return {"id": self.id, "address": self.remote.address, **self._known}

    async def follow(self) -> None:
        """Follow the feed for ever."""
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
        """Have a tunnel ended; the status and the text of the answer."""
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
            raise ProtocolError(f"{self.remote.url} says hello as no program of ours does") from exc
        self._renamed = self._renamed or met != self._known
        self._known = met

    async def _refusal(self, answer: aiohttp.ClientResponse) -> str:
        said = (await answer.content.read(_SHOWN_CHARS)).decode("utf-8", "replace")
        line = "".join(c for c in next(iter(said.splitlines()), "") if c.isprintable())
        match answer.status:
            case 401:
                return f"{self.remote.url} wants a token that it knows; see --token-file"
            case 404:
                return f"{self.remote.url} has no dashboard: it is older, or no admin port"
            case status:
                return f"{self.remote.url} answers with {status}{': ' if line else ''}{line}"

    def _explained(self, exc: Exception) -> str:
        return f"{self.remote.url}: {self.remote.explain(_plain(exc))}"


def _session(shown: AdminCredentials) -> aiohttp.ClientSession:
    # Without a context of ours the scheme is http, and True is only what is there by default.
    connector = aiohttp.TCPConnector(ssl=shown.context or True, limit=1, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENT_S)
    return aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
    )


def _plain(exc: Exception) -> Exception:
    """The error of the standard library that is in one of aiohttp's, or is most like it."""
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
