"""Attempts: what each verb does with a target, through any dialer, and the outcome.

Attempts run concurrently in one loop, each within its time limit, whatever the target does.
Background traffic repeats attempts with a few clients and counts them.
"""

from __future__ import annotations

import asyncio
import errno
import random
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from isthmus import __version__
from isthmus.errors import DialError, DialFailure, IsthmusError
from isthmus.lab import attempts
from isthmus.lab.pipes import Dialer, Pipe, opened
from isthmus.lab.probe_messages import AttemptOutcome, TrafficCount
from isthmus.lab.topology import UDP, AttemptFailure, LabAttempt, Verb
from isthmus.net.poller import Poller
from isthmus.values import HostPort

MOST_PAGE_BYTES = 4 * 1024 * 1024
_MOST_SAID = 300
_CHUNK_BYTES = 64 * 1024
# Of odd length, so that misplaced bytes do not look like their neighbours.
_PATTERN = random.Random(5).randbytes(65_521)

FAILING_OF_DIAL = {
    DialFailure.REFUSED: AttemptFailure.REFUSED,
    DialFailure.TIMED_OUT: AttemptFailure.TIMEOUT,
    DialFailure.UNREACHABLE: AttemptFailure.UNREACHABLE,
    DialFailure.UNRESOLVED: AttemptFailure.UNRESOLVED,
    DialFailure.DENIED: AttemptFailure.DENIED,
    DialFailure.NO_AGENT: AttemptFailure.NO_AGENT,
    DialFailure.AGENT_LOST: AttemptFailure.NO_AGENT,
    DialFailure.TOO_MANY: AttemptFailure.OTHER,
    DialFailure.INTERNAL: AttemptFailure.OTHER,
}
FAILING_OF_ERRNO = {
    errno.ECONNREFUSED: AttemptFailure.REFUSED,
    errno.ECONNRESET: AttemptFailure.RESET,
    errno.ECONNABORTED: AttemptFailure.RESET,
    errno.EPIPE: AttemptFailure.RESET,
    errno.ETIMEDOUT: AttemptFailure.TIMEOUT,
    errno.EHOSTUNREACH: AttemptFailure.UNREACHABLE,
    errno.ENETUNREACH: AttemptFailure.UNREACHABLE,
}
ERRNO_OF_DIAL = {
    DialFailure.REFUSED: errno.ECONNREFUSED,
    DialFailure.TIMED_OUT: errno.ETIMEDOUT,
    DialFailure.UNREACHABLE: errno.EHOSTUNREACH,
}

_MOST_BYTES = 2048
_QUESTION = b"who\n"

#: The failures that are distinguished; all others are OTHER.
MOST_KINDS = 20
OTHER = "other"
_MOST_CLIENTS = 1000


