"""A connection for coroutines: read, write, drain, half-close, close.

It is the peer of the tunnel's end, with nothing in between: bytes that the end reads are put into a
buffer here, and written bytes go directly to the end. dialer.py makes real sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from isthmus.net.connect import TunnelResetError
from isthmus.tunnel.end import GONE, BaseEnd, End, Ending, join

#: The bytes that may wait here for a reader; beyond that the end stops reading.
BUFFER_BYTES = 256 * 1024
READ_BYTES = 64 * 1024
#: How long close() waits for the target to end its side.
GRACE_S = 1.0
#: How long until the target's side is reset, in the background.
LINGER_S = 60.0

Buffer = bytes | bytearray | memoryview


class Connection:
    """A byte stream to a target; for one event loop, one reader at a time.

    Every await can be cancelled without losing a byte. A reset raises ConnectionResetError, after
    the bytes before it have been read, and never looks like the end of the stream. As a context
    manager it is closed at the end, or aborted if the block raised.
    """

    def __init__(self, end: BaseEnd, info: dict[str, object] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._info = info or {}
        self._end = end
        self._inbox = _Inbox(self._changed)
        self._waiters: list[asyncio.Future[None]] = []
        self._reading = False
        self._full = False
        self._eof_written = False
        self._closing = False
        self._linger: asyncio.TimerHandle | None = None
        self._on_done = end.on_done
        end.on_done = self._done
        join(end, self._inbox)

    def __repr__(self) -> str:
        target = self._info.get("target", "?")
        return f"<Connection to {target} {self._end.ending.value if self._end.ending else 'open'}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abort()

    # Reading.

    async def read(self, size: int = READ_BYTES, *, timeout_s: float | None = None) -> bytes:
        """Read some bytes, at most ``size``; none at the clean end.

        Raises:
            ConnectionResetError: the connection was reset, here or anywhere on the way.
            TimeoutError: nothing came in time; the connection can still be used.
        """
        if self._reading:
            raise RuntimeError("another coroutine is reading this connection")
        inbox = self._inbox
        self._reading = True
        try:
            async with asyncio.timeout(timeout_s):
                while not (inbox.buffer or inbox.eof or inbox.broken):
                    await self._change()
        finally:
            self._reading = False
        if inbox.buffer:
            return inbox.take(size)
        if not inbox.eof:
            self._check()
        return b""

    # Writing.

    def write(self, data: Buffer) -> None:
        """Send bytes, or buffer those that cannot be sent now; drain() waits for room.

        Raises:
            ConnectionResetError: the connection was reset.
            RuntimeError: write_eof() or close() was called before.
        """
        self._check()
        if self._eof_written:
            raise RuntimeError("the connection is closed for writing")
        if data:
            self._full = not self._end.write(data if type(data) is bytes else bytes(data))

    async def drain(self, *, timeout_s: float | None = None) -> None:
        """Wait until more may be written.

        Raises:
            ConnectionResetError: the connection was reset.
            TimeoutError: there was no room in time.
        """
        async with asyncio.timeout(timeout_s):
            while self._full and not self._inbox.broken and self._end.ending is None:
                await self._change()
        self._check()

    def write_eof(self) -> None:
        """Half-close: the target reads everything written, then the end; reading goes on."""
        if not self._eof_written:
            self._eof_written = True
            self._end.write_eof()

    # Ending.

    async def close(self, *, timeout_s: float = 30.0, grace_s: float = GRACE_S) -> None:
        """Send what was written, half-close, and wait ``grace_s`` for the target to do the same.

        Bytes that the target still sends are discarded. A target that sends a lot, or keeps its
        side open for a minute, is reset in the background.

        Raises:
            TimeoutError: the written bytes were not sent in time; the connection is reset.
        """
        if self._closing:
            return
        self._closing = True
        self.write_eof()
        self._inbox.discard()
        self._wake()
        try:
            async with asyncio.timeout(timeout_s):
                while self._full and self._end.ending is None:
                    await self._change()
        except BaseException:
            self.abort()
            raise
        try:
            async with asyncio.timeout(min(grace_s, timeout_s)):
                while self._end.ending is None:
                    await self._change()
        except TimeoutError:
            self._linger = self._loop.call_later(LINGER_S, self._end.abort, Ending.CANCELLED)
            # If a server does not support half-closes, nothing was sent yet: end the connection.
            self._end.let_go()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Reset at once; the target sees a reset if the protocols on the way can express it."""
        self._closing = self._eof_written = True
        self._end.abort(Ending.CANCELLED)
        if self._inbox.broken is None and not self._inbox.eof:
            self._inbox.abort(Ending.CANCELLED)

    @property
    def is_closing(self) -> bool:
        """Whether sending and receiving has ended, or will soon."""
        return self._closing or self._end.ending is not None

    @property
    def readable(self) -> bool:
        """Whether a read returns at once: with bytes, the end or a reset."""
        inbox = self._inbox
        return bool(inbox.buffer or inbox.eof or inbox.broken)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return ``target`` (HostPort), ``network`` or ``peername``."""
        return self._info.get(name, default)

    # Waiting.

    def _check(self) -> None:
        why = self._inbox.broken
        if why is None and self._end.ending not in (None, Ending.CLEAN):
            why = self._end.ending
        if why is not None:
            raise TunnelResetError(f"the connection was reset: {why.value}")

    def _done(self, end: End, ending: Ending) -> None:
        self._on_done(end, ending)
        if ending is not Ending.CLEAN and self._inbox.broken is None:
            self._inbox.broken = ending
        if self._linger is not None:
            self._linger.cancel()
        self._wake()

    def _changed(self, room: bool) -> None:
        """Wake waiters: bytes came, or there is room to write."""
        if room:
            self._full = False
        if self._inbox.overrun:
            self._loop.call_soon(self._end.abort, Ending.CANCELLED)  # not in the middle of a read
        self._wake()

    async def _change(self) -> None:
        """Wait until anything changes; callers then check their condition again."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class _Inbox:
    """The end that a tunnel's end is joined to: buffers bytes until they are read."""

    __slots__ = (
        "_changed",
        "_discarded",
        "_discards",
        "_stopped",
        "broken",
        "buffer",
        "bytes_written",
        "eof",
        "peer",
    )

    def __init__(self, changed: Callable[[bool], None]) -> None:
        self.peer: End = GONE
        self.bytes_written = 0
        self.buffer = bytearray()
        self.eof = False
        self.broken: Ending | None = None
        self._changed = changed
        self._stopped = False
        self._discards = False
        self._discarded = 0

    @property
    def overrun(self) -> bool:
        """More was discarded than a target may send before it learns of the close."""
        return self._discarded > BUFFER_BYTES

    def take(self, size: int) -> bytes:
        """Take bytes out of the buffer, and resume the sender."""
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        if self._stopped and len(self.buffer) <= BUFFER_BYTES // 2:
            self._stopped = False
            self.peer.resume_reading()
        return data

    def discard(self) -> None:
        """Discard the buffer and all later bytes: there is no reader any more."""
        self._discards = True
        self.take(len(self.buffer))

    # Called by the tunnel's end; see End.

    def write(self, data: bytes) -> bool:
        """Buffer bytes; False when the buffer is full."""
        self.bytes_written += len(data)
        if self._discards:
            self._discarded += len(data)
            if self._discarded > BUFFER_BYTES:  # as a kernel does once a socket is closed
                self._changed(False)
            return True
        self.buffer += data
        self._stopped = len(self.buffer) >= BUFFER_BYTES
        self._changed(False)
        return not self._stopped

    def write_eof(self) -> None:
        """The target has ended its side."""
        self.eof = True
        self._changed(False)

    def abort(self, reason: Ending) -> None:
        """The tunnel was reset."""
        if self.broken is None:
            self.broken = reason
        self._changed(False)

    def pause_reading(self) -> None:
        """Do nothing: writers use drain(), and see the result of write()."""

    def resume_reading(self) -> None:
        """There is room to write again."""
        self._changed(True)

    def start(self) -> None:
        """Do nothing: this end has no early bytes."""

    def let_go(self) -> None:
        """Do nothing: the half-close was all there is to send."""
