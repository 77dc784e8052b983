"""SIGTERM: no new connections, old tunnels finish, the process ends by itself."""

from __future__ import annotations

import contextlib
import signal
import ssl
import time
from collections import Counter

import pytest
from clients import Client, Target, ask, free_port, head_for, tunnel
from programs import Program, Programs
from stack import http_get, wait_until

CUT = (ConnectionResetError, ssl.SSLError)
#: The server says what is spoken; agents know both.
LINKS = pytest.mark.parametrize("link", ["mux", "grpc"])


def refuses_clients(programs: Programs) -> bool:
    try:
        programs.connect_uds().close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    return False


def finish(client: Client, far: Client) -> None:
    client.send(b"still here")
    assert far.read_exactly(10) == b"still here"
    far.send(b"bye")
    far.half_close()
    assert client.read_to_end() == b"bye"
    client.half_close()
    assert far.read_to_end() == b""


def started(programs: Programs, *more: str) -> tuple[Program, Program]:
    server = programs.server(*more)
    agent = programs.agent(server)
    programs.wait_ready(server)
    return server, agent


@LINKS
def test_a_draining_server_lets_its_tunnels_finish(programs: Programs, link: str) -> None:
    server, _ = started(programs, f"--link={link}")
    with (
        Target() as target,
        tunnel(programs.connect_tls(server), target.name) as client,
        target.accept() as far,
    ):
        server.signal(signal.SIGTERM)
        wait_until(lambda: refuses_clients(programs), "the listener is closed")
        status, text = http_get(server.port("health_port"), "/readyz")
        assert status == 500 and "draining" in text
        assert server.process.poll() is None
        finish(client, far)
    assert server.wait_exit() == 0
    assert "Traceback" not in server.log


@LINKS
def test_a_tunnel_that_does_not_finish_is_reset_at_the_deadline(
    programs: Programs, link: str
) -> None:
    server, _ = started(programs, "--graceful-shutdown-timeout=300ms", f"--link={link}")
    with (
        Target() as target,
        tunnel(programs.connect_tls(server), target.name) as client,
        target.accept() as far,
    ):
        server.signal(signal.SIGTERM)
        with pytest.raises(CUT):
            client.recv()
        with pytest.raises(ConnectionResetError):
            far.recv()
    assert server.wait_exit() == 0
    assert "Traceback" not in server.log


def test_a_second_sigterm_ends_it_at_once(programs: Programs) -> None:
    server, _ = started(programs, "--graceful-shutdown-timeout=1h")
    with (
        Target() as target,
        tunnel(programs.connect_tls(server), target.name) as client,
        target.accept(),
    ):
        server.signal(signal.SIGTERM)
        wait_until(lambda: refuses_clients(programs), "the server drains")
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 0
        with pytest.raises(CUT):
            client.recv()


@LINKS
def test_sigterm_without_tunnels_leaves_nothing(programs: Programs, link: str) -> None:
    server, agent = started(programs, f"--link={link}")
    server.signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    with pytest.raises(FileNotFoundError):
        programs.connect_uds()
    agent.signal(signal.SIGTERM)
    assert agent.wait_exit() == 0
    assert "Traceback" not in agent.log + server.log


@LINKS
def test_a_draining_agents_dials_go_to_the_other_with_no_failure(
    programs: Programs, link: str
) -> None:
    server, first = started(programs, f"--link={link}")
    second = programs.agent(server, "--agent-id=second")
    port = server.port("admin_port")
    wait_until(lambda: '"second"' in http_get(port, "/snapshot")[1], "both are linked")
    statuses: Counter[bytes] = Counter()

    def dial(target: Target) -> None:
        with programs.connect_uds() as client:
            client.send(head_for(target.name))
            statuses[client.read_head().split(b" ")[1]] += 1
            with contextlib.suppress(OSError):
                target.accept().close()

    with Target() as target:
        held = [tunnel(programs.connect_uds(), target.name) for _ in range(20)]
        ends = [target.accept() for _ in held]
        first.signal(signal.SIGTERM)
        deadline = time.monotonic() + 20
        # Dials go on all the while, before, during and after it tells the server.
        while "draining" not in first.log and time.monotonic() < deadline:
            dial(target)
        for _ in range(50):
            dial(target)
        for client in held:
            client.close()
        assert set(statuses) == {b"200"}
        for end in ends:
            end.close()
    assert first.wait_exit() == 0
    with Target() as target:
        dial(target)
    assert set(statuses) == {b"200"}
    assert second.process.poll() is None


@LINKS
def test_a_lone_agent_that_drains_still_takes_dials(programs: Programs, link: str) -> None:
    _, agent = started(programs, f"--link={link}")
    with (
        Target() as target,
        tunnel(programs.connect_uds(), target.name) as client,
        target.accept() as far,
    ):
        agent.signal(signal.SIGTERM)
        agent.wait_log("draining")
        for _ in range(5):
            with tunnel(programs.connect_uds(), target.name) as another, target.accept() as its:
                another.send(b"anew")
                assert its.read_exactly(4) == b"anew"
        finish(client, far)
    assert agent.wait_exit() == 0


@LINKS
def test_a_draining_agents_tunnels_finish(programs: Programs, link: str) -> None:
    _, agent = started(programs, f"--link={link}")
    with (
        Target() as target,
        tunnel(programs.connect_uds(), target.name) as client,
        target.accept() as far,
    ):
        agent.signal(signal.SIGTERM)
        agent.wait_log("draining")
        finish(client, far)
    assert agent.wait_exit() == 0
    with programs.connect_uds() as client:
        assert ask(client, head_for(f"127.0.0.1:{free_port()}")).status == 503
