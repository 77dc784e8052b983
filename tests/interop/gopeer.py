"""The Go yamux peer as a process, and our session over a real socket towards it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from time import monotonic
from typing import Any

import uvloop

from isthmus.errors import ProtocolError
from isthmus.net.poller import Poller
from isthmus.net.raw import RawSocket
from isthmus.testing import MemoryEnd
from isthmus.tunnel.end import Ending, join
from isthmus.tunnel.limits import Limits
from isthmus.tunnel.session import Session
from isthmus.tunnel.stream import Stream
from isthmus.wire.yamux import DATA, Header, take_header

PATIENCE_S = 30.0
DEFAULTS = Limits()
PERIOD = 65521
PATTERN = bytes((i * 31 + (i >> 8) * 7) & 0xFF for i in range(PERIOD))


def pattern(size: int) -> list[bytes]:
    """The bytes that the Go peer's source sends, as chunks that share their memory."""
    whole, rest = divmod(size, PERIOD)
    return [PATTERN] * whole + ([PATTERN[:rest]] if rest else [])


def digest(size: int) -> str:
    """The SHA-256 of that many bytes of the pattern."""
    sum_ = hashlib.sha256()
    for chunk in pattern(size):
        sum_.update(chunk)
    return sum_.hexdigest()


class PlainCarrier(RawSocket):
    """A session's carrier over plain TCP; links use TLS, the plumbing is the same."""

    __slots__ = ("_headers", "_skip", "_tap", "changed", "error", "session")

    def __init__(self, sock: socket.socket, poller: Poller) -> None:
        self.session: Session
        self.error: ProtocolError | None = None
        self.changed = asyncio.Event()
        self._headers: list[Header] | None = None
        self._tap = bytearray()
        self._skip = 0
        super().__init__(sock, poller)

    # The session's side.

    def send(self, data: bytes) -> bool:
        return self.put(data)

    def wake(self) -> None:
        self.poller.flush_later(self.session.flush)

    # The socket's side.

    def readable(self) -> None:
        try:
            data = self.sock.recv(256 * 1024)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.changed.set()
        if not data:
            self.broken()
            return
        if self._headers is not None:
            self._watch(data)
        self.session.heard()
        try:
            self.session.receive(memoryview(data))
        except ProtocolError as exc:
            self.error = exc
            self.broken()
            return
        self.poller.again(self.read_again)

    def drained(self) -> None:
        self.session.resume()

    def broken(self) -> None:
        self.changed.set()
        self.reset()
        self.session.lost(Ending.LINK_LOST)

    # The test's side.

    def record(self) -> list[Header]:
        """Keep the header of every frame that arrives from now on; nothing may be half read."""
        self._headers = []
        return self._headers

    def _watch(self, data: bytes) -> None:
        assert self._headers is not None
        while data:
            if self._skip:
                used = min(self._skip, len(data))
                self._skip -= used
                data = data[used:]
                continue
            need = 12 - len(self._tap)
            self._tap += data[:need]
            data = data[need:]
            header = take_header(self._tap)
            if header is not None:
                self._headers.append(header)
                self._skip = header.length if header.type == DATA else 0


class HashingEnd(MemoryEnd):
    """A memory end that keeps a sum instead of the bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = hashlib.sha256()

    def took(self, data: bytes) -> None:
        self.sum.update(data)


class Go:
    """The peer's process: commands in, events out."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())

    async def event(self, name: str, stream_id: int | None = None) -> dict[str, Any]:
        """Wait for an event of this name (and stream); others are kept."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for at, event in enumerate(self.events):
                    if event["event"] == name and stream_id in (None, event["id"]):
                        return self.events.pop(at)
                line = await self.process.stdout.readline()
                assert line, f"the Go peer ended before it said {name!r}: {self.events}"
                self.events.append(json.loads(line))


class Pair:
    """Our session and the Go peer at the other end of a TCP connection."""

    def __init__(self, go: Go, carrier: PlainCarrier, *, client: bool, limits: Limits) -> None:
        self.go = go
        self.carrier = carrier
        self.accepted: list[Stream] = []
        self.on_stream: Callable[[Stream], None] = self.accepted.append
        self.session = carrier.session = Session(
            carrier,
            client=client,
            clock=monotonic,  # the loop's own counts in milliseconds
            on_stream=lambda stream: self.on_stream(stream),
            limits=limits,
        )

    def open(self, behaviour: str, end: MemoryEnd | None = None) -> tuple[Stream, MemoryEnd]:
        """Open a stream whose behaviour the Go peer reads from its first line."""
        stream = self.session.open()
        assert stream is not None
        end = end if end is not None else MemoryEnd()
        join(stream, end)
        end.feed(f"{behaviour}\n".encode())
        return stream, end

    async def accept(self, behaviour: str, end: MemoryEnd | None = None) -> tuple[Stream, Any]:
        """Have the Go peer open a stream, and join it to an end."""
        self.go.tell(f"open {behaviour}")
        await self.until(lambda: bool(self.accepted))
        stream = self.accepted.pop()
        end = end if end is not None else MemoryEnd()
        join(stream, end)
        return stream, end

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that arrives makes it true."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.carrier.changed.clear()
                await self.carrier.changed.wait()

    async def until_done(self, end: MemoryEnd) -> None:
        """Wait until an end has finished, however."""
        await self.until(lambda: end.ending is not None)


@contextlib.asynccontextmanager
async def go_process(binary: Path, *flags: str) -> AsyncIterator[tuple[Go, socket.socket]]:
    """The peer, and our end of the connection it made."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        host, port = listener.getsockname()
        process = await asyncio.create_subprocess_exec(
            str(binary),
            f"-address={host}:{port}",
            *flags,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                sock, _ = await loop.sock_accept(listener)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield Go(process), sock
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@contextlib.asynccontextmanager
async def paired(
    binary: Path, *flags: str, go_is_client: bool = False, limits: Limits = DEFAULTS
) -> AsyncIterator[Pair]:
    """Our session against the Go peer, in the roles given."""
    poller = Poller(asyncio.get_running_loop())
    role = ("-client",) if go_is_client else ()
    async with go_process(binary, *role, *flags) as (go, sock):
        carrier = PlainCarrier(sock, poller)
        try:
            yield Pair(go, carrier, client=not go_is_client, limits=limits)
        finally:
            carrier.broken()
            poller.shut_down()
            sock.close()


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run on the loop that the programs run on."""
    uvloop.run(main)
