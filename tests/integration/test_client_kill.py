"""kill -9 of the server: whoever uses the library gets a prompt, typed error, at every stage."""

from __future__ import annotations

import asyncio
import signal
import socket

import pytest
from client_bed import PROTOCOLS, THROUGH_SERVER, run
from clients import Target, full_target
from programs import Program, Programs

from isthmus.client import ConnectivityService, DialError, DialFailure
from isthmus.client.blocking import BlockingService
from isthmus.dial.rules_connectivity import (
    ClientTls,
    ConnectivityConfig,
    NetworkConfig,
    NetworkConnection,
)
from isthmus.values import HostPort


def start(programs: Programs, kind: str) -> tuple[Program, ConnectivityConfig]:
    """A server and an agent as processes, and the way there of one kind."""
    word, _, carrier = kind.partition("-")
    server = programs.server(f"--mode={'http-connect' if word == 'connect' else 'grpc'}")
    programs.agent(server)
    programs.wait_ready(server)
    files = programs.files
    if carrier == "uds":
        connection = NetworkConnection(protocol=PROTOCOLS[word], uds=programs.uds)
    else:
        connection = NetworkConnection(
            protocol=PROTOCOLS[word],
            tcp=HostPort("localhost", server.port("frontend_port")),
            tls=ClientTls(
                ca_bundle=str(files.ca_cert),
                client_cert=str(files.client_cert),
                client_key=str(files.client_key),
            ),
        )
    network = NetworkConfig(name="cluster", connection=connection)
    return server, ConnectivityConfig(networks={"cluster": network})


def kill(server: Program) -> None:
    server.signal(signal.SIGKILL)
    assert server.wait_exit() == -signal.SIGKILL


@pytest.mark.parametrize("kind", THROUGH_SERVER)
def test_at_every_stage(programs: Programs, kind: str) -> None:
    server, config = start(programs, kind)

    async def test() -> None:
        async with ConnectivityService.from_config(config) as service:
            dialer = service.dialer("cluster")
            with Target() as target, full_target() as full:
                reading = await dialer.dial("tcp", target.name)
                with await asyncio.to_thread(target.accept):
                    writing = await dialer.dial("tcp", target.name)
                    sock = await dialer.dial_socket(target.name)
                    loop = asyncio.get_running_loop()
                    with sock:
                        dials = asyncio.create_task(dialer.dial("tcp", full.name))
                        waits = asyncio.create_task(reading.read())
                        pours = asyncio.create_task(pour(writing))
                        by_socket = asyncio.create_task(loop.sock_recv(sock, 100))
                        await asyncio.sleep(0.1)  # let each come to its wait; no order is needed
                        await asyncio.to_thread(kill, server)
                        # Each within the run's limit, and none by its own deadline of 30 s.
                        with pytest.raises(ConnectionResetError):
                            await waits
                        with pytest.raises(ConnectionResetError):
                            await pours
                        with pytest.raises(ConnectionResetError):
                            await by_socket
                        with pytest.raises(DialError) as under_way:
                            await dials
                        assert under_way.value.reason is DialFailure.INTERNAL
                with pytest.raises(DialError, match="connectivity server") as later:
                    await dialer.dial("tcp", target.name)
                assert later.value.reason is DialFailure.UNREACHABLE

    async def pour(connection: object) -> None:
        while True:
            connection.write(b"x" * 65536)  # type: ignore[attr-defined]
            await connection.drain()  # type: ignore[attr-defined]

    run(test)


def test_blocking_sockets(programs: Programs) -> None:
    server, config = start(programs, "connect-tls")
    with BlockingService(config) as service, Target() as target:
        with service.connect("cluster", target.name) as sock, target.accept():
            kill(server)
            with pytest.raises(ConnectionResetError):
                sock.recv(100)
        with pytest.raises(DialError):
            service.connect("cluster", target.name)
    assert isinstance(sock, socket.socket)
