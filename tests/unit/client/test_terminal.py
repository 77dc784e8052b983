"""Standard streams joined to a connection: what a thread may be in the middle of at the end."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from isthmus.client.terminal import join_standard_streams

LIMIT_S = 20.0


class Stuck:
    """A stream that takes one write, never drains, and is then reset."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()

    async def read(self, most: int) -> bytes:
        await self.draining.wait()
        raise ConnectionResetError("reset by peer")

    def write(self, data: bytes) -> None:
        pass

    def write_eof(self) -> None:
        pass

    async def drain(self) -> None:
        self.draining.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


def test_a_loop_that_ends_while_stdin_is_being_sent_says_nothing() -> None:
    # A thread that raises is a warning, and warnings are errors here.
    reading, writing = os.pipe()
    os.write(writing, b"xyz")
    with pytest.raises(ConnectionResetError):
        asyncio.run(joined(reading))
    for thread in threading.enumerate():
        if thread.name == "stdin":
            thread.join(LIMIT_S)
    os.close(reading)
    os.close(writing)


async def joined(reading: int) -> None:
    await join_standard_streams(Stuck(), reading, 1)  # type: ignore[arg-type]
