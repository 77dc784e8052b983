"""What is special about a plain socket's end; the contract is in tests/conformance."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from isthmus.net.poller import _BATCHES_PER_TURN, Poller
from isthmus.net.raw import READ_BYTES
from isthmus.net.socket_end import SocketEnd
from isthmus.testing import MemoryEnd
from isthmus.tunnel.end import Ending, join

DEADLINE_S = 20.0
FAMILIES = ["tcp", "unix"]
Test = Callable[[SocketEnd, MemoryEnd, socket.socket], Awaitable[None]]


def connect(family: str) -> tuple[socket.socket, socket.socket]:
    if family == "unix":
        near, far = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * READ_BYTES)
            far = socket.create_connection(listener.getsockname())
            near, _ = listener.accept()
    near.setblocking(False)
    far.setblocking(False)
    return near, far


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


def run(family: str, test: Test, *, early: bytes = b"") -> None:
    """Join a socket's end to one in memory; ``early`` is in the socket before the end exists."""

    async def main() -> None:
        poller = Poller(asyncio.get_running_loop())
        near, far = connect(family)
        far.send(early)
        end, sink = SocketEnd(near, poller), MemoryEnd()
        join(end, sink)
        try:
            await test(end, sink, far)
        finally:
            far.close()
            end.abort(Ending.CANCELLED)
            poller.shut_down()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", [1, READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 3 * READ_BYTES])
def test_bytes_and_end_of_file_announced_by_one_edge(family: str, size: int) -> None:
    """An edge comes once: what it announced has to be read to the end, exact reads included."""

    async def test(end: SocketEnd, sink: MemoryEnd, far: socket.socket) -> None:
        end.pause_reading()
        await asyncio.get_running_loop().sock_sendall(far, bytes(size))
        far.shutdown(socket.SHUT_WR)
        await until(lambda: end.peer_shut)
        assert not sink.received
        end.resume_reading()
        await until(lambda: sink.eofs)
        assert len(sink.received) == size
        assert end.half_closed
        assert sink.eofs == 1

    run(family, test)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_there_before_the_end_is_read(family: str) -> None:
    async def test(end: SocketEnd, sink: MemoryEnd, far: socket.socket) -> None:
        await until(lambda: sink.received == b"before")

    run(family, test, early=b"before")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_firehose_leaves_the_loop_its_turns(family: str) -> None:
    """A few reads per turn, however long it lasts and however many edges it makes."""

    async def test(end: SocketEnd, sink: MemoryEnd, far: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reads = most = 0

        def count(_: bytes) -> None:
            nonlocal reads
            reads += 1

        def pump() -> None:
            block = bytes(1024 * 1024)
            for _ in range(200):
                far.sendall(block)
            far.shutdown(socket.SHUT_WR)

        sink.on_write = count
        far.setblocking(True)
        pumping = loop.run_in_executor(None, pump)
        while not sink.eofs:
            await asyncio.sleep(0)
            most, reads = max(most, reads), 0
            sink.received.clear()
        await pumping
        # The one that was due, and in each batch of a turn the read of an edge and a second look.
        assert 0 < most <= 1 + 2 * _BATCHES_PER_TURN

    run(family, test)


def test_repr_says_what_state_it_is_in() -> None:
    async def test(end: SocketEnd, sink: MemoryEnd, far: socket.socket) -> None:
        assert repr(end) == f"<SocketEnd fd {end.fd} open, 0 unsent>"
        end.pause_reading()
        assert "paused" in repr(end)
        end.abort(Ending.ADMIN)
        assert Ending.ADMIN.value in repr(end)

    run("tcp", test)


def test_reset_after_end_of_file_is_noticed_without_a_write() -> None:
    async def test(end: SocketEnd, sink: MemoryEnd, far: socket.socket) -> None:
        far.shutdown(socket.SHUT_WR)
        await until(lambda: sink.eofs)
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        await until(lambda: end.ending)
        assert end.ending is Ending.RESET
        assert sink.aborted is Ending.RESET

    run("tcp", test)


def test_reset_with_unsent_bytes_after_both_half_closes_is_not_clean() -> None:
    async def test(end: SocketEnd, sink: MemoryEnd, far: socket.socket) -> None:
        while not end.out_bytes:
            end.write(bytes(65536))
        sink.feed_eof()
        far.shutdown(socket.SHUT_WR)
        await until(lambda: sink.eofs)
        assert end.ending is None  # not all has gone
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        await until(lambda: end.ending)
        assert end.ending is Ending.RESET

    run("tcp", test)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_end_can_be_closed_after_the_poller(family: str) -> None:
    async def test(end: SocketEnd, sink: MemoryEnd, far: socket.socket) -> None:
        end.poller.shut_down()
        while end.write(bytes(65536)):
            pass
        end.abort(Ending.DRAINED)
        assert end.sock.fileno() == -1
        assert end.ending is Ending.DRAINED

    run(family, test)
