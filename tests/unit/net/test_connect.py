"""Opening connections: one address or several, told once, with every loser closed."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from isthmus.errors import DialFailure
from isthmus.net import connect
from isthmus.net.connect import FAILURE_OF_ERRNO, Address, Connecting, literal
from isthmus.net.poller import Poller
from isthmus.net.socket_end import SocketEnd
from isthmus.testing import MemoryEnd
from isthmus.tunnel.end import Ending, join


class Told:
    """What an attempt said."""

    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.events = 0
        self.failure: DialFailure | None = None
        self.detail = ""
        self.times = 0
        self.done = asyncio.Event()

    def connected(self, sock: socket.socket, events: int) -> None:
        self.sock, self.events = sock, events
        self._told()

    def failed(self, failure: DialFailure, detail: str) -> None:
        self.failure, self.detail = failure, detail
        self._told()

    def _told(self) -> None:
        self.times += 1
        self.done.set()


@contextlib.asynccontextmanager
async def polled() -> AsyncIterator[Poller]:
    poller = Poller(asyncio.get_running_loop())
    yield poller
    await asyncio.sleep(0)
    assert len(poller) == 0
    poller.shut_down()


async def attempt(poller: Poller, addresses: list[Address], timeout_s: float = 20.0) -> Told:
    told = Told()
    loop = asyncio.get_running_loop()
    Connecting(
        loop,
        poller,
        addresses,
        timeout_s=timeout_s,
        connected=told.connected,
        failed=told.failed,
    )
    async with asyncio.timeout(20):
        await told.done.wait()
    await asyncio.sleep(0)
    assert told.times == 1
    return told


def close(poller: Poller, told: Told) -> None:
    assert told.sock is not None
    poller.close(told.sock)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


@pytest.fixture
def full() -> Iterator[socket.socket]:
    """A listener whose queue of one is full: it answers no more."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as sock,
        socket.create_connection(sock.getsockname(), 10),
    ):
        yield sock


def address(sock: socket.socket) -> Address:
    return literal(*sock.getsockname())


def free_address() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return address(sock)


def test_an_address_that_listens(listener: socket.socket) -> None:
    async def main() -> None:
        async with polled() as poller:
            told = await attempt(poller, [address(listener)])
            assert told.sock is not None
            assert told.sock.getpeername() == listener.getsockname()
            assert told.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            close(poller, told)

    asyncio.run(main())


def test_an_address_that_does_not() -> None:
    async def main() -> None:
        async with polled() as poller:
            told = await attempt(poller, [free_address()])
            assert told.failure is DialFailure.REFUSED
            assert told.detail.startswith("127.0.0.1 port ")
            assert told.detail.endswith(": ECONNREFUSED")

    asyncio.run(main())


def test_no_address_at_all() -> None:
    async def main() -> None:
        async with polled() as poller:
            assert (await attempt(poller, [])).failure is DialFailure.UNRESOLVED

    asyncio.run(main())


def test_an_address_that_never_answers(full: socket.socket) -> None:
    async def main() -> None:
        async with polled() as poller:
            told = await attempt(poller, [address(full)], timeout_s=0.05)
            assert told.failure is DialFailure.TIMED_OUT

    asyncio.run(main())


def test_the_next_address_is_tried_at_once_after_a_refusal(listener: socket.socket) -> None:
    async def main() -> None:
        async with polled() as poller:
            told = await attempt(poller, [free_address(), free_address(), address(listener)])
            assert told.sock is not None
            close(poller, told)

    asyncio.run(main())


def test_the_next_address_races_one_that_is_silent(
    full: socket.socket, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "NEXT_ADDRESS_S", 0.02)

    async def main() -> None:
        async with polled() as poller:
            before = len(os.listdir("/proc/self/fd"))
            told = await attempt(poller, [address(full), address(listener)])
            assert told.sock is not None
            assert told.sock.getpeername() == listener.getsockname()
            close(poller, told)
            await asyncio.sleep(0)
            assert len(os.listdir("/proc/self/fd")) == before  # the loser is closed too

    asyncio.run(main())


def test_the_last_failure_is_the_one_that_is_told() -> None:
    async def main() -> None:
        async with polled() as poller:
            first, last = free_address(), free_address()
            told = await attempt(poller, [first, last])
            assert f"port {last[1][1]}" in told.detail

    asyncio.run(main())


def test_cancelled_it_says_nothing_and_keeps_nothing(full: socket.socket) -> None:
    async def main() -> None:
        async with polled() as poller:
            told = Told()
            attempt = Connecting(
                asyncio.get_running_loop(),
                poller,
                [address(full)],
                timeout_s=0.01,
                connected=told.connected,
                failed=told.failed,
            )
            assert len(poller) == 1
            attempt.cancel()
            attempt.cancel()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(told.done.wait(), 0.05)

    asyncio.run(main())


def test_what_came_with_the_connection_is_not_lost(listener: socket.socket) -> None:
    async def main() -> None:
        async with polled() as poller:
            told = Told()
            Connecting(
                asyncio.get_running_loop(),
                poller,
                [address(listener)],
                timeout_s=20,
                connected=told.connected,
                failed=told.failed,
            )
            # Loopback connects inside connect(): the peer speaks and leaves before we look.
            peer, _ = listener.accept()
            peer.sendall(b"hello")
            peer.close()
            await told.done.wait()
            assert told.sock is not None
            end, user = SocketEnd(told.sock, poller), MemoryEnd()
            join(end, user)
            end.on_events(told.events)  # what was seen before makes no edge again
            async with asyncio.timeout(20):
                while not user.eofs:
                    await asyncio.sleep(0)
            assert user.received == b"hello"
            end.abort(Ending.CANCELLED)

    asyncio.run(main())


def test_literal_addresses() -> None:
    assert literal("192.0.2.1", 80) == (socket.AF_INET, ("192.0.2.1", 80))
    assert literal("2001:db8::1", 80) == (socket.AF_INET6, ("2001:db8::1", 80))


def test_running_out_of_descriptors_has_a_name() -> None:
    assert FAILURE_OF_ERRNO[errno.EMFILE] is DialFailure.TOO_MANY
    assert FAILURE_OF_ERRNO[errno.EHOSTUNREACH] is DialFailure.UNREACHABLE
