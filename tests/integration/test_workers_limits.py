"""What one process does at its ports, a parent does for its workers: drains, floods, sums."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import LIMIT_S, Target, connect_uds, free_port, tunnel
from programs import Program, Programs
from sni_bed import Tenant, hello_bytes
from stack import agent_context, http_get, metric, wait_until
from test_servers_behind_hash import SourceHash, linked
from workers_bed import START_S, Bed, serving

FLOODER, OTHER = "127.0.0.2", "127.0.0.3"


def cluster_of(programs: Programs, ports: dict[str, int], name: str, workers: int) -> Program:
    peers = [f"--peer-server={each}=127.0.0.1:{port}" for each, port in ports.items()]
    return serving(
        programs, "server", *programs.server_flags(), f"--server-id={name}",
        f"--agent-port={ports[name]}", f"--uds-name={programs.uds}.{name}",
        f"--workers={workers}", *peers,
    )  # fmt: skip


def ids_of(name: str, workers: int) -> list[str]:
    """What agents call the servers of one program."""
    return [name] if workers == 1 else [f"{name}-w{index}" for index in range(workers)]


def readiness(server: Program) -> tuple[int, str]:
    return http_get(server.port("health_port"), "/readyz?verbose")


def takes_agents(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), LIMIT_S).close()
    except ConnectionError:
        return False
    return True


@pytest.mark.parametrize("workers", [1, 2], ids=["one process", "workers"])
def test_who_drains_lets_the_balancer_take_another(programs: Programs, workers: int) -> None:
    """An agent that comes meanwhile finds the other server, with workers as without."""
    ports = {each: free_port() for each in "ab"}
    a, _ = [cluster_of(programs, ports, each, workers) for each in ports]
    with SourceHash(list(ports.values())) as front, Target() as target:
        first = programs.start("agent", *programs.agent_flags(front.port))
        for name in [*ids_of("a", workers), *ids_of("b", workers)]:
            wait_until(lambda n=name: linked(first, n) > 0, f"{name} is linked", START_S)
        programs.wait_ready(a)
        with (
            tunnel(connect_uds(f"{programs.uds}.a"), target.name) as client,
            target.accept() as far,
        ):
            a.signal(signal.SIGTERM)
            wait_until(lambda: not takes_agents(ports["a"]), "its agent port is closed")
            status, text = readiness(a)  # which failed before that
            assert (status, "[-]drain failed" in text) == (500, True), text
            second = programs.start("agent", *programs.agent_flags(front.port))
            for name in ids_of("b", workers):
                wait_until(lambda n=name: linked(second, n) > 0, f"{name} is linked", START_S)
            client.send(b"goes on")
            assert far.read_exactly(7) == b"goes on"
            assert a.process.poll() is None
        assert a.wait_exit() == 0


def test_who_drains_alone_still_takes_agents(programs: Programs) -> None:
    bed = Bed.start(programs)
    bed.agent()
    port = bed.server.port("agent_port")
    with Target() as target, tunnel(bed.client("uds"), target.name), target.accept():
        bed.server.signal(signal.SIGTERM)
        wait_until(lambda: readiness(bed.server)[0] == 500, "it drains")
        assert "[-]drain failed" in readiness(bed.server)[1]
        assert takes_agents(port)
    assert bed.server.wait_exit() == 0


@contextlib.contextmanager
def flood(port: int, count: int) -> Iterator[None]:
    """So many connections of one address that say nothing."""
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            sock = opened.enter_context(socket.socket())
            sock.bind((FLOODER, 0))
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        yield


@pytest.mark.nightly
def test_silent_agents_of_one_address_keep_no_other_out(programs: Programs) -> None:
    bed = Bed.start(programs)
    port = bed.server.port("agent_port")
    refused = 'isthmus_workers_connections_refused_total{reason="crowd"}'
    with flood(port, 1500):
        wait_until(lambda: metric(bed.get("/metrics")[1], refused) >= 400, "the rest is refused")
        at = socket.create_connection(("127.0.0.1", port), LIMIT_S, source_address=(OTHER, 0))
        with agent_context(programs.files).wrap_socket(at, server_hostname="localhost") as shaken:
            assert shaken.version()
        bed.agent()


def test_refusals_by_source_are_summed(programs: Programs, tmp_path: Path) -> None:
    """Each worker has its part of the places, and counts those whom it refuses."""
    name = 'isthmus_sni_router_connections_refused_total{reason="too_many_of_source"}'
    with Tenant("a", tmp_path) as tenant, contextlib.ExitStack() as opened:
        routes = tmp_path / "routes.yaml"
        routes.write_text(
            "apiVersion: isthmus.dev/v1alpha1\nkind: SNIRoutes\nroutes:\n"
            f"- name: a\n  hosts: [{tenant.host}]\n  backends: ['{tenant.address}']\n"
        )
        router = serving(
            programs, "sni-router", f"--config={routes}", "--listen=127.0.0.1:0", "--workers=2",
            "--health-bind-address=127.0.0.1", "--health-port=0", "--admin-port=0",
            "--max-connections-per-source=2",
        )  # fmt: skip

        def asked(source: str) -> bytes:
            at = "127.0.0.1", router.port("port")
            sock = socket.create_connection(at, LIMIT_S, source_address=(source, 0))
            opened.enter_context(sock).sendall(hello_bytes(tenant.host))
            try:
                return sock.recv(1)
            except ConnectionResetError:
                return b""

        def metrics(query: str = "") -> str:
            return http_get(router.port("admin_port"), f"/metrics{query}")[1]

        answers = [asked(FLOODER) for _ in range(10)]
        assert answers.count(b"\x16") == 2
        assert [asked(OTHER) for _ in range(2)] == [b"\x16"] * 2
        each = [metric(metrics(f"?worker={index}"), name) for index in range(2)]
        assert all(each), each
        assert metric(metrics(), name) == sum(each) == 8
        shown = json.loads(http_get(router.port("admin_port"), "/snapshot")[1])
        assert shown["routes"][0]["connections"] == 4
