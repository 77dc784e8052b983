"""Peers that take every descriptor of a program: its operators' ports answer all the same."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from clients import LIMIT_S, Client, Target, echo_target, head_for, status_of
from own_network import needs_root, own_network
from programs import Program, Programs
from stack import http_get, wait_until

GATE = "--feature-gates=EnableClusterToMasterTraffic=true"
PORTS = ("--health-bind-address=127.0.0.1", "--health-port=0", "--admin-port=0")
#: A program has about 30 from its start.
LIMIT = 128


def limit(program: Program, most: int = LIMIT) -> None:
    """Limit the descriptors of a running program."""
    resource.prlimit(program.process.pid, resource.RLIMIT_NOFILE, (most, most))


def used(program: Program) -> int:
    return len(os.listdir(f"/proc/{program.process.pid}/fd"))


def use_up(program: Program, open_one: Callable[[], object]) -> None:
    """Open until it takes no more."""
    for _ in range(2 * LIMIT):
        with contextlib.suppress(OSError):
            open_one()
    wait_until(lambda: used(program) > LIMIT // 2, "it has nearly all that it may")


def answers(port: int) -> None:
    """Several connections at once, as probes and scrapers have, are answered."""
    held = [socket.create_connection(("127.0.0.1", port), LIMIT_S) for _ in range(4)]
    try:
        assert http_get(port, "/healthz")[0] == 200
        status, text = http_get(port, "/metrics")
        assert status == 200 and "process_open_fds" in text
    finally:
        for sock in held:
            sock.close()


def asked_for(client: Client, target: Target) -> int:
    client.send(head_for(target.name))
    return status_of(client.read_head())


def test_dials_that_use_up_an_agent_leave_its_health_port(programs: Programs) -> None:
    """A client opens tunnels until the agent has no descriptor for another one."""
    server = programs.server()
    agent = programs.agent(server)
    limit(agent)
    with Target() as target, contextlib.ExitStack() as opened:
        statuses = [
            asked_for(opened.enter_context(programs.connect_uds()), target) for _ in range(LIMIT)
        ]
        assert 200 in statuses and statuses[-1] == 503
        answers(agent.port("health_port"))
        # What is there goes on, and its link with it.
        assert "link lost" not in agent.log
    with echo_target() as target:
        wait_until(lambda: used(agent) < LIMIT // 2, "they are closed")
        with programs.connect_uds() as client:
            assert asked_for(client, target) == 200


@needs_root
def test_a_nodes_connections_that_use_up_an_agent_leave_its_health_port(
    programs: Programs,
) -> None:
    """Pods open connections to the agent's address until it has no descriptor for another one."""
    with own_network(), Target() as target, contextlib.ExitStack() as opened:
        server = programs.server(GATE, f"--allowed-destination={target.name}")
        agent = programs.agent(
            server, GATE, "--bind-address=10.96.0.1", f"--target=6443:{target.name}"
        )
        agent.wait_log("accepting connections from the node")
        limit(agent)
        use_up(
            agent,
            lambda: opened.enter_context(socket.create_connection(("10.96.0.1", 6443), LIMIT_S)),
        )
        answers(agent.port("health_port"))


def test_clients_that_use_up_a_server_leave_its_health_port(programs: Programs) -> None:
    """Clients open connections to the frontends until the server has no descriptor for another."""
    server = programs.server()
    limit(server)
    with contextlib.ExitStack() as opened:
        use_up(server, lambda: opened.enter_context(programs.connect_uds()))
        answers(server.port("health_port"))
        answers(server.port("admin_port"))


def flags_of(name: str, target: Target, directory: Path) -> list[str]:
    """What a forwarder is started with."""
    if name == "apiserver-proxy":
        return [
            f"--upstream={target.name}", "--listen=127.0.0.1:0", "--health-check=none",
            "--manage-address=false",
        ]  # fmt: skip
    if name == "socks5-proxy":
        return ["--konnectivity-uds=/none", "--disable-resolver", "--serving-port=0"]
    routes = directory / "routes.yaml"
    routes.write_text(
        "apiVersion: isthmus.dev/v1alpha1\nkind: SNIRoutes\nroutes:\n"
        f"- name: a\n  hosts: [a.example.com]\n  backends: ['{target.name}']\n"
    )
    return [f"--config={routes}", "--listen=127.0.0.1:0"]


@pytest.mark.parametrize("name", ["apiserver-proxy", "sni-router", "socks5-proxy"])
def test_clients_that_use_up_a_forwarder_leave_its_ports(
    programs: Programs, tmp_path: Path, name: str
) -> None:
    """Clients open connections to a forwarder until it has no descriptor for another one."""
    with Target() as target, contextlib.ExitStack() as opened:
        program = programs.start(name, *flags_of(name, target, tmp_path), *PORTS)
        program.wait_log("serving ")
        limit(program)
        at = ("127.0.0.1", program.port("port"))
        use_up(program, lambda: opened.enter_context(socket.create_connection(at, LIMIT_S)))
        answers(program.port("health_port"))


def test_clients_that_use_up_an_apiserver_proxy_do_not_fail_its_checks(programs: Programs) -> None:
    """Its own connections that ask whether an upstream lives need a descriptor as well."""
    with Target() as target, contextlib.ExitStack() as opened:
        program = programs.start(
            "apiserver-proxy", f"--upstream={target.name}", "--listen=127.0.0.1:0",
            "--health-check=tcp", "--health-check-interval=200ms", "--health-check-fall=1",
            "--manage-address=false", *PORTS,
        )  # fmt: skip
        program.wait_log("serving ")
        limit(program)
        at = ("127.0.0.1", program.port("port"))
        use_up(program, lambda: opened.enter_context(socket.create_connection(at, LIMIT_S)))
        name = f'upstream="{target.name}"'
        port = program.port("health_port")

        def checks() -> float:
            return sum(
                float(line.rsplit(" ", 1)[1])
                for line in http_get(port, "/metrics")[1].splitlines()
                if "health_checks_total{" in line and name in line
            )

        before = checks()
        wait_until(lambda: checks() >= before + 3, "it was checked since")
        assert "an upstream is down" not in program.log
