"""Join a connection to the standard streams of a process, for ``isthmus dial``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any

from isthmus.client.tls import ByteStream

_READ_BYTES = 64 * 1024


async def join_standard_streams(stream: ByteStream, stdin: int, stdout: int) -> None:
    """Send ``stdin`` to the target and write its bytes to ``stdout``, until the stream ends.

    The end of stdin half-closes the connection; the end of the target's stream ends the function.

    Raises:
        OSError: the connection was reset, or the reader of stdout has left.
    """
    loop = asyncio.get_running_loop()
    over = threading.Event()
    # A thread, since stdin may be of any kind; a daemon, since a read of a terminal cannot be
    # interrupted.
    reading = threading.Thread(
        target=_read, args=(stdin, stream, loop, over), name="stdin", daemon=True
    )
    reading.start()
    try:
        while data := await stream.read(_READ_BYTES):
            await asyncio.to_thread(_write_all, stdout, data)
    finally:
        over.set()
    await stream.close()


def _read(
    stdin: int, stream: ByteStream, loop: asyncio.AbstractEventLoop, over: threading.Event
) -> None:
    async def send(data: bytes) -> None:
        if not over.is_set():
            stream.write(data)
            await stream.drain()

    async def end() -> None:
        if not over.is_set():
            stream.write_eof()

    # The reader reports a reset. RuntimeError: the loop has ended before this thread;
    # CancelledError: the loop ended while this thread waited for it.
    with contextlib.suppress(OSError, RuntimeError, CancelledError):
        while (data := os.read(stdin, _READ_BYTES)) and not over.is_set():
            _wait_for(send(data), loop)
        _wait_for(end(), loop)


def _wait_for(work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        work.close()
        raise
    future.result()


def _write_all(stdout: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(stdout, view) :]