class WrongAnswerError(Exception):
    """The target answered, but not as expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptMeans:
    """What attempts use.

    ``trust`` returns the TLS context for https targets. ``half_closes`` is false for a dialer that
    cannot forward a half-close.
    """

    dialer: Dialer
    poller: Poller
    trust: Callable[[], ssl.SSLContext]
    half_closes: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PageUrl:
    """The address of a page."""

    at: HostPort
    host: str
    path: str
    https: bool

    @classmethod
    def parse(cls, text: str) -> PageUrl:
        """Read a URL, or host:port.

        Raises:
            ValueError: the text is neither, or contains blanks, control characters or characters
                beyond ASCII, which no request can contain.
        """
        if not text.isascii() or not text.isprintable() or " " in text:
            raise ValueError(f"a URL cannot contain such characters: {text!r}")
        if "://" not in text:
            return cls(at=HostPort.parse(text), host=text, path="/", https=False)
        url = urlsplit(text)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"not an http or https URL: {text!r}")
        https = url.scheme == "https"
        at = HostPort(url.hostname, url.port or (443 if https else 80))
        path = (url.path or "/") + (f"?{url.query}" if url.query else "")
        return cls(at=at, host=url.netloc.rpartition("@")[2], path=path, https=https)


@dataclass(slots=True)
class _Tally:
    """The number of bytes moved, also by an attempt that fails."""

    bytes: int = 0


async def make(asked: LabAttempt, means: AttemptMeans) -> AttemptOutcome:
    """Make one attempt; every error becomes its outcome."""
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    tally = _Tally()
    lasting_s = asked.seconds if asked.verb in (Verb.DOWNLOAD, Verb.UPLOAD) else 0.0
    failing: AttemptFailure | None = None
    try:
        async with asyncio.timeout(asked.timeout_s + lasting_s):
            said = await _DO[asked.verb](asked, means, tally)
    except TimeoutError as exc:
        failing = AttemptFailure.TIMEOUT
        said = str(exc) or f"not finished within {asked.timeout_s:g} s"
    except DialError as exc:
        failing = FAILING_OF_DIAL[exc.reason]
        said = f"{exc.reason.value}: {exc.detail}" if exc.detail else exc.reason.value
    except OSError as exc:
        failing = _failing_of(exc)
        said = exc.strerror or str(exc) or type(exc).__name__
    except (WrongAnswerError, IsthmusError, ValueError) as exc:
        failing, said = AttemptFailure.OTHER, str(exc)
    took_s = loop.time() - started_at
    return AttemptOutcome(failing=failing, said=_one_line(said), took_s=took_s, bytes=tally.bytes)


def _failing_of(error: OSError) -> AttemptFailure:
    if isinstance(error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        return AttemptFailure.RESET
    if isinstance(error, ssl.SSLError):  # ssl has error numbers of its own
        return AttemptFailure.OTHER
    return FAILING_OF_ERRNO.get(error.errno or 0, AttemptFailure.OTHER)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    return shown[:_MOST_SAID]


# The verbs.


async def _connect(asked: LabAttempt, means: AttemptMeans, tally: _Tally) -> str:
    target = HostPort.parse(asked.target)
    async with opened(means.dialer, means.poller, target, timeout_s=asked.timeout_s):
        return "connected"


async def _get(asked: LabAttempt, means: AttemptMeans, tally: _Tally) -> str:
    status, line, body = await get(PageUrl.parse(asked.target), means, timeout_s=asked.timeout_s)
    tally.bytes = len(body)
    if status != 200:
        raise WrongAnswerError(line)
    return body.decode("utf-8", "replace").strip().partition("\n")[0]


async def get(page: PageUrl, means: AttemptMeans, *, timeout_s: float) -> tuple[int, str, bytes]:
    """Get a page: its status, its status line and its body, of at most MOST_PAGE_BYTES.

    Raises:
        DialError: the target was not reached.
        OSError: TLS failed, or the tunnel was reset.
        WrongAnswerError: the answer is not HTTP, or the page is too large.
        ValueError: the page's path is invalid.
    """
    context = means.trust() if page.https else None
    async with opened(
        means.dialer,
        means.poller,
        page.at,
        timeout_s=timeout_s,
        context=context,
        name=page.at.host.rstrip("."),
    ) as pipe:
        http = h11.Connection(h11.CLIENT)
        headers = [
            ("Host", page.host),
            ("User-Agent", f"isthmus/{__version__}"),
            ("Connection", "close"),
        ]
        try:
            ask = h11.Request(method="GET", target=page.path, headers=headers)
            pipe.writer.write((http.send(ask) or b"") + (http.send(h11.EndOfMessage()) or b""))
            return await _read_page(http, pipe)
        except h11.LocalProtocolError as exc:
            raise ValueError(f"cannot request {page.path!r}: {exc}") from exc
        except h11.RemoteProtocolError as exc:
            pipe.check()
            raise WrongAnswerError(f"invalid HTTP response: {exc}") from exc


async def _read_page(http: h11.Connection, pipe: Pipe) -> tuple[int, str, bytes]:
    status, line, body = 0, "", bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await pipe.read())
        elif isinstance(event, h11.Response):
            status = event.status_code
            line = f"HTTP status {status} {event.reason.decode('latin-1')}".rstrip()
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MOST_PAGE_BYTES:
                raise WrongAnswerError(f"page larger than {MOST_PAGE_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
            return status, line, bytes(body)


def _pattern(start: int, size: int) -> bytes:
    """Bytes whose values depend on their position in the stream."""
    offset = start % len(_PATTERN)
    return (_PATTERN * (2 + size // len(_PATTERN)))[offset : offset + size]


async def _echo(asked: LabAttempt, means: AttemptMeans, tally: _Tally) -> str:
    target = HostPort.parse(asked.target)
    async with opened(means.dialer, means.poller, target, timeout_s=asked.timeout_s) as pipe:
        sending = asyncio.create_task(_send_pattern(pipe, asked.bytes, means.half_closes))
        try:
            while data := await pipe.read():
                if data != _pattern(tally.bytes, len(data)):
                    raise WrongAnswerError(f"wrong bytes came back after {tally.bytes}")
                tally.bytes += len(data)
                if tally.bytes > asked.bytes:
                    raise WrongAnswerError(f"more than {asked.bytes} bytes came back")
                if tally.bytes == asked.bytes and not means.half_closes:
                    break
            if tally.bytes < asked.bytes:
                raise WrongAnswerError(f"{tally.bytes} of {asked.bytes} bytes came back")
            await sending
        finally:
            sending.cancel()
            await asyncio.wait((sending,))
            if not sending.cancelled():
                sending.exception()  # the reader has seen the reason
    return f"{asked.bytes} bytes came back"


async def _send_pattern(pipe: Pipe, size: int, half_close: bool) -> None:
    for start in range(0, size, _CHUNK_BYTES):
        pipe.writer.write(_pattern(start, min(_CHUNK_BYTES, size - start)))
        await pipe.writer.drain()
    if half_close:
        pipe.writer.write_eof()


async def _download(asked: LabAttempt, means: AttemptMeans, tally: _Tally) -> str:
    target = HostPort.parse(asked.target)
    async with opened(means.dialer, means.poller, target, timeout_s=asked.timeout_s) as pipe:
        try:
            async with asyncio.timeout(asked.seconds):
                while data := await pipe.read():
                    tally.bytes += len(data)
        except TimeoutError:
            if not tally.bytes:
                raise TimeoutError(f"no data within {asked.seconds:g} s") from None
    return f"{tally.bytes} bytes received"


async def _upload(asked: LabAttempt, means: AttemptMeans, tally: _Tally) -> str:
    target = HostPort.parse(asked.target)
    async with opened(means.dialer, means.poller, target, timeout_s=asked.timeout_s) as pipe:
        loop = asyncio.get_running_loop()
        stop_at = loop.time() + asked.seconds
        sent = 0
        with suppress(TimeoutError):
            async with asyncio.timeout_at(stop_at):
                while loop.time() < stop_at:
                    pipe.writer.write(_PATTERN)
                    sent += len(_PATTERN)
                    tally.bytes = sent - pipe.writer.transport.get_write_buffer_size()
                    await pipe.writer.drain()
        tally.bytes = sent - pipe.writer.transport.get_write_buffer_size()
        if means.half_closes:
            # Much of the data is in buffers on the way: a lab's sink reports what arrived.
            pipe.writer.write_eof()
            said = await _read_count(pipe, loop.time() + asked.timeout_s / 2)
            tally.bytes = said if said is not None else tally.bytes
    return f"{tally.bytes} bytes sent"


async def _read_count(pipe: Pipe, until: float) -> int | None:
    """The number that a sink sends at the end, if it arrives in time."""
    said = b""
    try:
        async with asyncio.timeout_at(until):
            while data := await pipe.read(64):
                said = (said + data)[:64]
    except TimeoutError:
        return None
    return int(said) if said.strip().isdigit() else None


async def _ask(asked: LabAttempt, means: AttemptMeans, tally: _Tally) -> str:
    answer = await ask(means.dialer, means.poller, asked.target, timeout_s=asked.timeout_s)
    tally.bytes = len(answer)
    return answer.decode("utf-8", "replace").strip().partition("\n")[0]


_DO: dict[Verb, Callable[[LabAttempt, AttemptMeans, _Tally], Awaitable[str]]] = {
    Verb.CONNECT: _connect,
    Verb.GET: _get,
    Verb.ECHO: _echo,
    Verb.DOWNLOAD: _download,
    Verb.UPLOAD: _upload,
    Verb.ASK: _ask,
}


async def ask(dialer: Dialer, poller: Poller, target: str, *, timeout_s: float) -> bytes:
    """Ask at host:port, or at udp://host:port, which no dialer supports; returns the answer.

    Raises:
        DialError, OSError: the target was not reached, or the answer was cut off.
        ValueError: the target is invalid.
    """
    if target.startswith(UDP):
        return await ask_by_udp(HostPort.parse(target.removeprefix(UDP)))
    answer = b""
    async with opened(dialer, poller, HostPort.parse(target), timeout_s=timeout_s) as pipe:
        while len(answer) < _MOST_BYTES and (data := await pipe.read(_MOST_BYTES)):
            answer += data
    return answer


async def ask_by_udp(target: HostPort) -> bytes:
    """Ask in a datagram; the caller limits the time.

    Raises:
        OSError: the port is closed, or the datagram cannot be sent.
    """
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes] = loop.create_future()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: _Question(answered), remote_addr=(target.host, target.port)
    )
    try:
        transport.sendto(_QUESTION)
        return await answered
    finally:
        transport.close()


class _Question(asyncio.DatagramProtocol):
    """Waits for one answer, or for an ICMP error."""

    def __init__(self, answered: asyncio.Future[bytes]) -> None:
        self._answered = answered

    def datagram_received(self, data: bytes, addr: object) -> None:
        if not self._answered.done():
            self._answered.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self._answered.done():
            self._answered.set_exception(exc)


class BackgroundTraffic:
    """Some clients at work, from construction until ``end``."""

    def __init__(
        self,
        asked: Sequence[tuple[LabAttempt, attempts.AttemptMeans]],
        *,
        clients: int,
        pause_s: float,
    ) -> None:
        if not 0 < clients * len(asked) <= _MOST_CLIENTS:
            number = clients * len(asked)
            raise ValueError(f"the number of clients must be 1 to {_MOST_CLIENTS}, not {number}")
        self._pause_s = max(pause_s, 0.0)
        self._ending = asyncio.Event()
        self._worked = 0
        self._failed: Counter[str] = Counter()
        self._slowest_s = 0.0
        self.tasks = [
            asyncio.create_task(self._client(attempt, means), name=f"traffic:{attempt.target}")
            for attempt, means in asked
            for _ in range(clients)
        ]

    async def _client(self, attempt: LabAttempt, means: attempts.AttemptMeans) -> None:
        while not self._ending.is_set():
            self.count(await attempts.make(attempt, means))
            try:
                async with asyncio.timeout(self._pause_s):
                    await self._ending.wait()
            except TimeoutError:
                continue

    def count(self, outcome: AttemptOutcome) -> None:
        self._slowest_s = max(self._slowest_s, outcome.took_s)
        if outcome.failing is None:
            self._worked += 1
            return
        said = f"{outcome.failing.value}: {outcome.said}"
        if said not in self._failed and len(self._failed) >= MOST_KINDS:
            said = OTHER
        self._failed[said] += 1

    async def end(self) -> TrafficCount:
        """Wait for attempts in progress, and return the counts."""
        # Attempts in progress are not cancelled: a hanging one would count as neither.
        self._ending.set()
        await asyncio.gather(*self.tasks)
        return TrafficCount(
            worked=self._worked, failed=dict(self._failed), slowest_s=self._slowest_s
        )
