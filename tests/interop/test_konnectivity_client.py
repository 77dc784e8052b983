"""kube-apiserver's client library through every mix of servers and agents.

``go+go`` has nothing of ours in it: it shows that the peers themselves work. What Go's client
and server cannot do together by a race in the client (targets that speak first) is not asked
of a Go server.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from konnpeers import Peers

pytestmark = pytest.mark.interop

MB = 1_000_000
SINGLE: tuple[str, ...] = ()
REUSED = ("--reusable",)


def ours_ours(peers: Peers) -> None:
    peers.agent(peers.server("--mode=grpc"))


def ours_ours_grpc_link(peers: Peers) -> None:
    peers.agent(peers.server("--mode=grpc"), "--link=grpc")


def ours_go(peers: Peers) -> None:
    peers.go_agent(peers.server("--mode=grpc"))


def go_ours(peers: Peers) -> None:
    peers.agent_of(peers.go_server())


def go_go(peers: Peers) -> None:
    server = peers.go_server()
    port = server.wait("serving")["agent_port"]
    files = peers.files
    peers.start_go(
        "agent",
        f"--address=localhost:{port}",
        "--id=go-agent",
        f"--ca={files.ca_cert}",
        f"--cert={files.agent_cert}",
        f"--key={files.agent_key}",
    ).wait("connected")
    server.wait("agent")


OUR_SERVER: dict[str, Callable[[Peers], None]] = {
    "ours+ours": ours_ours,
    "ours+ours over grpc": ours_ours_grpc_link,
    "ours+go": ours_go,
}
EVERY = OUR_SERVER | {"go+ours": go_ours, "go+go": go_go}


@pytest.fixture(params=EVERY.values(), ids=EVERY.keys())
def mix(request: pytest.FixtureRequest, peers: Peers) -> Peers:
    """Each mix of server and agent, running."""
    request.param(peers)
    return peers


@pytest.fixture(params=OUR_SERVER.values(), ids=OUR_SERVER.keys())
def served(request: pytest.FixtureRequest, peers: Peers) -> Peers:
    """Each mix with our server, running."""
    request.param(peers)
    return peers


tunnels = pytest.mark.parametrize("tunnel", [SINGLE, REUSED], ids=["single-use", "reusable"])


@tunnels
def test_dial_and_echo(mix: Peers, tunnel: tuple[str, ...]) -> None:
    assert mix.check("dial", "echo", *tunnel)["dial_error"] == ""
    mix.check("echo", "echo", "--n=20", "--concurrency=4", "--bytes=60000", *tunnel)
    mix.target.wait_closed("echo")


@tunnels
def test_dial_error_has_the_targets_text(mix: Peers, tunnel: tuple[str, ...]) -> None:
    found = mix.check("dial", "127.0.0.1:1", *tunnel)
    assert found["reason"] == "endpoint", found
    assert "refused" in found["dial_error"]
    mix.check("echo", "echo", *tunnel)


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["up", "down"])
@tunnels
def test_200_mb(mix: Peers, way: str, tunnel: tuple[str, ...]) -> None:
    role = "sink" if way == "up" else "source"
    mix.check("bulk", role, f"--{way}", f"--bytes={200 * MB}", *tunnel)
    mix.target.wait_closed(role)


@pytest.mark.parametrize("chunk", [1, 3 * 1024 * 1024])
def test_bulk_in_tiny_and_huge_packets(mix: Peers, chunk: int) -> None:
    # Just under the 4 MiB of a gRPC message, and what only the framing costs.
    size = 5000 if chunk == 1 else 20 * MB
    mix.check("bulk", "sink", "--up", f"--bytes={size}", f"--chunk={chunk}")


def test_several_bulks_at_once(mix: Peers) -> None:
    mix.check("bulk", "sink", "--up", "--n=8", f"--bytes={8 * MB}", "--reusable")
    mix.check("bulk", "source", "--down", "--n=8", f"--bytes={8 * MB}", "--reusable")


@tunnels
def test_200_concurrent(mix: Peers, tunnel: tuple[str, ...]) -> None:
    mix.check("concurrent", "echo", "--n=200", *tunnel)
    mix.target.wait_closed("echo")


@tunnels
def test_cancelled_while_the_answer_is_on_the_way(mix: Peers, tunnel: tuple[str, ...]) -> None:
    flags = ("--n=300", "--concurrency=8", "--seconds=0.01")
    found = mix.check("cancel", "echo", *flags, *tunnel)
    assert found["cancelled"] > 0, found
    mix.target.wait_closed("echo")
    mix.check("echo", "echo", *tunnel)


@tunnels
def test_cancelled_while_the_target_is_silent(mix: Peers, tunnel: tuple[str, ...]) -> None:
    flags = ("--n=40", "--concurrency=8", "--seconds=0.1")
    assert mix.check("cancel", "stuck", *flags, *tunnel)["cancelled"] == 40
    mix.check("echo", "echo", *tunnel)


@tunnels
@pytest.mark.parametrize("concurrency", [1, 32])
def test_server_speaks_first(served: Peers, concurrency: int, tunnel: tuple[str, ...]) -> None:
    flags = ("--n=96", f"--concurrency={concurrency}")
    found = served.check("speaksfirst", "greet", *flags, *tunnel)
    assert found["greeted"] + found["cut"] == 96
    the_client_dropped(served, found["cut"])
    served.target.wait_closed("greet")


@tunnels
@pytest.mark.parametrize("concurrency", [1, 32])
def test_target_speaks_and_hangs_up(
    served: Peers, concurrency: int, tunnel: tuple[str, ...]
) -> None:
    flags = ("--n=96", f"--concurrency={concurrency}")
    found = served.check("hangup", "hangup", *flags, *tunnel)
    assert found["ended"] + found["cut"] == 96
    the_client_dropped(served, found["cut"])


def the_client_dropped(peers: Peers, cut: int) -> None:
    """What was cut came, and Go's library says that it dropped it.

    It registers a connection only after it has handed over that it is there. Our server waits for
    that (SETTLE_S), which is enough unless the client gets no CPU.
    """
    dropped = [
        line for line in peers.said.splitlines()
        if "Connection not recognized" in line and 'packetType="DATA"' in line
    ]  # fmt: skip
    assert cut <= len(dropped), peers.said[-3000:]
    assert cut <= 96 // 4, f"{cut} of 96"


def test_thousands_of_dials_over_one_connection(mix: Peers) -> None:
    mix.check("reuse", "echo", "--n=3000", "--concurrency=16", "--rounds=1")
    mix.target.wait_closed("echo")


@tunnels
def test_data_then_close_arrives(mix: Peers, tunnel: tuple[str, ...]) -> None:
    before = mix.target.counters("count")["received"]
    found = mix.check("halfdata", "count", "--n=20", "--bytes=300000", *tunnel)
    mix.target.wait_closed("count")
    assert mix.target.counters("count")["received"] - before == found["sent"]


@tunnels
def test_idle_connections_answer(mix: Peers, tunnel: tuple[str, ...]) -> None:
    assert mix.check("idle", "echo", "--n=300", "--seconds=1", *tunnel)["answered"] == 300


def test_mutual_tls_over_tcp(peers: Peers) -> None:
    server = peers.server("--mode=grpc")
    peers.agent(server)
    flags = peers.over_tls(server)
    peers.check("echo", "echo", "--n=10", *flags)
    peers.check("reuse", "echo", "--n=50", "--concurrency=8", *flags)
    peers.check("bulk", "source", "--down", f"--bytes={20 * MB}", *flags)


def test_no_agent(peers: Peers) -> None:
    peers.server("--mode=grpc")
    found = peers.check("dial", "echo")
    assert found["reason"] == "endpoint"
    assert found["dial_error"]
    assert found["seconds"] < 25  # an answer, and not the client's backstop of 30 s


def test_agent_that_dies_ends_its_connections(peers: Peers) -> None:
    server = peers.server("--mode=grpc")
    agent = peers.go_agent(server)
    flags = ["idle", f"--uds={peers.uds}", f"--target={peers.target['echo']}", "--seconds=60"]
    holder = peers.start_go(*flags, "--timeout=90s", "--n=5")
    assert holder.first() == {"held": 5}
    agent.process.kill()
    agent.process.wait()
    assert peers.check("dial", "echo")["dial_error"]
    peers.go_agent(server, "--id=another")
    peers.check("echo", "echo")


def test_both_modes_at_once(peers: Peers) -> None:
    connect_uds = f"{peers.uds}.connect"
    server = peers.server("--mode=grpc,http-connect", f"--http-connect-uds-name={connect_uds}")
    peers.agent(server)
    peers.check("echo", "echo", "--n=5")
    from clients import connect_uds as connect
    from clients import tunnel

    with tunnel(connect(connect_uds), peers.target["echo"]) as client:
        client.send(b"hello")
        assert client.recv() == b"hello"
