"""The target of tunnels: the first line of a connection selects its job.

``python -m hold.target`` prints the port as JSON and serves until its stdin ends. The jobs:

echo           returns every byte, and an end for an end
swap SEED N    sends N bytes of that seed, and after the client's end a trailer of what it received
put NAME       counts bytes; ``take PREFIX`` returns and forgets the counts under matching names
drip SEED N R  sends N bytes of that seed, R bytes each second
pour [N]       sends bytes as fast as they are accepted, N of them or without end
stall          reads nothing; ``release`` ends these connections
count          returns the number of connections

Queries (take, release, count) are made directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from typing import cast

import uvloop

from hold.patterns import PIECE_BYTES, Tally, pieces

MOST_LINE_BYTES = 256
_ZEROS = bytes(PIECE_BYTES)


class Book:
    """What the target remembers of its connections."""

    def __init__(self) -> None:
        self.open: set[Serving] = set()
        self.stalled: set[Serving] = set()
        self.puts: dict[str, tuple[int, str, str]] = {}


class Serving(asyncio.Protocol):
    """One connection."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.head = bytearray()
        self.received: Callable[[bytes], None] = self._line
        self.ended: Callable[[], None] = self._close
        self.lost: Callable[[], None] = lambda: None
        self._room = asyncio.Event()
        self._room.set()
        self._task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self.book.open.add(self)

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the line, or of the job."""
        self.received(data)

    def eof_received(self) -> bool:
        """The client is done; the job knows whether this side is."""
        self.ended()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self.book.open.discard(self)
        self.book.stalled.discard(self)
        self._room.set()
        if self._task is not None:
            self._task.cancel()
        self.lost()

    def pause_writing(self) -> None:
        """The client reads slowly: an echo stops reading, a source waits."""
        self._room.clear()
        if self.received == self.transport.write:
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """There is room again."""
        self._room.set()
        if self.received == self.transport.write:
            self.transport.resume_reading()

    def _close(self) -> None:
        self.transport.close()

    # Jobs.

    def _line(self, data: bytes) -> None:
        self.head += data
        line, newline, rest = self.head.partition(b"\n")
        if not newline:
            if len(self.head) > MOST_LINE_BYTES:
                self.transport.abort()
            return
        name, *words = line.decode("ascii", "replace").split()
        getattr(self, f"do_{name}")(*words)
        if rest:
            self.received(bytes(rest))

    def do_echo(self) -> None:
        """Every byte comes back."""
        self.received = self.transport.write

    def do_swap(self, seed: str, total: str) -> None:
        """Bytes one way and the other, each counted."""
        tally = Tally()
        over = asyncio.Event()
        self.received, self.ended = tally.add, over.set

        async def answer() -> None:
            await self._send(int(seed), int(total))
            await over.wait()
            self.transport.write(tally.trailer())
            self.transport.close()

        self._begin(answer())

    def do_put(self, name: str) -> None:
        """Count what comes, and how it ends."""
        tally = Tally()
        how = "reset"

        def ended() -> None:
            nonlocal how
            how = "end"
            self.transport.close()

        def lost() -> None:
            self.book.puts[name] = (tally.size, tally.trailer().hex(), how)

        self.received, self.ended, self.lost = tally.add, ended, lost

    def do_drip(self, seed: str, total: str, rate: str) -> None:
        """A long stream, slowly."""
        self.received = lambda data: None

        async def drip() -> None:
            await self._send(int(seed), int(total), float(rate))
            self.transport.write_eof()

        self._begin(drip())

    def do_pour(self, total: str = "inf") -> None:
        """More than anybody reads; it stays open."""
        self.received = lambda data: None

        async def pour() -> None:
            left = float(total)
            while left > 0 and not self.transport.is_closing():
                self.transport.write(_ZEROS)
                left -= len(_ZEROS)
                await self._room.wait()

        self._begin(pour())

    def do_stall(self) -> None:
        """Read nothing more."""
        self.received = lambda data: None
        self.book.stalled.add(self)
        self.transport.pause_reading()

    def do_release(self) -> None:
        """End those who stall."""
        for each in tuple(self.book.stalled):
            each.transport.abort()
        self._say({})

    def do_take(self, prefix: str) -> None:
        """Say what came under these names, and forget it."""
        names = [name for name in self.book.puts if name.startswith(prefix)]
        self._say({name: self.book.puts.pop(name) for name in names})

    def do_count(self) -> None:
        """Say how many connections there are, this one apart."""
        self._say({"open": len(self.book.open) - 1, "stalled": len(self.book.stalled)})

    # Helpers.

    def _say(self, answer: object) -> None:
        self.transport.write(json.dumps(answer).encode())
        self.transport.close()

    def _begin(self, work: object) -> None:
        assert asyncio.iscoroutine(work)
        self._task = asyncio.get_running_loop().create_task(work)

    async def _send(self, seed: int, total: int, rate: float = 0.0) -> None:
        for piece in pieces(seed, total):
            if self.transport.is_closing():
                return
            if not rate:
                self.transport.write(piece)
            else:
                await self._slowly(piece, rate)
            await self._room.wait()

    async def _slowly(self, piece: bytes, rate: float) -> None:
        step = max(1, int(rate / 20))
        for at in range(0, len(piece), step):
            if self.transport.is_closing():
                return
            self.transport.write(piece[at : at + step])
            await asyncio.sleep(len(piece[at : at + step]) / rate)


async def serve() -> None:
    """Serve until stdin ends."""
    loop = asyncio.get_running_loop()
    book = Book()
    server = await loop.create_server(lambda: Serving(book), "0.0.0.0", 0, backlog=4096)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(json.dumps({"port": port}) + "\n")
    sys.stdout.flush()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    with contextlib.suppress(asyncio.CancelledError):
        await stdin.read()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve())
