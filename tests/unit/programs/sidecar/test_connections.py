"""How a sidecar parts with a connection: last words are read however slowly, but not for ever."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from isthmus.dial.dialers.direct import DirectDialer
from isthmus.frame.part import Ground
from isthmus.frame.tunnels import TunnelTable
from isthmus.net.resolver import Resolver
from isthmus.net.socket_end import SocketEnd
from isthmus.programs.sidecar import connections as sidecar_connections
from isthmus.programs.sidecar.connections import SidecarConnections
from isthmus.programs.sidecar.metrics import Socks5ProxyMetrics
from isthmus.programs.sidecar.password import PasswordFile
from isthmus.programs.socks5_proxy import PROGRAM
from isthmus.programs.socks5_proxy.program import Socks5Client
from isthmus.programs.socks5_proxy.settings import Socks5ProxySettings
from isthmus.tunnel.end import Ending

LIMIT_S = 20.0
ANSWER = bytes(range(256)) * 40_000


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar_connections, "FAREWELL_S", 0.01)
    monkeypatch.setattr(sidecar_connections, "MOST_STILL", 3)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def run(work: Callable[[SidecarConnections], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        ground: Ground[Socks5ProxySettings, Socks5ProxyMetrics] = Ground(
            PROGRAM, Socks5ProxySettings()
        )
        loop, poller = ground.loop, ground.poller
        connections = SidecarConnections(
            ground,
            TunnelTable(loop, ground.metrics),
            make=Socks5Client,
            dialer=DirectDialer(loop, poller, Resolver(loop)),
            password=PasswordFile("", ""),
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                await work(connections)
                while len(connections):
                    await asyncio.sleep(0.001)
        finally:
            connections.close()
            poller.shut_down()

    asyncio.run(main())


def test_a_slow_reader_gets_everything(pair: tuple[socket.socket, socket.socket]) -> None:
    async def work(connections: SidecarConnections) -> None:
        loop = asyncio.get_running_loop()
        end = SocketEnd(pair[0], connections.poller)
        connections.say_goodbye(end, ANSWER)
        got = bytearray()
        for _ in range(3):  # and reads a little each time that we look
            while end not in connections._slow:
                await asyncio.sleep(0.001)
            seen = connections._slow[end]
            got += await loop.sock_recv(pair[1], 1_000_000)
            while connections._slow[end] == seen:
                await asyncio.sleep(0.001)
        assert end.ending is None
        while data := await loop.sock_recv(pair[1], 1_000_000):
            got += data
        assert got == ANSWER
        assert end.ending is Ending.CLEAN

    run(work)


def test_who_never_reads_is_cut_off(pair: tuple[socket.socket, socket.socket]) -> None:
    async def work(connections: SidecarConnections) -> None:
        end = SocketEnd(pair[0], connections.poller)
        connections.say_goodbye(end, ANSWER)
        while end.ending is None:
            await asyncio.sleep(0.001)
        assert end.ending is Ending.TIMED_OUT
        assert not connections._slow

    run(work)


def test_who_has_everything_and_stays_is_left(pair: tuple[socket.socket, socket.socket]) -> None:
    async def work(connections: SidecarConnections) -> None:
        end = SocketEnd(pair[0], connections.poller)
        connections.say_goodbye(end, b"bye")
        while end.ending is None:
            await asyncio.sleep(0.001)
        assert end.ending is Ending.CLEAN
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(pair[1], 10) == b"bye"
        assert await loop.sock_recv(pair[1], 10) == b""

    run(work)
