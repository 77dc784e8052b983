"""A TCP relay between agents and servers that a test cuts, in the middle of whatever passes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, Self

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_LIMIT_S = 20.0


class CuttingRelay:
    """Passes connections on to one port; ``cut`` ends those that are open.

    While it is ``frozen`` nothing passes, and nobody is told; while it is ``shut`` new connections
    are reset.
    """

    def __init__(self, port: int) -> None:
        self._to = port
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._flows = asyncio.Event()
        self.shut = False
        self.accepted = 0
        self.passed_bytes = 0
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_LIMIT_S)
        self._loop.close()

    def cut(self, *, reset: bool = True) -> int:
        """End every connection that passes, by RST or FIN; say how many."""

        async def cut() -> int:
            pairs = list(self._pairs)
            for pair in pairs:
                for writer in pair:
                    _end(writer, reset=reset)
            return len(pairs)

        return self._run(cut())

    def freeze(self) -> None:
        """Let nothing pass."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def thaw(self) -> None:
        """Let everything pass that waits."""
        self._loop.call_soon_threadsafe(self._flows.set)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_LIMIT_S)

    async def _listen(self) -> int:
        self._flows.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.shut:
            _end(writer, reset=True)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            _end(writer, reset=True)
            return
        pair = (writer, far_writer)
        self._pairs.add(pair)
        try:
            with contextlib.suppress(asyncio.CancelledError):  # only at the end of the relay
                await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))
        finally:
            self._pairs.discard(pair)
            for each in pair:
                each.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
                self.passed_bytes += len(data)
                await writer.drain()
            await self._flows.wait()
            writer.write_eof()

    async def _close(self) -> None:
        self._flows.set()
        self._server.close()
        for pair in list(self._pairs):
            for writer in pair:
                _end(writer, reset=True)
        await asyncio.sleep(0)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _end(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.transport.abort()
    else:
        writer.close()
