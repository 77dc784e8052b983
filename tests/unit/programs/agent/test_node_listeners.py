"""The ports of node traffic: whose they are is known at the start, and they listen when told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest

from isthmus.dial.settings_targets import Target
from isthmus.errors import ConfigError
from isthmus.net.poller import Poller
from isthmus.programs.agent.node_traffic import NodeListeners, reserve, start_listening
from isthmus.values import HostPort

HOST = IPv4Address("127.0.0.1")
AWAY = HostPort("apiserver.internal", 6443)
LIMIT_S = 20.0


def free_port(host: str = str(HOST)) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as sock:
        return int(sock.getsockname()[1])


class Bed:
    """Listeners, and what they accepted."""

    def __init__(self) -> None:
        self.poller = Poller(asyncio.get_running_loop())
        self.accepted: list[tuple[HostPort, socket.socket]] = []
        self._made: list[NodeListeners] = []

    def listeners(
        self, *targets: Target, address: IPv4Address | IPv6Address = HOST
    ) -> NodeListeners:
        made = NodeListeners(
            asyncio.get_running_loop(),
            self.poller,
            addresses=[address],
            targets=targets,
            accept=lambda destination, sock: self.accepted.append((destination, sock)),
        )
        self._made.append(made)
        return made

    async def close(self) -> None:
        for made in self._made:
            made.close()
        for _, sock in self.accepted:
            sock.close()
        await asyncio.sleep(0)
        assert not len(self.poller)
        self.poller.shut_down()


def run(test: Callable[[Bed], Awaitable[None]]) -> None:
    async def main() -> None:
        bed = Bed()
        try:
            await test(bed)
        finally:
            await bed.close()

    asyncio.run(main())


def state(ports: NodeListeners) -> tuple[bool, str]:
    return ports.complete, ports.trouble


def connect(port: int, host: str = str(HOST)) -> socket.socket:
    return socket.create_connection((host, port), LIMIT_S)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_bound_refuses_and_listening_accepts(host: str) -> None:
    async def test(bed: Bed) -> None:
        one, two = Target(free_port(host), AWAY), Target(free_port(host), HostPort("other", 1))
        ports = bed.listeners(one, two, address=ip_address(host))
        ports.bind()
        with pytest.raises(ConnectionRefusedError):
            connect(one.local_port, host)
        assert state(ports) == (False, "") and not ports.listeners
        ports.listen()
        assert state(ports) == (True, "")
        names = [str(HostPort(host, each.local_port)) for each in (one, two)]
        assert [each.name for each in ports.listeners] == names
        with connect(two.local_port, host), connect(one.local_port, host):
            async with asyncio.timeout(LIMIT_S):
                while len(bed.accepted) < 2:
                    await asyncio.sleep(0.001)
        assert {destination for destination, _ in bed.accepted} == {AWAY, HostPort("other", 1)}
        ports.close()
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            connect(one.local_port, host)
        ports.close()  # again does nothing

    run(test)


@pytest.mark.parametrize("listening", [False, True])
def test_another_agent_that_has_the_port_is_noticed_at_the_start(listening: bool) -> None:
    async def test(bed: Bed) -> None:
        mine, free = Target(free_port(), AWAY), Target(free_port(), AWAY)
        first = bed.listeners(mine)
        first.bind()
        if listening:
            first.listen()
        second = bed.listeners(free, mine)
        with pytest.raises(ConfigError) as raised:
            second.bind()
        assert str(raised.value) == (
            f"--target {mine}: cannot listen on 127.0.0.1:{mine.local_port}: another agent or"
            " program on this node uses that port"
        )
        reserve(HOST, free.local_port).close()  # what it had bound before is free again

    run(test)


def test_some_other_program_that_has_the_port_is_noticed_at_the_start() -> None:
    async def test(bed: Bed) -> None:
        with socket.create_server(("0.0.0.0", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(ConfigError, match="program on this node uses that port"):
                bed.listeners(Target(port, AWAY)).bind()

    run(test)


def test_an_address_that_is_not_there_is_said() -> None:
    async def test(bed: Bed) -> None:
        nowhere = bed.listeners(Target(6443, AWAY), address=IPv4Address("192.0.2.1"))
        with pytest.raises(ConfigError) as raised:
            nowhere.bind()
        assert str(raised.value) == (
            f"--target 6443:{AWAY}: cannot listen on 192.0.2.1:6443: this node does not have the"
            " address 192.0.2.1"
        )

    run(test)


def test_an_agent_that_starts_again_is_not_kept_out_by_its_old_connections() -> None:
    port = free_port()
    first = reserve(HOST, port)
    start_listening(first)
    with connect(port) as client:
        accepted, _ = first.accept()
        accepted.close()  # who closes first has the TIME_WAIT
        assert client.recv(1) == b""
    first.close()
    again = reserve(HOST, port)
    start_listening(again)
    connect(port).close()
    again.close()


def test_a_port_that_is_taken_after_it_was_bound_is_tried_again() -> None:
    async def test(bed: Bed) -> None:
        target = Target(free_port(), AWAY)
        with socket.socket() as other:
            # The one way to be there and not to be noticed: to share, and not to listen yet.
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind((str(HOST), target.local_port))
            ports = bed.listeners(target)
            ports.bind()
            other.listen()
            ports.listen()
            listens, trouble = state(ports)
            assert not listens and trouble.endswith("program on this node uses that port")
        ports.listen()
        assert state(ports) == (True, "")

    run(test)
