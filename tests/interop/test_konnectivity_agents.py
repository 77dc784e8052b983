"""Agents and servers of the other kind: what is said in metadata, drain, duplicates, refusals."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from konnpeers import Event, Peers
from stack import http_get, wait_until

pytestmark = pytest.mark.interop

CONNECT = "/AgentService/Connect"


def connect(**metadata: str) -> list[Event]:
    return [
        {"stream": "a", "open": CONNECT, "metadata": metadata},
        {"stream": "a", "end": True},
    ]


def test_our_server_tells_a_go_agent_who_it_is(peers: Peers) -> None:
    server = peers.server("--mode=grpc", "--server-id=the-one", "--server-count=3")
    said = peers.go_agent(server).wait("connected")
    assert said["serverID"] == ["the-one"]
    assert said["serverCount"] == ["3"]


def test_go_agent_serves_connect_clients_too(peers: Peers) -> None:
    from clients import tunnel

    peers.go_agent(peers.server())
    with tunnel(peers.connect_uds(), peers.target["echo"]) as client:
        client.send(b"hello")
        assert client.recv() == b"hello"


def test_draining_go_agent_is_last(peers: Peers) -> None:
    server = peers.server("--mode=grpc")
    first = peers.go_agent(server, "--id=first")
    second = peers.go_agent(server, "--id=second")
    first.signal(signal.SIGUSR1)
    assert first.wait("draining")["sent"]
    before = first.count("dialed")
    # Nothing tells when the server has read DRAIN but what it does.
    wait_until(lambda: dials_only(peers, second, first), "a draining agent is not chosen")
    assert peers.check("echo", "echo", "--n=10", "--rounds=1")
    assert second.count("dialed") >= 10
    assert first.count("dialed") <= before + 10
    second.end()
    wait_until(lambda: not peers.check("dial", "echo")["dial_error"], "a draining one is used")


def dials_only(peers: Peers, one: Any, other: Any) -> bool:
    ones, others = one.count("dialed"), other.count("dialed")
    peers.check("echo", "echo", "--n=4", "--rounds=1")
    return one.count("dialed") == ones + 4 and other.count("dialed") == others


def test_two_go_agents_with_one_id(peers: Peers) -> None:
    server = peers.server("--mode=grpc")
    first = peers.go_agent(server, "--id=same")
    peers.go_agent(server, "--id=same")
    peers.check("echo", "echo", "--n=10")
    first.process.kill()
    first.process.wait()
    wait_until(lambda: not peers.check("dial", "echo")["dial_error"], "the other one is used")
    peers.check("echo", "echo", "--n=10")


def test_agent_without_id(peers: Peers) -> None:
    server = peers.server("--mode=grpc")
    lines = peers.script(*connect(), flags=peers.to_agent_port(server))
    assert lines[-1]["code"] == "InvalidArgument"


def test_agent_with_bad_identifiers(peers: Peers) -> None:
    server = peers.server("--mode=grpc")
    bad = connect(agentID="a", agentIdentifiers="ipv4=not-an-address")
    lines = peers.script(*bad, flags=peers.to_agent_port(server))
    assert lines[-1]["code"] == "InvalidArgument"
    assert "ipv4" in lines[-1]["message"]
    assert "not-an-address" in lines[-1]["message"]


def test_agent_port_has_no_other_methods(peers: Peers) -> None:
    server = peers.server("--mode=grpc")
    steps = [{"stream": "a", "open": "/ProxyService/Proxy"}, {"stream": "a", "end": True}]
    lines = peers.script(*steps, flags=peers.to_agent_port(server))
    assert lines[-1]["code"] == "Unimplemented"


def test_server_that_goes_ends_a_go_agents_stream(peers: Peers) -> None:
    server = peers.server("--mode=grpc")
    agent = peers.go_agent(server)
    server.signal(signal.SIGTERM)
    assert agent.wait_exit() == 0
    assert agent.events[-1]["event"] == "ended"


def test_stalled_client_of_a_go_agent_stops_only_itself(peers: Peers) -> None:
    """The agent has no flow control for each connection: the server must bound this one."""
    server = peers.server("--mode=grpc")
    peers.go_agent(server)
    way = (f"--uds={peers.uds}", f"--target={peers.target['source']}")
    holder = peers.start_go("stall", *way, f"--bytes={10**9}", "--seconds=60", "--timeout=90s")
    assert holder.first() == {"stalled": 1}
    peers.check("echo", "echo", "--n=50", "--concurrency=4")
    peers.check("bulk", "source", "--down", f"--bytes={20_000_000}")


# Our agent of a Go server.


def test_our_agent_tells_a_go_server_who_it_is(peers: Peers) -> None:
    server = peers.go_server()
    peers.agent_of(server, "--agent-id=me", "--agent-identifiers=host=a.example&ipv4=10.0.0.1")
    said = server.wait("agent")
    assert said["agentID"] == "me"
    (identifiers,) = said["agentIdentifiers"]
    assert "host=a.example" in identifiers
    assert not said["authorization"]


def test_our_agent_sends_its_token(peers: Peers, tmp_path: Any) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    server = peers.go_server()
    peers.agent_of(server, f"--service-account-token-path={token}")
    assert server.wait("agent")["authorization"] == ["Bearer secret"]


def test_our_agent_drains_at_sigterm(peers: Peers) -> None:
    server = peers.go_server()
    agent = peers.agent_of(server)
    agent.signal(signal.SIGTERM)
    server.wait("drain")
    assert agent.wait_exit() == 0
    server.wait("agent_gone")


def test_our_agent_comes_back_to_a_go_server(peers: Peers) -> None:
    server = peers.go_server()
    agent = peers.agent_of(server)
    port = server.wait("serving")["agent_port"]
    server.end()
    again = peers.go_server(f"--listen=127.0.0.1:{port}")
    again.wait("agent")
    peers.check("echo", "echo")
    assert agent.process.poll() is None


@contextlib.contextmanager
def balancer(ports: list[int]) -> Iterator[int]:
    """One address in front of several servers, each connection to the next of them."""
    listener = socket.create_server(("127.0.0.1", 0))
    turn = itertools.cycle(ports)
    sockets: list[socket.socket] = [listener]

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                sink.sendall(chunk)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", next(turn)))
                sockets.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        thread.join()


def test_our_agent_reaches_every_go_server_behind_one_address(peers: Peers) -> None:
    servers = [
        peers.go_server(f"--id=server-{n}", "--server-count=3", uds=f"{peers.uds}.{n}")
        for n in range(3)
    ]
    with balancer([server.wait("serving")["agent_port"] for server in servers]) as port:
        agent = peers.start("agent", *peers.agent_flags(port))
        for n, server in enumerate(servers):
            server.wait("agent")
            peers.check("echo", "echo", f"--uds={peers.uds}.{n}")
        health = agent.port("health_port")
        wait_until(lambda: http_get(health, "/readyz")[0] == 200, "the agent is ready")
