"""Agents as processes that take node traffic: their exit codes, and what they leave behind."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import LIMIT_S, Client, Target
from own_network import needs_root, own_network
from programs import COMMAND, Program, Programs
from systemd_bed import Manager

pytestmark = needs_root

GATE = "--feature-gates=EnableClusterToMasterTraffic=true"
ADDRESS = "10.96.0.1"
LISTENS = "accepting connections from the node"


@pytest.fixture(scope="module", autouse=True)
def network() -> Iterator[None]:
    with own_network():
        yield


def has_address() -> bool:
    done = subprocess.run(["ip", "address"], capture_output=True, text=True, timeout=LIMIT_S)
    return ADDRESS in done.stdout


def connect() -> Client:
    return Client(socket.create_connection((ADDRESS, 6443), LIMIT_S))


def start(programs: Programs, target: Target, *more: str) -> tuple[Program, Program]:
    server = programs.server(GATE, f"--allowed-destination={target.name}", *more)
    return server, programs.agent(server, *flags(target))


def flags(target: Target) -> list[str]:
    return [GATE, f"--bind-address={ADDRESS}", f"--target=6443:{target.name}"]


def test_a_port_that_another_agent_has_ends_it_with_2(programs: Programs) -> None:
    with Target() as target:
        server, agent = start(programs, target)
        agent.wait_log(LISTENS)
        port = server.port("agent_port")
        second = programs.start("agent", *programs.agent_flags(port), *flags(target))
        assert second.wait_exit() == 2
        (line,) = [line for line in second.log.splitlines() if "cannot listen" in line]
        assert line.endswith(
            f"--target 6443:{target.name}: cannot listen on {ADDRESS}:6443: another agent or"
            " program on this node uses that port"
        )
        with connect() as client, target.accept() as far:
            client.send(b"unharmed")
            assert far.read_exactly(8) == b"unharmed"


def test_sigterm_drains_and_takes_the_address_away(programs: Programs) -> None:
    with Target() as target:
        _, agent = start(programs, target)
        agent.wait_log(LISTENS)
        with connect() as client, target.accept() as far:
            agent.signal(signal.SIGTERM)
            agent.wait_log("draining")
            client.send(b"last words")
            client.half_close()
            assert far.read_to_end() == b"last words"
            far.send(b"heard")
            far.half_close()
            assert client.read_to_end() == b"heard"
        assert agent.wait_exit() == 0
        assert not has_address()


def exchange(target: Target) -> None:
    """A new connection of the node is carried, both ways, to its end."""
    with connect() as client, target.accept() as far:
        client.send(b"anew")
        assert far.read_exactly(4) == b"anew"
        far.send(b"heard")
        far.half_close()
        assert client.read_to_end() == b"heard"


@pytest.mark.parametrize("link", ["mux", "grpc"])
def test_a_lone_server_that_drains_takes_new_connections_of_nodes(
    programs: Programs, link: str
) -> None:
    with Target() as target:
        server, agent = start(programs, target, f"--link={link}")
        agent.wait_log(LISTENS)
        with connect() as client, target.accept() as far:
            server.signal(signal.SIGTERM)
            server.wait_log("draining")
            for _ in range(5):
                exchange(target)
            client.send(b"still here")
            assert far.read_exactly(10) == b"still here"
        assert server.wait_exit() == 0
        assert "reset a connection from the node" not in agent.log


@pytest.mark.parametrize("link", ["mux", "grpc"])
def test_a_node_loses_no_connection_while_its_lone_server_is_restarted(
    programs: Programs, link: str
) -> None:
    with Target() as target:
        server, agent = start(programs, target, f"--link={link}")
        agent.wait_log(LISTENS)
        port = server.port("agent_port")
        with connect() as client, target.accept() as far:
            server.signal(signal.SIGTERM)
            server.wait_log("draining")
            exchange(target)
            client.send(b"x")
            assert far.read_exactly(1) == b"x"
        assert server.wait_exit() == 0
        with connect() as client:  # nobody is there: it waits
            programs.server(
                GATE, f"--allowed-destination={target.name}", f"--agent-port={port}",
                f"--link={link}",
            )  # fmt: skip
            with target.accept() as far:
                client.send(b"patient")
                assert far.read_exactly(7) == b"patient"


def test_a_restart_with_a_socket_of_the_manager_refuses_nobody(
    programs: Programs, tmp_path: Path
) -> None:
    """The address is put there by setup-interface, the port is held by a socket unit."""
    subprocess.run(
        [*COMMAND, "agent", "setup-interface", f"--bind-address={ADDRESS}",
         "--uplink-interface=none"],
        check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    with (
        Target() as target,
        socket.create_server((ADDRESS, 6443), backlog=64) as held,
        Manager(tmp_path) as manager,
    ):
        server = programs.server(GATE, f"--allowed-destination={target.name}")
        given = [
            "agent", *programs.agent_flags(server.port("agent_port")), *flags(target),
            "--uplink-interface=none",
        ]  # fmt: skip
        for _ in range(2):
            with connect() as early:  # before anybody accepts, also between two agents
                unit = manager.start(*given, sockets=[held], names=["isthmus-agent.socket"])
                with target.accept() as far:
                    early.send(b"early")
                    assert far.read_exactly(5) == b"early"
            exchange(target)
            unit.stop()
            assert has_address()
    subprocess.run(
        [*COMMAND, "agent", "setup-interface", f"--bind-address={ADDRESS}", "--remove"],
        check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert not has_address()


def test_what_a_killed_agent_leaves_the_next_takes_over(programs: Programs) -> None:
    with Target() as target:
        server, agent = start(programs, target)
        agent.wait_log(LISTENS)
        with connect() as client, target.accept() as far:
            client.send(b"x")
            assert far.read_exactly(1) == b"x"
            agent.signal(signal.SIGKILL)
            agent.wait_exit()
            assert has_address()
            again = programs.agent(server, *flags(target))
            again.wait_log(LISTENS)
        with connect() as client, target.accept() as far:
            client.send(b"y")
            assert far.read_exactly(1) == b"y"
        again.signal(signal.SIGKILL)
        again.wait_exit()
        # The gate is turned off: what it left is removed, and nothing is bound.
        off = programs.agent(server, *[each for each in flags(target) if each != GATE])
        assert "removed leftovers of another agent" in off.log
        assert "have no effect without --feature-gates" in off.log
        assert not has_address()
