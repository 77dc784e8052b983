"""The client library through what stands in for konnectivity's server: Go's gRPC, its rules."""

from __future__ import annotations

import asyncio

import pytest
from clients import Target as PlainTarget
from clients import echo_target
from konnpeers import Peers

from isthmus.client import ConnectivityService
from isthmus.dial.rules_connectivity import (
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
    NetworkProtocol,
)

LIMIT_S = 60.0


def service_of(peers: Peers) -> ConnectivityService:
    way = NetworkConnection(protocol=NetworkProtocol.PACKET, uds=peers.uds)
    network = NetworkConfig(name="cluster", connection=way)
    return ConnectivityService.from_config(ConnectivityConfig(networks={"cluster": network}))


def test_many_dials_share_a_connection(peers: Peers) -> None:
    peers.agent_of(peers.go_server())

    async def use(service: ConnectivityService, address: str, number: int) -> None:
        async with await service.dialer("cluster").dial("tcp", address) as connection:
            word = b"%d" % number * 1000
            connection.write(word)
            got = b""
            while len(got) < len(word):
                got += await connection.read()
            assert got == word
            connection.abort()  # the echo would wait for our end, which konnectivity cannot say

    async def main() -> None:
        async with service_of(peers) as service, asyncio.timeout(LIMIT_S):
            with echo_target() as target:
                for _ in range(3):
                    await asyncio.gather(*(use(service, target.name, n) for n in range(40)))
                pool = service._ways["cluster"]._dialer.pool
                assert len(pool.connections) == 1
                while pool.connections[0].streams:  # every call is over
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_how_a_tunnel_ends(peers: Peers) -> None:
    peers.agent_of(peers.go_server())

    async def main() -> None:
        async with service_of(peers) as service, asyncio.timeout(LIMIT_S):
            dialer = service.dialer("cluster")
            with PlainTarget() as target:
                # The target's end is an end.
                connection = await dialer.dial("tcp", target.name)
                with await asyncio.to_thread(target.accept) as far:
                    connection.write(b"question")
                    assert await asyncio.to_thread(far.recv) == b"question"
                    far.send(b"answer")
                    far.half_close()
                    assert await connection.read() == b"answer"
                    assert await connection.read() == b""
                    await connection.close()
                # What we close is closed, though konnectivity knows no half-close.
                connection = await dialer.dial("tcp", target.name)
                with await asyncio.to_thread(target.accept) as far:
                    connection.write(b"last")
                    await connection.close(grace_s=0.1)
                    assert await asyncio.to_thread(far.read_to_end) == b"last"
                # So does a target that closes at once.
                connection = await dialer.dial("tcp", target.name)
                (await asyncio.to_thread(target.accept)).close()
                assert await connection.read() == b""
                connection.abort()

    asyncio.run(main())


def test_a_go_server_that_dies(peers: Peers) -> None:
    server = peers.go_server()
    peers.agent_of(server)

    async def main() -> None:
        async with service_of(peers) as service, asyncio.timeout(LIMIT_S):
            with PlainTarget() as target:
                connection = await service.dialer("cluster").dial("tcp", target.name)
                await asyncio.to_thread(server.process.kill)
                with pytest.raises(ConnectionResetError):
                    await connection.read()

    asyncio.run(main())
