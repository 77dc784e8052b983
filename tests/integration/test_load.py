"""A lot of bytes and a lot of tunnels, with checksums, and nothing left over afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clients import MIB, Client, Target, receive_all, send_all, tunnel
from programs import Programs
from stack import Stack

from isthmus.links.agent_side import GrpcAgentTalk
from isthmus.links.mux import MuxTalk
from isthmus.links.server_side import GrpcServerTalk
from isthmus.links.talk import Talk


@pytest.fixture(scope="module", params=["mux", "grpc"])
def link(request: pytest.FixtureRequest) -> str:
    """Everything here holds over both."""
    return str(request.param)


def both_ways(client: Client, far: Client, total: int) -> None:
    with ThreadPoolExecutor(4) as pool:
        up = pool.submit(send_all, client, 1, total)
        down = pool.submit(send_all, far, 2, total)
        there = pool.submit(receive_all, far)
        back = pool.submit(receive_all, client)
        assert there.result() == (total, up.result())
        assert back.result() == (total, down.result())


@pytest.mark.parametrize("size", [64 * MIB, pytest.param(1024 * MIB, marks=pytest.mark.nightly)])
def test_many_bytes_each_way_with_checksums(programs: Programs, link: str, size: int) -> None:
    server = programs.server()
    programs.agent(server, f"--link={link}")
    with (
        Target() as target,
        tunnel(programs.connect_uds(), target.name) as client,
        target.accept() as far,
    ):
        both_ways(client, far, size)


def test_64_megabytes_each_way_over_tls(stack: Stack) -> None:
    with Target() as target, stack.tunnel("tls", target.name) as client, target.accept() as far:
        both_ways(client, far, 64 * MIB)


class Echoes:
    """A target that echoes any number of connections, on a loop of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.name = ""

    def __enter__(self) -> Echoes:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._echo, "127.0.0.1", 0, backlog=2048), self._loop
        ).result(10)
        self.name = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    def __exit__(self, *_: object) -> None:
        async def end() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


async def echo_once(path: str, target: str, seed: int) -> bool:
    """One client: sends random bytes in random pieces and compares what comes back."""
    source = random.Random(seed)
    data = source.randbytes(source.randrange(20_000, 200_000))
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head

        async def send() -> None:
            rest = memoryview(data)
            while rest:
                size = source.choice((1, 500, 8192, 65536))
                writer.write(rest[:size])
                rest = rest[size:]
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        back = await reader.read(-1)
        await sending
        return hashlib.sha256(back).digest() == hashlib.sha256(data).digest()
    finally:
        writer.close()


def test_500_tunnels_at_once_with_checksums(stack: Stack) -> None:
    async def all_of_them(target: str) -> list[bool]:
        path = stack.server.settings.uds_name
        async with asyncio.timeout(60):
            return await asyncio.gather(*(echo_once(path, target, seed) for seed in range(500)))

    with Echoes() as echoes:
        assert all(asyncio.run(all_of_them(echoes.name)))
        stack.wait_idle()


# Nothing left over.


def inside(talk: Talk | None) -> tuple[int, ...]:
    """What a link's protocol keeps of its tunnels."""
    if isinstance(talk, MuxTalk):
        it = talk.session
        kept = len(it._half) + len(it._holders) + len(it.reasons)
        return (len(it.streams), it._growth_left, kept)
    assert isinstance(talk, GrpcServerTalk | GrpcAgentTalk) and talk.packets is not None
    packets, brake = talk.packets, talk.packets.brake
    queues = len(packets._turns) + len(packets._touched) + len(packets._replies)
    braked = len(brake.behind) + len(brake._sinks) + brake.withheld
    return (len(talk.session.streams), queues, packets._ids.closing, braked)


DIALS = 5000


class Counts:
    """What must come back to where it was."""

    def __init__(self, stack: Stack) -> None:
        def look() -> None:
            self.fds = len(os.listdir("/proc/self/fd"))
            self.tasks = len(asyncio.all_tasks(stack.loop))
            self.polled = (len(stack.server.poller), len(stack.agent.poller))
            servers = stack.agent.servers
            assert servers is not None
            links = [*stack.server.links, *servers.links.values()]
            self.loads = [(link.load, link.held_bytes) for link in links]
            self.inside = [inside(link.talk) for link in links]

        gc.collect()
        stack.do(look)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Counts) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return str(vars(self))


@pytest.mark.nightly
def test_everything_is_given_back_after_5000_dials_half_of_them_cancelled(fresh: Stack) -> None:
    fresh.add_server()
    fresh.add_agent()
    path = fresh.server.settings.uds_name

    async def one(target: str, number: int, turn: asyncio.Semaphore) -> None:
        async with turn:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\nhello".encode())
            if number % 2:  # leave somewhere between the head and the reply
                for _ in range(number % 7):
                    await asyncio.sleep(0)
                if number % 4 == 1:
                    writer.transport.abort()
            else:
                await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(5) == b"hello"
            writer.close()

    async def all_of_them(target: str) -> None:
        turn = asyncio.Semaphore(64)
        async with asyncio.timeout(60):
            await asyncio.gather(*(one(target, number, turn) for number in range(DIALS)))

    with Echoes() as echoes:
        asyncio.run(echo_once(path, echoes.name, 1))
        fresh.wait_idle()
        before = Counts(fresh)
        asyncio.run(all_of_them(echoes.name))
        fresh.wait_idle()
        fresh.wait(lambda: len(fresh.server.poller) == before.polled[0], "sockets are closed")
        fresh.wait(lambda: len(fresh.agent.poller) == before.polled[1], "sockets are closed")
        deadline = 200
        while (after := Counts(fresh)) != before and deadline:
            deadline -= 1  # the target's own sockets close a moment later
        assert after == before
        totals = fresh.snapshot()["totals"]
        assert totals["dials"] <= DIALS + 1
        assert Path(path).exists()
